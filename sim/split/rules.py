"""Placements as llama.cpp writes them: `--n-cpu-moe N` and `-ot REGEX=DEVICE`, read and written.

A layer's experts are three stacked tensors there, `blk.N.ffn_gate_exps.weight`, `ffn_up_exps` and `ffn_down_exps`,
a third of the layer's expert bytes each. A rule sends every tensor whose name its pattern finds to a device, `CPU`
or `CUDAn`; the first rule that matches counts, those of `--n-cpu-moe` after those of `-ot`. A tensor that no rule
names stays on the card of its layer. Nothing is cached: a placement is fixed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.split.cards import handoff_ns
from expert_residency.sim.split.memory import gib
from expert_residency.sim.split.placement import Placement, Problem
from expert_residency.sim.split.planner import Planner
from expert_residency.traces import ModelGeometry

KINDS = ("gate", "up", "down")
CPU = -1
_PATTERN_SECONDS = 5
_REPEATS = re.compile(r"[*+{]")
_TRY = "import re, sys; [re.search(sys.argv[1], name) for name in sys.stdin.read().split()]"
_DEVICE = re.compile(r"CUDA(\d+)$|CPU$")


@dataclass(frozen=True)
class Rule:
    """`pattern` finds tensors that go to `device`, a card's number or `CPU`; `text` is what the user wrote."""

    pattern: re.Pattern[str]
    device: int
    text: str


@dataclass(frozen=True)
class DeviceReport:
    """What lies on one device.

    Parameters
    ----------
    name
        Of the card, or the host.
    layers
        Layers that run on it (0 for the host).
    dense_bytes
        Weights, session and reserve beside experts.
    expert_bytes
        Experts.
    limit_bytes
        What it has.
    """

    name: str
    layers: int
    dense_bytes: int
    expert_bytes: int
    limit_bytes: int

    @property
    def over_bytes(self) -> int:
        """By how much it is over-full, 0 if it is not."""
        return max(0, self.dense_bytes + self.expert_bytes - self.limit_bytes)


@dataclass(frozen=True)
class RulesReport:
    """A placement by rules.

    Parameters
    ----------
    devices
        Cards in order, then the host.
    warnings
        Rules that find nothing, cards left without experts, devices that are over-full.
    pass_ns, tokens_per_s
        Estimated; None if something does not fit.
    """

    devices: tuple[DeviceReport, ...]
    warnings: tuple[str, ...]
    pass_ns: int | None
    tokens_per_s: float | None


def parse_rules(overrides: Sequence[str], n_cpu_moe: int = 0, layer_ids: Sequence[int] = ()) -> list[Rule]:
    """Rules from what the user wrote, in the order in which they count.

    Parameters
    ----------
    overrides
        `REGEX=DEVICE`, several separated by commas.
    n_cpu_moe
        The experts of the first so many layers of the model go to the CPU.
    layer_ids
        MoE layers as the model numbers them.

    Returns
    -------
    list[Rule]
        The rules.

    Raises
    ------
    SimError
        A rule without a device, an unknown device, a pattern that does not compile or does not come to an end on
        the names of tensors, more layers than there are.
    """
    rules = []
    for text in (part for given in overrides for part in _split(given)):
        pattern, equals, device = text.rpartition("=")
        found = _DEVICE.match(device.strip())
        if not equals or not pattern or found is None:
            raise SimError(f"rule {text!r}: expected REGEX=DEVICE with a device CPU or CUDA0, CUDA1, ...")
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise SimError(f"rule {text!r}: the pattern does not compile ({error})") from None
        rules.append(Rule(compiled, int(found[1]) if found[1] else CPU, text))
    _check_ends(rules, layer_ids)
    total = (layer_ids[-1] + 1) if layer_ids else n_cpu_moe
    if not 0 <= n_cpu_moe <= total:
        raise SimError(f"--n-cpu-moe {n_cpu_moe}: the model has {total} layers")
    pattern = r"blk\.{}\.ffn_(up|down|gate)_(ch|)exps"  # llama.cpp's own
    layers = range(n_cpu_moe)
    return rules + [Rule(re.compile(pattern.format(n)), CPU, f"--n-cpu-moe {n_cpu_moe}") for n in layers]


def _check_ends(rules: Sequence[Rule], layer_ids: Sequence[int]) -> None:
    """Try patterns that repeat more than once in another process: some take longer than anyone waits."""
    repeating = [rule for rule in rules if len(_REPEATS.findall(rule.pattern.pattern)) > 1]
    names = [tensor(layer_id, kind) for layer_id in layer_ids or range(1) for kind in KINDS]
    for rule in repeating:
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _TRY, rule.pattern.pattern], input="\n".join(names), text=True,
                check=True, timeout=_PATTERN_SECONDS, capture_output=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SimError(
                f"rule {rule.text!r}: the pattern takes more than {_PATTERN_SECONDS} s on the names of "
                "tensors; write it without repetitions inside repetitions"
            ) from None


def _split(text: str) -> list[str]:
    """Rules of one option: cut at commas that follow a device, since patterns may hold commas."""
    return [part for part in re.split(r"(?<==CPU),|(?<=\d),(?=[^,]*=)", text) if part]


def tensor(layer_id: int, kind: str) -> str:
    """Name of a stacked expert tensor."""
    return f"blk.{layer_id}.ffn_{kind}_exps.weight"


def place(geometry: ModelGeometry, rules: Sequence[Rule], home: Sequence[int]) -> list[tuple[int, int, int]]:
    """Device of the three tensors of each layer; `home` is the card of each layer.

    Parameters
    ----------
    geometry
        The model.
    rules
        From `parse_rules`; the first that matches counts.
    home
        (layers,) card that runs each layer.

    Returns
    -------
    list[tuple[int, int, int]]
        (layers,) devices of the three tensors, in the order of `KINDS`.

    Raises
    ------
    SimError
        A rule that names a card that is not there.
    """
    cards = max(home) + 1
    for rule in rules:
        if rule.device >= cards:
            raise SimError(f"rule {rule.text!r} names CUDA{rule.device}, but there are {cards} cards")
    found = []
    for layer_id, own in zip(geometry.layer_ids, home, strict=True):
        devices = [
            next((rule.device for rule in rules if rule.pattern.search(tensor(layer_id, kind))), own)
            for kind in KINDS
        ]
        found.append((devices[0], devices[1], devices[2]))
    return found


def report(problem: Problem, rules: Sequence[Rule], layers_each: Sequence[int]) -> RulesReport:
    """What a list of rules does on a machine.

    Parameters
    ----------
    problem
        The machine, its cards in the order CUDA0, CUDA1, ..., and the model.
    rules
        From `parse_rules`.
    layers_each
        Layers that run on each card (`-ts`), which is where their experts stay unless a rule moves them.

    Returns
    -------
    RulesReport
        Devices, warnings, and the estimated speed.

    Raises
    ------
    SimError
        Layer counts that do not add up, or a rule that names a card that is not there.
    """
    geometry, cards = problem.needs.geometry, problem.cards
    if len(layers_each) != len(cards) or sum(layers_each) != geometry.n_layers or min(layers_each) < 1:
        raise SimError(
            f"layers {list(layers_each)} on {len(cards)} cards: they must add up to {geometry.n_layers}"
        )
    home = [card for card, n in enumerate(layers_each) for _ in range(n)]
    placed = place(geometry, rules, home)
    held = [0] * (len(cards) + 1)
    for where, size in zip(placed, geometry.expert_bytes, strict=True):
        whole = geometry.experts * size
        for part, device in enumerate(where):
            held[device] += whole * (part + 1) // 3 - whole * part // 3
    devices: list[DeviceReport] = []
    first = 0
    for number, (card, n) in enumerate(zip(cards, layers_each, strict=True)):
        budget = problem.needs.budget(card, number, len(cards), first, first + n)
        devices.append(DeviceReport(card.name, n, budget.taken_bytes, held[number], card.usable_bytes))
        first += n
    other = problem.headroom_bytes + problem.needs.streamed_kv_bytes
    devices.append(DeviceReport(f"{problem.host.name} (RAM)", 0, other, held[CPU], problem.host.ram_bytes))
    warnings = _warnings(geometry, rules, devices)
    if any(device.over_bytes for device in devices):
        return RulesReport(tuple(devices), tuple(warnings), None, None)
    ns = _pass_ns(problem, placed, home)
    return RulesReport(tuple(devices), tuple(warnings), ns, problem.curve.tokens_a_pass * 1e9 / ns)


def _warnings(geometry: ModelGeometry, rules: Sequence[Rule], devices: Sequence[DeviceReport]) -> list[str]:
    names = [tensor(layer_id, kind) for layer_id in geometry.layer_ids for kind in KINDS]
    taken: set[str] = set()
    useful: dict[str, bool] = {}
    for rule in rules:
        matches = {name for name in names if rule.pattern.search(name)}
        useful[rule.text] = useful.get(rule.text, False) or bool(matches - taken)
        taken |= matches
    found = [f"rule {text!r} moves no expert tensor" for text, useful_ in useful.items() if not useful_]
    for number, device in enumerate(devices):
        place_ = f"{device.name} (CUDA{number})" if number < len(devices) - 1 else device.name
        if number < len(devices) - 1 and device.expert_bytes == 0:
            free = device.limit_bytes - device.dense_bytes
            found.append(f"{place_} keeps no experts though {max(0, free) / GIB:.1f} GiB are free")
        if device.over_bytes:
            found.append(
                f"{place_} is over-full by {device.over_bytes / GIB:.1f} GiB: {gib(device.expert_bytes)} of "
                f"experts beside {gib(device.dense_bytes)} do not fit into {gib(device.limit_bytes)}"
            )
    return found


def _pass_ns(problem: Problem, placed: Sequence[tuple[int, int, int]], home: Sequence[int]) -> int:
    """Time of a mean pass: each tensor is computed where it lies, one part after the other."""
    times = Planner(problem).times
    cards, geometry = problem.cards, problem.needs.geometry
    row_bytes = round(problem.curve.rows * geometry.token_handoff_bytes)
    ns = times.first_ns(cards[0]) + times.head_ns(cards[-1]) + times.overhead_ns
    for number in range(1, len(cards)):
        ns += handoff_ns(cards[number - 1], cards[number], row_bytes, p2p=problem.p2p)
    for layer, (devices, own) in enumerate(zip(placed, home, strict=True)):
        ns += times.fixed_ns(cards[own], layer)
        for device in dict.fromkeys(devices):
            share = devices.count(device) / 3
            if device == CPU:
                ns += round(share * times.experts_ns(cards[own], layer, 0))
            else:
                ns += round(share * times.experts_ns(cards[device], layer, geometry.experts))
                if device != own:  # there and back
                    ns += 2 * handoff_ns(cards[own], cards[device], row_bytes, p2p=problem.p2p)
    return ns


def write_rules(placement: Placement, geometry: ModelGeometry) -> tuple[list[str], str]:
    """A placement as options of llama.cpp: whole layers only, since experts of a layer cannot be divided there.

    Each card keeps the experts of as many of its last layers as fit; those of its first layers go to the CPU.

    Returns
    -------
    list of str, str
        The options, and one sentence on what the rules cannot say.
    """
    kept, moved = 0, []
    for stage in placement.stages:
        room = stage.budget.cache_bytes
        for layer in range(stage.end - 1, stage.first - 1, -1):
            whole = geometry.experts * geometry.expert_bytes[layer]
            if whole <= room:
                room -= whole
                kept += 1
            else:
                moved.append(geometry.layer_ids[layer])
                room = 0
    options = ["-ngl", "999"]
    if len(placement.stages) > 1:
        options += ["-ts", ",".join(str(n) for n in placement.layers_each)]
    if moved:
        layers = "|".join(str(layer) for layer in sorted(moved))
        options += ["-ot", rf"blk\.({layers})\.ffn_(gate|up|down)_exps=CPU"]
    whole_slots = kept * geometry.experts
    note = (
        f"fixed and by whole layers: {kept} of {geometry.n_layers} layers keep their experts on a card "
        f"({whole_slots:,} experts against {placement.slots:,} cached slots)"
    )
    return options, note
