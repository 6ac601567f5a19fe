"""The choices of one run: everything that decides its result, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from expert_residency.errors import SimError
from expert_residency.sim.choices.capacity import Capacity, check_capacity
from expert_residency.sim.choices.preset import load_engine

HostMode = str
"""`name` or `name:param=value,...`, see `sim.timed.host.tiers`."""
StartState = Literal["cold", "warm", "carry"]
"""Page cache at the start: empty, the file read once from front to back, or as the run before left it."""
START_STATES = ("cold", "warm", "carry")


@dataclass(frozen=True)
class RunSpec:
    """Choices of one run, by name; everything that decides its result.

    Parameters
    ----------
    hardware
        Profile names or paths, one a card.
    capacity
        Room for experts.
    layers_each
        Layers of each card; all on the first by default.
    eviction, admission, prefetch, placement
        Policy specs, `name` or `name:param=value`. The placement defaults to the eviction policy's.
    engine, miss
        Preset, and a miss mode that overrides the preset's.
    host, start
        How the host holds the experts (`sim.timed.host.tiers`), and the state of the page cache at the start.
    insertion
        Where prefetched experts may go: `free`, `guarded:events=N`, `never-evict` or `staging:slots=N`, whose
        buffers come on top of the capacity.
    prefetch_bytes
        Most bytes that the prefetcher may ask for in one pass (a token, without speculation); no limit by default.
    predict_us
        What one call of the prefetcher costs. Card and host stand still meanwhile: a predictor on the card takes
        its stream, one on the host keeps it from starting the next layer.
    p2p
        Whether cards hand over peer to peer, or through mapped host memory.
    """

    hardware: tuple[str, ...]
    capacity: Capacity
    layers_each: tuple[int, ...] | None = None
    eviction: str = "lru"
    admission: str = "always"
    prefetch: str = "none"
    placement: str | None = None
    engine: str = "generic"
    miss: str | None = None
    host: HostMode = "arena"
    start: StartState = "warm"
    p2p: bool = False
    insertion: str = "free"
    prefetch_bytes: int | None = None
    predict_us: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.hardware, tuple):
            raise SimError(f"hardware {self.hardware!r}: expected a tuple of profile names, as in ('rtx-5070',)")
        if not isinstance(self.layers_each, tuple | None):
            raise SimError(f"layers_each {self.layers_each!r}: expected a tuple of whole numbers, as in (24, 24)")
        check_capacity(self.capacity)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for manifests."""
        plain = {k: (list(v) if isinstance(v, tuple) else v) for k, v in vars(self).items()}
        return plain | {"capacity": vars(self.capacity)}

    @classmethod
    def for_engine(cls, engine: str, hardware: tuple[str, ...], capacity: Capacity, **choices: Any) -> RunSpec:
        """A run as an engine's preset has it: its policies, scope and host unless `choices` say otherwise."""
        policy = dict(load_engine(engine).policy)
        scope = choices.pop("scope", policy.pop("scope", capacity.scope))
        own: dict[str, Any] = policy | choices
        return cls(hardware, replace(capacity, scope=scope), engine=engine, **own)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RunSpec:
        """The choices that `to_dict` wrote."""
        data: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        room: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain["capacity"].items()}
        data["capacity"] = Capacity(**room)
        return cls(**data)
