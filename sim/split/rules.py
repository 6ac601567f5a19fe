"""Placements as llama.cpp writes them: `--n-cpu-moe N` and `-ot REGEX=DEVICE`, read.

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
        Simulated; None if something does not fit.
    estimated
        Whether estimated reads of the drive are in them.
    """

    devices: tuple[DeviceReport, ...]
    warnings: tuple[str, ...]
    pass_ns: int | None
    tokens_per_s: float | None
    estimated: bool = False


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
