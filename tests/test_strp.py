"""Profiles in the engine's own format: what is written is read, and what is wrong is said."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import PolicyError
from expert_residency.policies import create
from expert_residency.policies.placement.strp import StrpProfile, complete, read_strp, write_strp
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.pool import make_pool
from expert_residency.traces import load_model
from tests.test_engine import geometry


@given(st.data())
def test_what_is_written_is_read(tmp_path_factory, data):
    layers, experts = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    keys = data.draw(st.permutations(range(layers * experts)))
    ranked = list(keys[: data.draw(st.integers(0, len(keys)))])
    profile = StrpProfile(layers, experts, data.draw(st.integers(0, len(ranked))), ranked)
    path = tmp_path_factory.mktemp("strp") / "p.bin"
    write_strp(path, profile)
    assert read_strp(path) == profile


def test_a_full_profile_has_the_published_size_and_layout(tmp_path):
    model = load_model("qwen3.8-flash-next")
    order = complete([5, 3], model.n_experts)
    write_strp(tmp_path / "p.bin", StrpProfile(48, 512, 4866, order))
    data = (tmp_path / "p.bin").read_bytes()
    assert len(data) == 196_632
    assert struct.unpack_from("<4s5I", data) == (b"STRP", 1, 48, 512, 4866, 24_576)
    assert struct.unpack_from("<4H", data, 24) == (0, 5, 0, 3)
    table = struct.unpack_from("<24576i", data, 24 + 4 * 24_576)
    assert (table[5], table[3], max(table), table.count(-1)) == (0, 1, 4865, 24_576 - 4866)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"STRQ" + d[4:], "STRP"),
        (lambda d: d[:-1], "expected"),
        (lambda d: d[:10], "header"),
        (lambda d: d[:24] + struct.pack("<H", 9) + d[26:], "outside"),
        (lambda d: d[:28] + d[24:28] + d[32:], "twice"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, change, message):
    path = tmp_path / "p.bin"
    write_strp(path, StrpProfile(2, 3, 2, [4, 1, 0]))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(PolicyError, match=message):
        read_strp(path)


def test_placement_follows_the_file_and_refuses_another_model(tmp_path):
    path = tmp_path / "p.bin"
    write_strp(path, StrpProfile(3, 6, 2, [17, 0, 9]))
    pool = make_pool(geometry(), Capacity(slots_per_layer=2))
    assert create("placement", f"strp:file={path}").rank(pool, None) == [17, 0, 9]
    other = make_pool(geometry(4), Capacity(slots_per_layer=2))
    with pytest.raises(PolicyError, match="3 x 6"):
        create("placement", f"strp:file={path}").rank(other, None)


def test_whole_layers_fill_from_the_end():
    pool = make_pool(geometry(), Capacity(total_bytes=13_000_000))
    assert create("placement", "layers").rank(pool, None) == [*range(12, 18), *range(6, 12)]
    assert create("placement", "layers:count=1").rank(pool, None) == list(range(12, 18))
    with pytest.raises(PolicyError, match="do not fit"):
        create("placement", "layers:count=3").rank(pool, None)
