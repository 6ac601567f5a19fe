"""Profiles: every number carries its kind and source, and a bad file is one sentence naming file and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from expert_residency.errors import HardwareError
from expert_residency.families import FAMILIES
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import list_profiles, load_profile, profile_aliases

SHIPPED = Path(__file__).parents[1] / "hwmodels" / "profiles"
LINK = 'h2d_gb_per_s = { value = 50, kind = "measured", source = "nvbandwidth" }'


def quantities(value):
    """Every quantity below a model, with its dotted place."""
    stack = [("", value)]
    while stack:
        place, item = stack.pop()
        if isinstance(item, Quantity):
            yield place, item
        elif isinstance(item, dict):
            stack += [(f"{place}.{key}", part) for key, part in item.items()]
        elif hasattr(item, "model_fields_set"):
            stack += [(f"{place}.{key}", getattr(item, key)) for key in type(item).model_fields]


def write(tmp_path, text, base="rtx-5070-7900x"):
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\nbase = "{base}"\nsummary = "test"\n{text}\n', "utf-8")
    return path


def refusal(path):
    with pytest.raises(HardwareError) as error:
        load_profile(path)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("name", list_profiles())
class TestEveryShippedProfile:
    def test_loads_under_its_file_name(self, name):
        assert load_profile(name).name == name

    def test_numbers_say_what_they_are(self, name):
        found = dict(quantities(load_profile(name)))
        assert len(found) > 30
        for place, quantity in found.items():
            assert len(quantity.source) > 3, place
            # An assumption is only usable with its reasoning.
            assert quantity.kind != "assumed" or len(quantity.source) >= 7, place

    def test_sizes_and_rates_are_ordered_as_physics_orders_them(self, name):
        p = load_profile(name)
        assert p.gpu.vram_usable_bytes < p.gpu.vram_total_bytes
        for family in FAMILIES:
            assert p.gpu.expert_gb_per_s.mb_per_s(family) <= p.gpu.mem_mb_per_s
            assert p.gpu.dense_gb_per_s.mb_per_s(family) <= p.gpu.mem_mb_per_s
            for source in ("pinned", "pageable", "page_cache", "budget"):
                assert p.cpu.expert_mb_per_s(source, family) <= p.dram.theory_mb_per_s
        assert p.link.h2d_pageable_mb_per_s <= p.link.h2d_mb_per_s
        assert p.dram.shared_mb_per_s <= p.dram.stream_mb_per_s <= p.dram.theory_mb_per_s
        assert p.ram.pin_limit_bytes <= p.ram.total_bytes
        assert p.disk.mmap_fault_mb_per_s <= p.disk.lane_mb_per_s <= p.disk.seq_mb_per_s


def test_short_names_of_the_three_first_machines():
    assert load_profile("rtx-5070").name == "rtx-5070-7900x"
    assert load_profile("rtx-5060ti").name == "rtx-5060ti-5700x3d"
    assert load_profile("tesla-p40").name == "tesla-p40"
    assert not set(profile_aliases()) & set(list_profiles())


def test_an_alias_names_one_machine():
    aliases = [a for name in list_profiles() for a in load_profile(name).aliases]
    assert len(aliases) == len(set(aliases))


def test_p40_rates_depend_on_the_quantization():
    rates = load_profile("tesla-p40").gpu.expert_gb_per_s
    assert all(209_000 <= rates.mb_per_s(f) <= 225_000 for f in ("q4", "q5"))
    assert all(91_000 <= rates.mb_per_s(f) <= 95_000 for f in ("q2", "q3", "iq2"))


def test_an_unknown_source_is_refused():
    p = load_profile("rtx-5070")
    with pytest.raises(HardwareError, match=r"cache.*page_cache"):
        p.cpu.expert_mb_per_s("cache", "q4")


def test_worker_scaling_goes_through_the_measured_points():
    cpu = load_profile("rtx-5070-7600").cpu
    full = cpu.expert_mb_per_s("pinned", "iq2")
    assert cpu.expert_mb_per_s("pinned", "iq2", 5) == pytest.approx(full * 36.3 / 44.1, abs=1)
    assert cpu.expert_mb_per_s("pinned", "iq2", 12) == full
    with pytest.raises(HardwareError, match="worker count"):
        load_profile("rtx-5060ti").cpu.expert_mb_per_s("pinned", "iq2", 3)


def test_an_absent_optional_figure_is_an_error_not_a_zero():
    with pytest.raises(HardwareError, match="p2p_gb_per_s"):
        _ = load_profile("rtx-5070").link.p2p_mb_per_s


def test_profiles_cannot_be_changed():
    with pytest.raises(ValidationError):
        load_profile("rtx-5070").link.pcie = "5.0 x16"


class TestNames:
    def test_misspelt_name_lists_valid_ones_and_a_close_match(self):
        with pytest.raises(HardwareError, match=r"did you mean rtx-5070 .*residency list hardware, gpus"):
            load_profile("rtx-507O")

    def test_the_partial_file_is_no_machine(self):
        with pytest.raises(HardwareError, match="unknown hardware profile"):
            load_profile("_generic")


class TestUserFiles:
    def test_base_gives_all_that_the_file_does_not(self, tmp_path):
        mine, base = load_profile(write(tmp_path, f"[link]\n{LINK}")), load_profile("rtx-5070-7900x")
        assert mine.link.h2d_mb_per_s == 50_000
        assert mine.link.h2d_gb_per_s.source == "nvbandwidth"
        assert mine.link.d2h_gb_per_s == base.link.d2h_gb_per_s
        assert (mine.gpu, mine.cpu, mine.ram, mine.aliases) == (base.gpu, base.cpu, base.ram, ())

    def test_a_new_default_drops_the_bases_exceptions(self, tmp_path):
        rate = '{ value = 300, kind = "measured", source = "own run" }'
        fresh = load_profile(write(tmp_path, f"[gpu.expert_gb_per_s]\ndefault = {rate}", base="tesla-p40"))
        assert {fresh.gpu.expert_gb_per_s.mb_per_s(f) for f in FAMILIES} == {300_000}
        patched = load_profile(write(tmp_path, f"[gpu.expert_gb_per_s]\nq4 = {rate}", base="tesla-p40"))
        assert patched.gpu.expert_gb_per_s.mb_per_s("q4") == 300_000
        assert patched.gpu.expert_gb_per_s.mb_per_s("q2") == 95_000

    def test_base_may_be_a_file_beside_it(self, tmp_path):
        first = write(tmp_path, f"[link]\n{LINK}")
        second = tmp_path / "second.toml"
        second.write_text('name = "second"\nsummary = "x"\nbase = "mine.toml"\n', "utf-8")
        assert load_profile(second).link == load_profile(first).link

    def test_a_circle_of_bases_is_refused(self, tmp_path):
        path = tmp_path / "mine.toml"
        path.write_text('name = "mine"\nsummary = "x"\nbase = "mine.toml"\n', "utf-8")
        assert "circle" in refusal(path)

    def test_misspelt_base(self, tmp_path):
        with pytest.raises(HardwareError, match="did you mean tesla-p40"):
            load_profile(write(tmp_path, "", base="tesla-p4O"))

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (
                "[link]\nh2d = 28.4",
                r"link: unknown key 'h2d'; did you mean h2d_gb_per_s or h2d_pageable_gb_per_s\? ",
            ),
            (
                "[link]\nh2d_gb_per_s = 28.4",
                r"link\.h2d_gb_per_s: a bare number; .*value = 28\.4, kind =",
            ),
            ("[lnik]\nx = 1", r"unknown key 'lnik'; did you mean link\?"),
            ("[gpu.expert_gb_per_s]\nq7 = 1", r"gpu\.expert_gb_per_s: unknown key 'q7'"),
            ("[link]\nzzz = 1", r"link: unknown key 'zzz' \(known: .*h2d_gb_per_s"),
            (
                f"[link]\n{LINK}".replace("50", "-1"),
                r"link\.h2d_gb_per_s\.value: .*greater than or equal to 0.*-1",
            ),
            (f"[link]\n{LINK}".replace("50", "0"), r"link\.h2d_gb_per_s: must be at least 0\.001 GB/s"),
            (f"[link]\n{LINK}".replace("50", "nan"), r"link\.h2d_gb_per_s\.value: .*finite"),
            (f"[link]\n{LINK}".replace("50", "true"), r"link\.h2d_gb_per_s\.value"),
            (f"[link]\n{LINK}".replace("measured", "rumour"), r"link\.h2d_gb_per_s\.kind: .*measured.*rumour"),
            (
                f"[link]\n{LINK}".replace("source", "sauce"),
                r"h2d_gb_per_s: unknown key 'sauce'; did you mean source\?.*_per_s\.source is missing",
            ),
            (
                '[link]\nh2d_gb_per_s = { value = 5, kind = "measured", source = "abc", spread = [6, 7] }',
                r"link\.h2d_gb_per_s: value 5 lies outside its spread",
            ),
            (
                '[gpu]\nvram_usable_gib = { value = 12.5, kind = "measured", source = "own run" }',
                r"gpu\.vram_usable_gib 12\.5 is more than vram_total_gib 1",
            ),
            *(
                (
                    f'[gpu.{table}]\n{family} = {{ value = 9000, kind = "measured", source = "own run" }}',
                    rf"gpu\.{table}\.{family} 9000 is above mem_gb_per_s \d+: nothing is read faster",
                )
                for table in ("expert_gb_per_s", "dense_gb_per_s")
                for family in ("default", "q4")
            ),
            (
                '[cpu]\nworkers = { value = 2.5, kind = "assumed", source = "abc" }',
                r"cpu\.workers: must be a whole number",
            ),
            (
                '[cpu.expert_gb_per_s_by_workers]\nfive = { value = 2.5, kind = "assumed", source = "abc" }',
                r"cpu\.expert_gb_per_s_by_workers\.five",
            ),
        ],
    )
    def test_bad_field_is_named(self, tmp_path, text, says):
        assert re.search(says, refusal(write(tmp_path, text)))

    def test_a_fault_of_many_fields_is_said_once(self, tmp_path):
        mine = '{ value = 5.0, kind = "assumed", source = "me" }'
        rates = "".join(f"{name}_gb_per_s = {mine}\n" for name in ("h2d", "d2h", "h2d_pageable", "handoff", "p2p"))
        said = refusal(write(tmp_path, f"[link]\n{rates}"))
        assert said.count("say where the number was read") == 1
        assert re.search(r"link\.h2d_gb_per_s\.source, link\.\S+, link\.\S+ and 2 more: .*'me'", said)

    def test_missing_field_is_named(self, tmp_path):
        whole = (SHIPPED / "rtx-5060ti-5700x3d.toml").read_text("utf-8")
        path = tmp_path / "mine.toml"
        path.write_text("".join(line for line in whole.splitlines(True) if not line.startswith("h2d_gb")), "utf-8")
        assert "mine.toml: link.h2d_gb_per_s is missing (residency list" in refusal(path)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"name = ", "not valid TOML"),
            (b"\xff\xfe", "not a text file"),
            (b"", ": name, summary, gpu, link, cpu,"),
        ],
    )
    def test_unreadable_file(self, tmp_path, content, says):
        path = tmp_path / "mine.toml"
        path.write_bytes(content)
        assert says in refusal(path)

    def test_missing_file(self, tmp_path):
        assert "no such file" in refusal(tmp_path / "none.toml")


def test_schema_refuses_unknown_sections():
    with pytest.raises(ValidationError):
        HardwareProfile.model_validate({"frobnicate": 1})
