"""A trace read in parts, and replayed without ever being whole in memory, counts as the whole does."""

from __future__ import annotations

import json

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.testing.cases import random_trace
from expert_residency.traces import TraceError, write_parquet
from expert_residency.traces.parquet import read_parquet
from expert_residency.traces.stream import stream_geometry, stream_parquet
from tests.test_cli import residency


@pytest.fixture
def path(tmp_path):
    write_parquet(random_trace(3, passes=50), tmp_path / "trace.parquet")
    return tmp_path / "trace.parquet"


@pytest.mark.parametrize("rows", [1, 7, 100, 10**6])
def test_parts_are_the_whole(path, rows):
    """Whole passes in their order, whatever the size of the parts; each counts its passes from 0."""
    whole, parts = read_parquet(path), list(stream_parquet(path, rows))
    assert stream_geometry(path) == whole.geometry
    for name in ("keys", "rows_wanting", "pass_phase", "pass_request", "pass_emits", "row_experts", "event_layer"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    assert sum(part.n_passes for part in parts) == whole.n_passes


def test_a_stream_of_other_rows_than_were_written_is_refused(tmp_path, path):
    """Another program changed an id and left the block as it was: page checksums are in order, the hash is not."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    experts = table["experts"].to_pylist()
    experts[-1] = experts[-1][::-1]
    assert experts != table["experts"].to_pylist()
    at = table.schema.get_field_index("experts")
    changed = table.set_column(at, table.schema.field("experts"), pa.array(experts, pa.list_(pa.int16())))
    pq.write_table(changed, tmp_path / "changed.parquet")
    with pytest.raises(TraceError, match="the content is not what was written"):
        list(stream_parquet(tmp_path / "changed.parquet"))
    assert len(list(stream_parquet(path, rows=7))) > 1


def test_rows_out_of_order_are_refused(tmp_path, path):
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    pq.write_table(table.take(np.arange(len(table))[::-1]), tmp_path / "backwards.parquet")
    with pytest.raises(TraceError, match="not in the order of passes"):
        list(stream_parquet(tmp_path / "backwards.parquet"))


@pytest.mark.parametrize(
    ("eviction", "admission", "options"),
    [
        ("lru", "strata-adaptive:every=2,min_usage=1,min_gain=0", {}),
        ("lfu", "always", {"contract": "sequential"}),
        ("lru", "always", {"warmup_passes": 13}),
    ],
)
def test_a_stream_counts_what_the_whole_counts(path, eviction, admission, options):
    pytest.importorskip("numba")
    from expert_residency.sim.runs.stream import replay_stream

    trace = read_parquet(path)
    room = Capacity(total_bytes=trace.geometry.all_expert_bytes // 2)
    whole = replay(trace, eviction, room, admission=admission, simulator="reference", **options).to_dict()
    (parts,) = replay_stream(
        stream_parquet(path, 100), trace.geometry, [eviction], room, admission=admission, **options
    )
    assert parts.to_dict() == whole | {"simulator": "kernel"}
    assert len(parts.hits) == 0


def test_oracles_need_the_whole(path):
    pytest.importorskip("numba")
    from expert_residency.sim.runs.stream import replay_stream

    geometry = stream_geometry(path)
    room = Capacity(total_bytes=100)
    for policies, placement in ((["belady"], None), (["lru"], "hindsight")):
        with pytest.raises(SimError, match="needs the whole trace"):
            replay_stream([], geometry, policies, room, placement=placement)
    with pytest.raises(SimError, match="quotas by hindsight need the whole trace"):
        replay_stream([], geometry, ["lru"], Capacity(total_bytes=100, scope="layer", quotas="hindsight"))


def test_the_command_streams_and_says_who_counted(path):
    pytest.importorskip("numba")
    size = f"{stream_geometry(path).all_expert_bytes // 2}B"
    command = ["replay", path, "--eviction", "lru", "--capacity", size, "--json", "-"]
    plain, fast, parts = (
        json.loads(residency(*command, *more).stdout)
        for more in (["--simulator", "reference"], ["--simulator", "kernel"], ["--stream"])
    )
    assert [data["policies"]["lru"].pop("simulator") for data in (plain, fast, parts)] == [
        "reference", "kernel", "kernel",
    ]  # fmt: skip
    plain["policies"]["lru"].pop("requests"), fast["policies"]["lru"].pop("requests")  # a stream keeps no look-ups
    assert plain["policies"]["lru"] == fast["policies"]["lru"] == parts["policies"]["lru"]
    assert plain["compulsory_bound"] == pytest.approx(parts["compulsory_bound"])
    assert set(parts["policies"]) == {"lru"}
    shown = residency("replay", path, "--eviction", "lru", "--capacity", size)
    assert "counted by: reference" in shown.stdout
    refused = residency("replay", path, "--stream", "--simulator", "reference", "--capacity", size)
    assert refused.returncode == 2
