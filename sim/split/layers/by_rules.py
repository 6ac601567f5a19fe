"""What a list of llama.cpp's rules does on a machine: what lies where, what is over-full, how fast it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.runs.interval import TEXT_SD, Interval, Machine, around
from expert_residency.sim.split.interval import drawn_costs, machine_of
from expert_residency.sim.split.layers.division import ALL, HOST, devices
from expert_residency.sim.split.layers.placement import LayerProblem, third_bytes
from expert_residency.sim.split.layers.times import THIRDS, Parts
from expert_residency.sim.split.memory import fitting_headroom, gib
from expert_residency.sim.split.rules import CPU, KINDS, DeviceReport, Rule, RulesReport, place, tensor
from expert_residency.traces import ModelGeometry


def report(
    problem: LayerProblem, rules: Sequence[Rule], shares: Sequence[float] | None = None, ngl: int = ALL
) -> RulesReport:
    """What rules do.

    Parameters
    ----------
    problem
        The machine, its cards in the order CUDA0, CUDA1, ..., and the model.
    rules
        From `parse_rules`.
    shares, ngl
        `-ts` and `-ngl`; without shares the cards' free memory, as llama.cpp takes it.

    Returns
    -------
    RulesReport
        Devices, warnings, and the simulated speed if everything has room.

    Raises
    ------
    SimError
        Shares or rules that name a card that is not there, or a card without a layer.
    """
    geometry, cards, costs = problem.geometry, problem.cards, problem.costs
    if shares is None:
        shares = [costs.cards[card].gpu.vram_usable_bytes / GIB for card in cards]
    every, output = devices(problem.total_layers, len(cards), shares, ngl)
    home = [every[layer_id] for layer_id in geometry.layer_ids]
    host_layers = home.count(HOST)
    for number, card in enumerate(cards):
        if number not in home:
            raise SimError(
                f"{card} (CUDA{number}) gets no layer by -ts and -ngl: leave it out, or give it a share"
            )
    placed = place(geometry, rules, home)
    held = [0] * len(cards)
    in_ram = problem.dense_on_host(host_layers, head=output == HOST)
    for layer, where in enumerate(placed):
        for number in range(len(cards)):
            held[number] += third_bytes(geometry, layer, where.count(number))
        whole = geometry.experts * geometry.expert_bytes[layer]
        in_ram += whole - sum(third_bytes(geometry, layer, where.count(n)) for n in range(len(cards)))
    found, first = [], host_layers
    for number, card in enumerate(cards):
        end = first + home.count(number)
        budget = problem.budget(card, first, end, output=output != HOST)
        found.append(DeviceReport(card, end - first, budget.taken_bytes, held[number], budget.usable_bytes))
        first = end
    room = problem.room_beside(host_layers)
    free = problem.ram_bytes - problem.room_bytes
    beside = free + problem.context_on_host(host_layers)
    limit = max(problem.ram_bytes, in_ram + beside) if problem.mapped and room else problem.ram_bytes
    found.append(DeviceReport(f"{costs.host.name} (RAM)", host_layers, beside, in_ram, limit))
    warnings = _warnings(geometry, rules, found)
    if found[-1].over_bytes and (advice := fitting_headroom(problem.ram_bytes, in_ram + beside - free)):
        warnings.append(f"{gib(free)} of memory stay free: {advice} would leave room")
    if any(device.over_bytes for device in found):
        return RulesReport(tuple(found), tuple(warnings), None, None)
    parts = _parts(problem, placed, home, output)
    if in_ram > room:
        thirds = [THIRDS - where.count(CPU) for where in placed]
        parts += Parts(on_cpu=costs.drive_ns(thirds, host_layers, in_ram, room))
        warnings.append(
            f"{gib(in_ram - room)} of what the CPU reads do not fit into memory; reads of the drive are estimated"
        )
    return RulesReport(
        tuple(found),
        tuple(warnings),
        round(parts.ns / len(costs.passes)),
        costs.tokens * 1e9 / parts.ns,
        in_ram > room,
    )


def rules_interval(
    problem: LayerProblem, rules: Sequence[Rule], shares: Sequence[float] | None = None, ngl: int = ALL
) -> Interval | None:
    """Where the speed of a placement by rules lies in nine of ten cases.

    Parameters
    ----------
    problem, rules, shares, ngl
        As `report` takes them.

    Returns
    -------
    Interval or None
        None if something does not fit.

    Raises
    ------
    SimError
        As `report`.
    """
    base = report(problem, rules, shares, ngl).tokens_per_s
    if base is None:
        return None

    def speed(drawn: Machine) -> float:
        costs = drawn_costs(problem.costs, drawn)
        return report(replace(problem, costs=costs), rules, shares, ngl).tokens_per_s or 0.0

    return around(base, speed, machine_of(problem.costs), workload=TEXT_SD)


def _parts(
    problem: LayerProblem, placed: Sequence[tuple[int, int, int]], home: Sequence[int], output: int
) -> Parts:
    """Time of all passes: each tensor is computed where it lies, one part after the other."""
    costs, cards = problem.costs, problem.cards
    parts = costs.ends(cards[0], None if output == HOST else cards[output])
    for number in range(1, len(cards)):
        parts += costs.handoff(cards[number - 1], cards[number])
    for layer, (where, own) in enumerate(zip(placed, home, strict=True)):
        if own == HOST:
            parts += costs.on_host(layer)
            continue
        parts += costs.layer(cards[own], layer, THIRDS - where.count(CPU))
        for other in {device for device in where if device not in (own, CPU)}:
            there = costs.layer(cards[other], layer, where.count(other)).on_card
            here = costs.layer(cards[own], layer, where.count(other)).on_card
            parts += Parts(on_card=there - here) + costs.expert_trip(cards[own], cards[other])
    return parts


def _warnings(geometry: ModelGeometry, rules: Sequence[Rule], found: Sequence[DeviceReport]) -> list[str]:
    names = [tensor(layer_id, kind) for layer_id in geometry.layer_ids for kind in KINDS]
    taken: set[str] = set()
    useful: dict[str, bool] = {}
    for rule in rules:
        matches = {name for name in names if rule.pattern.search(name)}
        useful[rule.text] = useful.get(rule.text, False) or bool(matches - taken)
        taken |= matches
    said = [f"rule {text!r} moves no expert tensor" for text, moves in useful.items() if not moves]
    for number, device in enumerate(found):
        place_ = f"{device.name} (CUDA{number})" if number < len(found) - 1 else device.name
        if number < len(found) - 1 and device.expert_bytes == 0:
            free = device.limit_bytes - device.dense_bytes
            said.append(f"{place_} keeps no experts though {max(0, free) / GIB:.1f} GiB are free")
        if device.over_bytes:
            said.append(
                f"{place_} is over-full by {device.over_bytes / GIB:.1f} GiB: {gib(device.expert_bytes)} of "
                f"experts beside {gib(device.dense_bytes)} do not fit into {gib(device.limit_bytes)}"
            )
    return said
