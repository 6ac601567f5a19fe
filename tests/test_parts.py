"""Machines from parts: the tables, how names are spelt, what wins, and what is said of every number."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.parts.compose import parse_link, parse_memory
from expert_residency.hwmodels.parts.rows import cpus, find_cpu, find_gpu, gpus
from expert_residency.hwmodels.parts.rules import Rules
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import list_profiles, load_profile, with_parts
from expert_residency.sim.cli import main
from expert_residency.traces.weights.blueprint import read_blueprint
from tests.gguf_files import write_gguf


def test_the_tables_hold_what_people_have() -> None:
    assert len(gpus()) >= 60
    assert {row.arch.split("_")[0][:3] for row in gpus().values()} >= {"sm", "gfx", "xe-", "app"}
    assert {"sm_60", "sm_61", "sm_70", "sm_75", "sm_86", "sm_89", "sm_120"} <= {
        row.arch for row in gpus().values()
    }
    for row in gpus().values():
        assert row.source
        assert 2 < row.mem_gb_per_s / row.vram_gib < 100 or row.shared
        assert bool(row.link) != row.shared
        assert not row.profile or row.profile in list_profiles()
    for cpu in cpus().values():
        assert cpu.source
        assert cpu.simd in ("avx2", "avx512", "amx", "neon")


@pytest.mark.parametrize("name", gpus())
def test_every_card_makes_a_machine_whose_numbers_say_what_they_are(name: str) -> None:
    found = load_profile(f"{name}:ram=64GB")
    numbers = list(_numbers(found.model_dump(exclude_none=True)))
    assert {n["kind"] for n in numbers} <= {"measured", "datasheet", "derived", "assumed"}
    assert all(n["source"] for n in numbers)
    assert found.gpu.expert_gb_per_s.default.value < found.gpu.mem_gb_per_s.value
    assert found.gpu.vram_usable_gib.value < found.gpu.vram_total_gib.value


def _numbers(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for value in table.values():
        if isinstance(value, dict):
            yield from [value] if "kind" in value else _numbers(value)


@pytest.mark.parametrize("name", cpus())
def test_every_processor_makes_a_machine(name: str) -> None:
    row = cpus()[name]
    memory = "64GB" if row.channels else "64GB@8000x2"
    assert load_profile(f"rtx-3060:cpu={name},ram={memory}").cpu.cores.count == row.cores


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX 3060", "rtx-3060"), ("rtx3060", "rtx-3060"), ("NVIDIA GeForce RTX 3060 12GB", "rtx-3060"),
        ("3060", "rtx-3060"), ("p4", "tesla-p4"), ("RX 7900 XTX 24GB", "rx-7900-xtx"), ("7900 xt", "rx-7900-xt"),
        ("RTX 4070 Ti SUPER", "rtx-4070-ti-super"), ("Apple M4 Max", "m4-max"), ("AMD MI50 32GB", "mi50-32gb"),
        ("Quadro RTX 4000", "quadro-rtx-4000"), ("arc b580", "arc-b580"), ("rtx 2080 ti 22gb", "rtx-2080-ti-22gb"),
    ],
)  # fmt: skip
def test_spellings_of_a_card(text: str, name: str) -> None:
    found = find_gpu(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("text", "name", "sockets"),
    [
        ("Ryzen 5 5600X", "ryzen-5-5600x", 1), ("5600x", "ryzen-5-5600x", 1),
        ("xeon-e5-2698v4", "xeon-e5-2698v4", 1),
        ("2x Xeon E5-2698 v4", "xeon-e5-2698v4", 2), ("2x-epyc-7763", "epyc-7763", 2),
        ("i7-8700", "core-i7-8700", 1),
        ("AMD EPYC 7543", "epyc-7543", 1), ("Intel Core i9-13900HX", "core-i9-13900hx", 1),
    ],
)  # fmt: skip
def test_spellings_of_a_processor(text: str, name: str, sockets: int) -> None:
    row, count = find_cpu(text)
    assert (row.name, count) == (name, sockets)


def test_figures_of_a_known_machine_win() -> None:
    known, made = load_profile("tesla-p40"), load_profile("tesla-p40:cpu=xeon-e5-2698v4,ram=128GB")
    assert made.gpu == known.gpu
    assert made.link == known.link
    assert made.cpu.name == "Xeon E5-2698 v4"
    assert made.dram.theory_gb_per_s.value == pytest.approx(4 * 8 * 2.4)
    assert made.ram.total_bytes == pytest.approx(128e9, rel=1e-3)
    assert made.name not in list_profiles()
    same = load_profile("tesla-p40:cpu=2x Xeon E5-2698 v4")
    assert (same.cpu, same.dram, same.disk) == (known.cpu, known.dram, known.disk)
    assert load_profile("RTX 3090:cpu=5600x,ram=32GB").gpu == load_profile("rtx-3090").gpu
    assert made.disk.seq_gb_per_s != known.disk.seq_gb_per_s  # another machine has another drive


def test_the_slower_end_of_a_link_counts() -> None:
    assert load_profile("rtx-3060:link=5.0x16").link.pcie == "4.0 x16"
    assert load_profile("rtx-3060:link=3.0x4").link.h2d_gb_per_s.value == pytest.approx(
        3.12 * Rules()["link share"], rel=1e-3
    )
    assert load_profile("rtx-4060:ram=32GB").link.pcie == "4.0 x8"
    assert parse_link("PCIe Gen4 x8") == parse_link("4.0x8")


@pytest.mark.parametrize(
    ("text", "gb", "mt_per_s", "channels"),
    [
        ("64 GB", 64, 0, 0), ("64GB DDR4-3200", 64, 3200, 0), ("64 GB DDR5-5600 2-ch", 64, 5600, 2),
        ("2x32GB@6000", 64, 6000, 0), ("2 x 48GB DDR5 6400", 96, 6400, 0), ("64gb@ddr4-3200x2", 64, 3200, 2),
        ("128GB LPDDR5X-8000, 4 channels", 128, 8000, 4), ("1.5TB@4800x12", 1500, 4800, 12),
    ],
)  # fmt: skip
def test_memory_as_it_is_sold_and_reported(text: str, gb: int, mt_per_s: int, channels: int) -> None:
    made = parse_memory(text)
    assert (made.nbytes, made.mt_per_s, made.channels) == (gb * 10**9, mt_per_s, channels)


def test_a_spelled_name_is_the_machine_of_the_tables() -> None:
    for text, name in (
        ("RTX 3090", "rtx-3090"), ("NVIDIA GeForce RTX 3060 12GB", "rtx-3060"), ("Arc B580:ram=32GB", "arc-b580"),
        ("P40", "tesla-p40"), ("strix halo", "strix-halo"), ("RTX 4090 24GB", "rtx-4090"),
        ("MI50 16GB", "mi50-16gb"),
    ):  # fmt: skip
        _, colon, words = text.partition(":")
        assert load_profile(text) == load_profile(name + colon + words), text


def test_a_processor_by_its_cores() -> None:
    made = load_profile("rtx-a4000:cpu=2x 18c,ram=192GB@2666x6")
    assert (made.cpu.cores.count, made.cpu.name) == (36, "2x 18 cores, not named")
    assert made.dram.theory_gb_per_s.value == pytest.approx(2 * 6 * 8 * 2.666)


def test_a_card_that_comes_twice_is_two_cards() -> None:
    names = ["p40", "p40", "p100"]
    assert with_parts(names) == [(name, None) for name in names]
    made = with_parts(["RTX 3060", "RTX 3060"], cpu="5600x")
    assert [name for name, _ in made] == ["rtx-3060-ryzen-5-5600x"] * 2
    wide, narrow, third = with_parts(["rtx-3060:link=4.0x16", "rtx-3060:link=3.0x1", "rtx-3060:link=3.0x1"],
                                     cpu="5600x")  # fmt: skip
    assert wide[1] is not None
    assert narrow[1] is not None
    assert wide[1].link != narrow[1].link
    assert wide[0] != narrow[0] == third[0]
    assert narrow[1] == third[1]


def test_threads_and_a_guest_of_wsl2_are_words() -> None:
    one = load_profile("rtx-4090-laptop:cpu=core-i9-13900hx,ram=64GB,workers=6")
    all_cores = load_profile("rtx-4090-laptop:cpu=core-i9-13900hx,ram=64GB")
    most = load_profile("rtx-4090-laptop:cpu=core-i9-13900hx,ram=64GB,workers=23")
    rates = [made.cpu.expert_gb_per_s.pinned.of("iq3").value for made in (one, all_cores, most)]
    assert rates == sorted(rates)
    assert most.cpu.workers.count == 23
    assert (
        all_cores.cpu.expert_gb_per_s.pinned.of("iq3").value < all_cores.cpu.expert_gb_per_s.pinned.of("q4").value
    )
    guest, host = (load_profile(f"rx-7900-xtx:cpu=5900x,ram=64GB,os={os}").gpu for os in ("wsl2", "linux"))
    assert guest.sync_us.value == pytest.approx(host.sync_us.value + Rules()["wsl2 us"], rel=1e-3)


def test_a_memory_and_cores_limit_a_pool_together() -> None:
    rules = Rules()
    few, many = (rules.pool_gb_per_s(100, n, "avx2", 1) for n in (1, 64))
    assert few == pytest.approx(rules["core GB/s"], rel=0.02)
    assert many == pytest.approx(100 * rules["memory share"] * rules["memory avx2"], rel=0.02)
    assert Rules({"core GB/s": 1.0}).pool_gb_per_s(100, 1, "avx2", 1) == pytest.approx(1.0, rel=0.01)


def test_memory_in_the_users_words() -> None:
    full = parse_memory("64GB@6000x2")
    assert (full.nbytes, full.mt_per_s, full.channels) == (64 * 10**9, 6000, 2)
    fast, slow = (load_profile(f"rtx-4070:cpu=7950x,ram=64GB@{mts}x2").dram for mts in (6000, 3600))
    assert fast.theory_gb_per_s.value == pytest.approx(96)
    assert fast.stream_mb_per_s > slow.stream_mb_per_s


def test_one_memory_is_counted_once() -> None:
    for text, total in (
        ("m4-max:ram=64GB", 64e9),
        ("dgx-spark", 128 * 2**30),
        ("none:cpu=epyc-7763,ram=256GB", 256e9),
    ):
        made = load_profile(text)
        assert made.one_memory
        assert made.gpu.vram_usable_bytes + made.ram.total_bytes == pytest.approx(total, rel=1e-3)
    alone = load_profile("none:cpu=i7-8700,ram=32GB")
    assert alone.gpu.expert_gb_per_s.default == alone.cpu.expert_gb_per_s.pinned.default
    assert alone.gpu.launch_ns == alone.link.copy_t0_ns == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "unknown hardware profile 'nothing'"),
        ("RTX 3070 Super", "unknown hardware profile 'RTX 3070 Super'; did you mean rtx-4070-super"),
        ("MI50:ram=64GB", "MI50: say which, mi50-16gb or mi50-32gb"),
        ("RTX 4060 Ti", "RTX 4060 Ti: say which, rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("A100", "A100: say which, a100-40gb or a100-80gb"),
        ("RTX 4090 48GB", "RTX 4090 48GB: known is rtx-4090 with 24 GiB; another is a profile of your own"),
        ("M4 Max 64GB", "M4 Max 64GB: Apple M4 Max shares its memory, which is said by ram=64GB"),
        ("nothing:ram=64GB", "unknown hardware profile or card 'nothing'"),
        (
            "rtx-3060:memory=64GB",
            "machine rtx-3060: unknown part 'memory' (known: cpu, ram, link, workers, os, drive, system",
        ),
        ("rtx-3060:cpu=z80", "unknown processor 'z80' (residency list cpus), or say its cores, as 24c"),
        ("rtx-3060:cpu=0c", "unknown processor '0c'"),
        ("rtx-3060:ram=0GB", "memory '0GB': expected more than nothing"),
        ("rtx-3060:ram=64GB DDR5", "memory '64GB DDR5': expected a size, MT/s and channels, as 64GB@6000x2"),
        ("rtx-3060:ram=64GB@99999x2", "99999 MT/s, expected 400 to 20,000"),
        ("rtx-3060:ram=64GB@3200x99", "99 channels, expected 1 to 24"),
        ("rtx-3060:ram=64", "size 64 has no unit"),
        ("rtx-3060:ram=64GB@fast", "memory '64GB@fast': expected a size, MT/s and channels, as 64GB@6000x2"),
        ("rtx-3060:workers=many", "workers 'many': expected a whole number from 1 to 9999"),
        ("rtx-3060:os=vms", "unknown os 'vms' (known: linux, windows, wsl2)"),
        ("rtx-3060:link=9x9", "link '9x9': expected generation and lanes, as 4.0x8"),
        ("m1-max:link=4x4", "Apple M1 Max shares the processor's memory, there is no link"),
        ("none", "a machine without a card needs its processor"),
        ("none:cpu=epyc-7763,link=4x4", "without a card there is no link"),
        ("rtx-3060:cpu=grace-20", "has no memory channels of its own: name memory as 64GB@6000x2"),
    ],
)
def test_what_is_wrong_with_parts_is_said(text: str, says: str) -> None:
    with pytest.raises(HardwareError) as error:
        load_profile(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_parts_go_with_names_and_files_stay_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_parts(["rtx-5070"]) == [("rtx-5070", None)]
    assert with_parts(["rtx-5070"], ram="64GB") == [("rtx-5070", None)]
    assert [name for name, _ in with_parts(["rtx-5070", "RTX 3060"], cpu="5600x")] == [
        "rtx-5070-ryzen-5-5600x",
        "rtx-3060-ryzen-5-5600x",
    ]
    out = tmp_path / "mine.toml"
    with pytest.raises(SystemExit, match="0"):
        main(["machine", "rtx-4070:cpu=5600x,ram=32GB@3600x2,link=4.0x8", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "gpu.mem_gb_per_s" in shown
    assert "datasheet" in shown
    made = load_profile("rtx-4070:cpu=5600x,ram=32GB@3600x2,link=4.0x8")
    assert load_profile(out) == made
    with pytest.raises(HardwareError, match="goes with the name of a card"):
        with_parts([str(out)], cpu="5600x")


def test_a_model_and_a_machine_that_nobody_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = read_blueprint("glm-4.5-air").header("Q4_K_M")
    metadata = header.metadata | {"general.file_type": 15, "tokenizer.ggml.tokens": ["token"] * 151_552}
    path = tmp_path / "glm-4.5-air.gguf"
    write_gguf(path, metadata, [(t.name, t.shape, t.type) for t in header.tensors], hole=False)
    asked = ["--gpu", "tesla-p40", "--cpu", "xeon-e5-2698v4", "--ram", "128GB"]
    with pytest.raises(SystemExit, match="0"):
        main(["split", "--model", str(path), *asked])
    shown = capsys.readouterr().out
    assert "best: tesla-p40-xeon-e5-2698v4, Q4_K_M" in shown


def test_what_needs_no_card_is_planned_without_a_word_on_headroom(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["none", "--cpu", "epyc-7763", "--ram", "256GB"], ["dgx-spark"], ["m4-max", "--ram", "64GB"]):
        with pytest.raises(SystemExit, match="0"):
            main(["split", "--model", "qwen3-30b-a3b/Q4_K_M", "--gpu", *asked])
        assert "best: " in capsys.readouterr().out


@pytest.mark.shared
def test_machines_of_measured_runs_are_known(shared: Path) -> None:
    """Nine of ten names that reports give their cards, as they are written there."""
    with (shared / "reference" / "measured_runs.csv").open(newline="") as file:
        names = {row["hardware"] for row in csv.DictReader(file)}
    cards = {re.sub(r"^\d+x |\(.*?\)| \d+ W|unified|AMD Ryzen 7 8745H w/", "", name).strip() for name in names}
    cards -= {"", "replay", "OnePlus 15R phone"}
    unknown = [card for card in cards if find_gpu(card) is None]
    assert len(unknown) <= len(cards) / 10, unknown


def test_a_composed_machine_is_a_profile_everywhere() -> None:
    made = load_profile("rtx-3060:cpu=5600x,ram=32GB")
    assert isinstance(made, HardwareProfile)
    assert made.cpu.gflops is not None


@pytest.mark.parametrize(
    "name", ["rtx-3060", "RTX-3060", "rtx-3060:cpu=ryzen-5-5600x,ram=32GB,link=4.0x8", "rtx-5070"]
)
def test_a_file_may_start_from_whatever_names_a_machine(name: str, tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    file.write_text(f'base = "{name}"\nname = "here"\nsummary = "mine"\n')
    like = load_profile(name)
    plain = load_profile(file)
    same = {"name", "summary", "aliases"}
    assert plain.name == "here"
    assert plain.model_dump(exclude=same) == like.model_dump(exclude=same)


@pytest.mark.parametrize(("name", "says"), [("rtx-9999", "unknown hardware profile 'rtx-9999'"),
                                            ("rtx-3060:cpu=nothing-9", "nothing-9")])  # fmt: skip
def test_a_base_that_names_no_machine_is_refused(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text(f'base = "{name}"\nname = "here"\nsummary = "mine"\n')
    with pytest.raises(HardwareError, match=says):
        load_profile(tmp_path / "here.toml")
