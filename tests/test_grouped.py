"""The kernels of a card, in Triton's interpreter, and the CPU pool's, against sums in float64."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.executor.card import tables_of
from expert_residency.hwmodels.executor.experts import BITS, BLOCK, ExpertShape, Form, form_of

Floats = npt.NDArray[np.float64]
FORMS: tuple[Form, ...] = ("bf16", "q8_0", "q4_0")


def to_bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def blob_of(shape: ExpertShape, seed: int) -> npt.NDArray[np.uint8]:
    """A whole expert: integers of every value, factors of either sign."""
    drawn = np.random.default_rng(seed)
    blob = drawn.integers(0, 256, shape.nbytes, dtype=np.uint8)
    start = 0 if shape.form == "bf16" else 3 * shape.matrix_bytes
    numbers = (shape.nbytes - start) // 2
    scale = {"bf16": 0.05, "q8_0": 0.05 / 127, "q4_0": 0.05 / 8}[shape.form]
    blob[start : start + 2 * numbers] = to_bf16(drawn.standard_normal(numbers) * scale).view(np.uint8)
    return blob


def matrices(blob: npt.NDArray[np.uint8], shape: ExpertShape) -> list[Floats]:
    """Gate, up and down, unpacked as the form says."""
    sides = ((shape.width, shape.hidden), (shape.width, shape.hidden), (shape.hidden, shape.width))
    size, factor_bytes, found = shape.matrix_bytes, shape.factor_bytes, []
    for i, (rows, columns) in enumerate(sides):
        raw = blob[i * size : (i + 1) * size]
        if shape.form == "bf16":
            found.append(from_bf16(raw.view(np.uint16)).reshape(rows, columns))
            continue
        at = 3 * size + i * factor_bytes
        together = {"q8_0": 1, "q4_0": 4}[shape.form]
        blocks = (rows // together, columns // BLOCK, together)
        factors = from_bf16(blob[at : at + factor_bytes].view(np.uint16)).reshape(*blocks, 1)
        if shape.form == "q8_0":
            whole = raw.view(np.int8).reshape(*blocks, BLOCK).astype(np.float64)
        else:
            pairs = raw.reshape(*blocks, BLOCK // 2).astype(np.int64)
            whole = np.concatenate([pairs & 15, pairs >> 4], axis=3) - 8.0
        found.append((whole * factors).transpose(0, 2, 1, 3).reshape(rows, columns))
    return found


def reference(blobs: list[Any], rows: list[list[int]], x: Floats, shape: ExpertShape) -> Floats:
    """Sum of the experts, each on its own rows."""
    out = np.zeros_like(x)
    for blob, of_expert in zip(blobs, rows, strict=True):
        gate, up, down = matrices(blob, shape)
        inner = x[of_expert] @ gate.T
        out[of_expert] += (inner / (1 + np.exp(-inner)) * (x[of_expert] @ up.T)) @ down.T
    return out


def off(found: npt.ArrayLike, right: Floats) -> float:
    return float(np.linalg.norm(np.asarray(found) - right) / np.linalg.norm(right))


@pytest.mark.parametrize("form", FORMS)
def test_the_cpu_pool_computes_every_form(form: Form) -> None:
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    from expert_residency.hwmodels.executor.experts import CpuExperts

    shape = ExpertShape.of(3 * 96 * 64 * 2, 96, form)
    blobs = [blob_of(shape, seed) for seed in range(4)]
    weights = np.concatenate(blobs).view(np.uint16)
    x = np.random.default_rng(9).standard_normal((2, 96)).astype(np.float32)
    out = np.full_like(x, np.nan)
    offsets = np.array([3, 1], dtype=np.int64) * (shape.nbytes // 2)
    CpuExperts(96, 1, form)(weights, offsets, shape.width, x, out)
    assert off(out, reference([blobs[3], blobs[1]], [[0, 1]] * 2, x.astype(np.float64), shape)) < 1e-5


@given(st.integers(2, 40_000_000), st.sampled_from([64, 512, 2048, 2880]), st.sampled_from(FORMS))
def test_an_expert_is_as_wide_as_its_bytes_allow(half: int, hidden: int, form: Form) -> None:
    nbytes = 2 * half
    try:
        shape = ExpertShape.of(nbytes, hidden, form)
    except HardwareError:
        assert nbytes * 8 < 3 * BITS[form] * hidden * BLOCK
        return
    used = 3 * (shape.matrix_bytes + shape.factor_bytes)
    step = 3 * BITS[form] * hidden / 8 * (8 if form == "bf16" else BLOCK)
    assert used <= nbytes < used + step + 1
    assert form == "bf16" or shape.width % BLOCK == 0


def test_forms_stand_in_for_families() -> None:
    assert [form_of(family, 2048) for family in ("bf16", "fp16", "unknown", "q8", "q6", "q4", "mxfp4", "iq2")] == [
        "bf16", "bf16", "bf16", "q8_0", "q8_0", "q4_0", "q4_0", "q4_0",
    ]  # fmt: skip
    assert form_of("q4", 48) == "bf16"


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 63), min_size=1, max_size=40)), max_size=5),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1, 16, 64]),
)
def test_tiles_hold_every_pair_once_and_in_order(lines: list[list[tuple[int, list[int]]]], most: int) -> None:
    tiles, rows, ends = tables_of(lines, most)
    for e, line in enumerate(lines):
        assert ends[e][0] == 0
        assert len(ends[e]) == len(line) + 1
        for number, (slot, wanted) in enumerate(line):
            own = tiles[e, ends[e][number] : ends[e][number + 1]]
            assert (own[:, 0] == slot).all()
            assert (own[:, 2] <= most).all()
            assert [int(r) for _, first, n in own for r in rows[e, first : first + n]] == wanted
        assert not tiles[e, ends[e][-1] :].any()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["whole", "two", "rows"])
def test_the_card_kernels_compute_every_form(form: Form, how: str) -> None:
    for needed in ("torch", "triton"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, whose interpreter runs a card's kernels without a card")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, str(Path(__file__)), form, how]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    error, norm_error, line = map(float, found.stdout.split())
    assert norm_error < 1e-5
    assert error < (0.015 if form == "bf16" else 0.03), "the interpreter cuts off where a card rounds"
    assert line == 1


def interpreted(form: Form, how: str) -> tuple[float, float, int]:
    """One group of three experts in Triton's interpreter: errors of the sum and of the norm, and the counter."""
    import torch

    from expert_residency.hwmodels.executor.grouped import Grouped, way_of

    hidden, rows = 160, 5 if how == "rows" else 1
    shape = ExpertShape.of(30_000, hidden, form)
    stride = 30_208
    blobs = [
        np.concatenate([blob_of(shape, seed), np.zeros(stride - 30_000, dtype=np.uint8)]) for seed in range(5)
    ]
    drawn = np.random.default_rng(1)
    x = drawn.standard_normal((rows, hidden)) * 3
    wanted = [[0], [0], [0]] if rows == 1 else [[0, 3], [1, 2, 4], [2]]
    slots = [3, 0, 4]
    tiles, pairs, ends = tables_of([[], list(zip(slots, wanted, strict=True))], 16 if form == "bf16" else rows)
    grouped = Grouped(torch, "cpu", [shape], rows, 16, fast=False)
    line, x_host = torch.tensor([0]), torch.zeros((rows, hidden))
    residual = torch.from_numpy(x).float()
    grouped.normalize(residual, x_host, line)
    normed = x / np.sqrt((x * x).mean(1, keepdims=True))
    pool = torch.from_numpy(np.stack(blobs))
    tables = torch.from_numpy(tiles), torch.from_numpy(pairs)
    what = (shape, ends[1][-1], pool, *tables, line, residual, 0.25)
    if rows > 1:
        grouped.group(*what)
    else:  # on a card of many multiprocessors one kernel does all, on one of none two do
        way = way_of(shape, 3, 99 if how == "whole" else 0)
        assert (way.down is None) == (how == "whole")
        grouped.launch(way, *what)
    grouped.settle(residual)
    taken = from_bf16(to_bf16(normed)) if form == "bf16" else normed
    right = x + 0.25 * reference([blobs[slot] for slot in slots], wanted, taken, shape)
    added = residual.double().numpy() - x
    return off(added, right - x), off(x_host.numpy(), normed), int(line)


def attended(rows: int, cells: list[int]) -> float:
    """Largest error of attention over so many cells in Triton's interpreter."""
    import torch

    from expert_residency.hwmodels.executor.attention import GROUP, HEAD, LITTLE, Attention

    hidden, heads = 160, 2
    made = Attention(torch, "cpu", 2, rows, hidden, heads * 4 * HEAD, max(cells), fast=False)
    normed, x = torch.randn((rows, hidden)), torch.zeros((rows, hidden))
    kv, values = made.cells[1].double().numpy(), normed.double().numpy()
    worst = 0.0
    for event, length in enumerate(cells):
        x.zero_()
        made.attend(1, normed, torch.tensor(cells, dtype=torch.int32), torch.tensor([event]), x)
        right = np.zeros((rows, hidden))
        for head, query in np.ndindex(heads, GROUP):
            columns = ((head * GROUP + query) * HEAD + np.arange(HEAD)) % hidden
            score = values[:, columns] @ kv[head, 0, :length].T / 8
            weight = np.exp(score - score.max(1, keepdims=True))
            right[:, columns] += LITTLE * (weight / weight.sum(1, keepdims=True)) @ kv[head, 1, :length]
        worst = max(worst, off(x.double().numpy(), right))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_attention_reads_as_many_cells_as_a_pass_has(rows: int) -> None:
    for needed in ("torch", "triton"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, whose interpreter runs a card's kernels without a card")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, str(Path(__file__)), "attention", str(rows)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 1e-5


if __name__ == "__main__":
    if sys.argv[1] == "attention":
        print(attended(int(sys.argv[2]), [1, 63, 130]))  # noqa: T201
    else:
        print(*interpreted(sys.argv[1], sys.argv[2]))  # type: ignore[arg-type]  # noqa: T201
