"""The choices of one run, in one table: what every entrance takes, under which name, in which words.

`RunSpec` has one field a choice. Its metadata is the table: options of the command line, keys of scenario, sweep
and tune files and columns of the dataset are made from `CHOICES`, and `make_spec` is the one way from their words
to a checked `RunSpec`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import parse_size
from expert_residency.sim.choices.capacity import WAYS, Auto, Capacity
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.text import check_known
from expert_residency.toml import is_path

if TYPE_CHECKING:
    from expert_residency.hwmodels.profile import HardwareProfile
    from expert_residency.policies import Policy
    from expert_residency.traces import ModelGeometry

PolicyLike: TypeAlias = "str | Policy | type[Policy]"
HostMode = str
"""`name` or `name:param=value,...`, see `sim.timed.host.tiers`."""
StartState = Literal["cold", "warm", "carry"]
"""Page cache at the start: empty, the file read once from front to back, or as the run before left it."""
START_STATES = ("cold", "warm", "carry")


@dataclass(frozen=True)
class Kind:
    """One kind of value: how it is read from words or a typed value, and what it is elsewhere.

    Parameters
    ----------
    read
        Called with the choice's name and the value; raises a sentence.
    option
        Type of the option on the command line.
    column
        Arrow type of the column in a dataset.
    """

    read: Callable[[str, Any], Any]
    option: Any
    column: str


@dataclass(frozen=True)
class Choice:
    """One line of the table.

    Parameters
    ----------
    kind
        How values are read.
    help
        What it chooses, for people.
    unit
        Of the number, if it is one.
    option
        Whether it has an option of the command line.
    """

    kind: Kind
    help: str
    unit: str = ""
    option: bool = True


def _refused(name: str, value: Any, wanted: str) -> SimError:
    if isinstance(value, list | tuple) and len(value) == 1:  # an option of the command line is always a list
        (value,) = value
    return SimError(f"{name} is {value!r}, expected {wanted}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refused(name, value, "a name")
    return value


def _policy(name: str, value: Any) -> str:
    from expert_residency.policies import Policy, adopt, named

    if isinstance(value, Policy) or (isinstance(value, type) and issubclass(value, Policy)):
        return adopt(cast("Any", name), value)
    if not isinstance(value, str) or not value.strip():
        raise _refused(name, value, "a name, or in Python also a policy or its class")
    return named(cast("Any", name), value)


def read_names(name: str, value: Any) -> tuple[str, ...]:
    """Names, one a card: `a+b`, `3x a`, a list, or all of them; a file whose own name holds a plus stays whole.

    Raises
    ------
    SimError
        No name, or what is none.
    """
    found: list[str] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        whole = isinstance(item, str) and ("+" not in item or (item.endswith(".toml") and Path(item).is_file()))
        parts = [item] if whole or not isinstance(item, str) else [part.strip() for part in item.split("+")]
        found += [name for part in parts for name in _copies(part)]
    if not found or not all(isinstance(item, str) and item for item in found):
        raise _refused(name, value, "a name, or one a card: a list, or joined by +")
    return tuple(found)


def _copies(name: Any) -> list[Any]:
    """`3x p40` is that name three times."""
    said = re.fullmatch(r"([1-9])\s*x[\s-]*(\S.*)", name) if isinstance(name, str) and not is_path(name) else None
    return [said[2]] * int(said[1]) if said else [name]


def _counts(name: str, value: Any) -> tuple[int, ...]:
    found: list[Any] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        found += (
            [int(p) if p.strip().isdecimal() else p for p in item.split("+")] if isinstance(item, str) else [item]
        )
    if not found or not all(type(item) is int for item in found):
        raise _refused(name, value, "whole numbers, one a card: a list, or joined by +")
    return tuple(found)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(name, value, "true or false")
    return value


_LARGEST_BYTES = 1 << 60


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _refused(name, value, "a number")
    return float(value)


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _refused(name, value, "a whole number from 0")
    return value


def _bytes(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _refused(name, value, "bytes, or a size with its unit as in 64MiB")
    size = parse_size(value) if isinstance(value, str) else value
    if not 0 <= size <= _LARGEST_BYTES:
        raise _refused(name, value, f"0 to {_LARGEST_BYTES:,} bytes")
    return size


def _slots(name: str, value: Any) -> str:
    if type(value) is not int:
        raise _refused(name, value, "a whole number")
    if value < 0:
        raise SimError("a capacity cannot be negative")
    return f"{value}/layer"


def _cards(name: str, value: Any) -> list[str]:
    if not isinstance(value, list | tuple):
        raise _refused(name, value, "a list of sizes, one a card")
    return list(value)


def _table(name: str, value: Any) -> Capacity:
    if not isinstance(value, Mapping):
        raise _refused(name, value, "a table, as in vram = { context = 4096 }")
    return Capacity(auto=Auto.of(value))


TEXT = Kind(_text, str, "string")
POLICY = Kind(_policy, str, "string")
NAMES = Kind(read_names, list[str], "string")
COUNTS = Kind(_counts, list[str], "string")
FLAG = Kind(_flag, bool, "bool")
NUMBER = Kind(_number, float, "double")
COUNT = Kind(_count, int, "int64")
BYTES = Kind(_bytes, str, "int64")
CAPACITY = Kind(lambda _, value: Capacity.of(value), str, "string")


def _choice(kind: Kind, help: str, unit: str = "") -> dict[str, Choice]:  # noqa: A002 - the word that users know
    return {"choice": Choice(kind, help, unit)}


@dataclass(frozen=True, init=False)
class RunSpec:
    """Choices of one run, by name; everything that decides its result.

    A `RunSpec` is what it says: policies that an engine's preset would choose are taken by `RunSpec.for_engine`
    and by the command line and files (`make_spec`), not here.

    Parameters
    ----------
    hardware
        Profile names or files, one a card: `"rtx-5070"`, `"tesla-p40+tesla-p40"` or a sequence.
    capacity
        A `Capacity`, or its words: `"4000MiB"`, `"25%"`, `"32/layer"`, `"auto"`, `"16GiB+16GiB"` or a sequence.
    layers_each
        Layers of each card; all on the first by default.
    eviction, admission, prefetch, placement
        Policy specs, `name` or `name:param=value`; in Python also a policy or its class, which is then adopted
        under its name (`expert_residency.policies.adopt`). The placement defaults to the eviction policy's.
    engine, miss
        Preset, and a miss mode that overrides the preset's.
    host, start
        How the host holds the experts (`sim.timed.host.tiers`), and the state of the page cache at the start.
    p2p
        Whether cards hand over peer to peer, or through mapped host memory.
    insertion
        Where prefetched experts may go: `free`, `guarded:events=N`, `never-evict`, `staging:slots=N`, whose
        buffers come on top of the capacity, or `pages`.
    prefetch_bytes
        Most bytes that the prefetcher may ask for in one pass (a token, without speculation), or a size as
        `"64MiB"`; no limit by default.
    predict_us
        What one call of the prefetcher costs, in microseconds. Card and host stand still meanwhile: a predictor on
        the card takes its stream, one on the host keeps it from starting the next layer.
    depth, kv_type
        Tokens of context behind each request before the trace's first position, and how the engine stores a KV
        cell (`traces.session.KV_TYPES`): what attention reads (`sim.timed.attention`), and what capacity `auto`
        counts. Where nobody says it, as `auto:kv=` has it, else the engine's, else fp16.
    scope
        `global`, `layer` or `layer:PLACEMENT`, for a capacity in words; a `Capacity` has its own.

    Raises
    ------
    SimError
        Everything that is wrong with the values, at once; names are looked up when the run is prepared.
    """

    hardware: tuple[str, ...] = field(
        metadata=_choice(
            NAMES,
            "Machine profile, NAME or FILE.toml, or parts, CARD:cpu=NAME,ram=64GB@6000x2,link=4.0x8,drive=gen4 "
            "(residency list gpus, cpus); for several cards join them by +.",
        )
    )
    capacity: Capacity = field(
        metadata=_choice(
            CAPACITY,
            "Cache capacity: 4000MiB, 25% (of all experts), 32/layer (whole experts of every layer), auto (what "
            "VRAM leaves beside weights, context and reserve: auto:context=65536) or 16GiB+16GiB (one a card).",
        )
    )
    layers_each: tuple[int, ...] | None = field(
        metadata=_choice(COUNTS, "MoE layers of each card, as 24+24; all on the first by default.")
    )
    eviction: str = field(metadata=_choice(POLICY, "Eviction policy, NAME, NAME:param=value or module:Class."))
    admission: str = field(metadata=_choice(POLICY, "Admission policy: which misses may take a slot."))
    prefetch: str = field(metadata=_choice(POLICY, "Prefetch policy."))
    placement: str | None = field(
        metadata=_choice(
            POLICY, "Initial placement: which experts are resident at the start. The eviction policy's by default."
        )
    )
    engine: str = field(
        metadata=_choice(TEXT, "Engine preset, NAME or FILE.toml; its policies, scope and host hold unless given.")
    )
    miss: str | None = field(
        metadata=_choice(TEXT, "Who serves a miss: cpu, fetch, hybrid or stream. The preset's by default.")
    )
    host: HostMode = field(
        metadata=_choice(
            TEXT, "How the host holds the experts: arena, mmap, gguf-in-place, resident, budget:gib=N or flash."
        )
    )
    start: StartState = field(
        metadata=_choice(TEXT, "Page cache at the start: warm, cold, or carry where a scenario has several runs.")
    )
    p2p: bool = field(metadata=_choice(FLAG, "Cards hand over peer to peer, not through mapped host memory."))
    insertion: str = field(
        metadata=_choice(
            TEXT, "Where prefetched experts may go: free, guarded:events=N, never-evict, staging:slots=N or pages."
        )
    )
    prefetch_bytes: int | None = field(
        metadata=_choice(BYTES, "Most that may be prefetched in one pass, as 64MiB.", "bytes")
    )
    predict_us: float = field(metadata=_choice(NUMBER, "Cost of one prediction, of a layer.", "us"))

    depth: int = field(
        metadata=_choice(
            COUNT,
            "Context that each request has behind it before the trace begins: attention reads it in every pass.",
            "tokens",
        )
    )
    kv_type: str = field(metadata=_choice(TEXT, "How keys and values are stored: fp16, q8_0, int8, k8v4 or q4_0."))

    def __init__(
        self,
        hardware: str | Sequence[str],
        capacity: Capacity | str | Sequence[str],
        layers_each: str | Sequence[int] | None = None,
        eviction: PolicyLike = "lru",
        admission: PolicyLike = "always",
        prefetch: PolicyLike = "none",
        placement: PolicyLike | None = None,
        engine: str = "generic",
        miss: str | None = None,
        host: HostMode = "arena",
        start: StartState = "warm",
        p2p: bool = False,
        insertion: str = "free",
        prefetch_bytes: int | str | None = None,
        predict_us: float = 0.0,
        depth: int = 0,
        kv_type: str | None = None,
        *,
        scope: str | None = None,
    ) -> None:
        given = locals()
        problems = []
        for name, choice in FIELDS.items():
            value = given[name]
            try:
                if value is not None or DEFAULTS.get(name, "") is not None:
                    value = choice.kind.read(name, value)
                if name == "capacity":
                    value = Capacity.of(value, scope)
            except ValueError as error:
                problems.append(str(error))
            object.__setattr__(self, name, value)
        auto = None if problems else self.capacity.auto
        own = auto.kv if auto is not None else ""
        object.__setattr__(self, "kv_type", kv_type or own or KV_TYPE)
        if own and own != self.kv_type:
            problems.append(f"capacity auto:kv={own} beside KV type {kv_type}: a context is stored in one way")
        if problems:
            raise SimError("; ".join(problems))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for manifests."""
        plain = {k: (list(v) if isinstance(v, tuple) else v) for k, v in vars(self).items()}
        return plain | {"capacity": self.capacity.to_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RunSpec:
        """The choices that `to_dict` wrote.

        Raises
        ------
        SimError
            It wrote something else.
        """
        from expert_residency.policies.registry import KINDS, is_place

        try:
            places = [word for word in map(plain.get, KINDS) if isinstance(word, str) and is_place(word)]
            if places:  # whoever wrote a file of results does not say which code is run
                raise KeyError(f"{places[0]} is no name of a policy")
            return cls(**(dict(plain) | {"capacity": Capacity.from_dict(plain["capacity"])}))
        except (TypeError, KeyError, AttributeError) as error:
            raise SimError(f"not the choices of a run, as a manifest has them ({error})") from None

    @classmethod
    def for_engine(
        cls, engine: str, hardware: str | Sequence[str], capacity: Capacity | str | Sequence[str], **choices: Any
    ) -> RunSpec:
        """A run as an engine's preset has it: its policies, scope and host unless `choices` say otherwise.

        Parameters
        ----------
        engine
            Preset, NAME or FILE.toml.
        hardware, capacity
            As for `RunSpec`.
        choices
            Further fields, and `scope`.

        Raises
        ------
        SimError
            As `make_spec`.
        """
        own = {"engine": engine, "hardware": hardware, "capacity": capacity}
        return make_spec(own | choices)

    def settled(self, geometry: ModelGeometry, profiles: Sequence[HardwareProfile] | None = None) -> RunSpec:
        """The same run with its capacity in bytes or slots, as manifests have it.

        Parameters
        ----------
        geometry
            The model that runs.
        profiles
            Cards instead of those that `hardware` names.

        Raises
        ------
        SimError, HardwareError
            Shares that do not match the cards; for `auto`, a card or model that is not known or does not fit.
        """
        capacity = self.capacity
        if capacity.share is None and capacity.auto is None:
            return self
        each = self.layers_each or (geometry.n_layers,) + (0,) * (len(self.hardware) - 1)
        if sum(each) != geometry.n_layers or min(each) < 0 or len(each) != len(self.hardware):
            return self  # refused with the machine, in one place
        if capacity.auto is None:
            return replace(self, capacity=capacity.settled(geometry, each))
        from expert_residency.hwmodels.registry import load_profile
        from expert_residency.sim.choices.auto import left_on_cards

        cards = profiles or [load_profile(name) for name in self.hardware]
        auto = replace(capacity.auto, kv=self.kv_type)
        return replace(self, capacity=left_on_cards(replace(capacity, auto=auto), geometry, cards, each))


FIELDS: dict[str, Choice] = {f.name: f.metadata["choice"] for f in fields(RunSpec)}
"""The table: fields of `RunSpec`."""
DEFAULTS: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(RunSpec).parameters.items()
    if parameter.default is not inspect.Parameter.empty and name in FIELDS
}
CAPACITY_WAYS: dict[str, Choice] = {
    "capacity": FIELDS["capacity"],
    "slots_per_layer": Choice(Kind(_slots, int, "int32"), "The same as --capacity N/layer.", "experts"),
    "card_capacity": Choice(Kind(_cards, list[str], ""), "The same as --capacity A+B: one size a card."),
    "vram": Choice(Kind(_table, None, ""), "The same as capacity auto, its parameters as a table.", option=False),
}
"""Words for the capacity, of which a run has one."""
SCOPE = Choice(
    TEXT,
    "global (one pool a card), layer (an equal quota for each layer) or layer:PLACEMENT (quotas by its ranking: "
    "layer:hindsight, layer:prompt, layer:profile:file=PATH).",
)
CHOICES: dict[str, Choice] = {
    "hardware": FIELDS["hardware"], **CAPACITY_WAYS, "scope": SCOPE,
    **{name: choice for name, choice in FIELDS.items() if name not in ("hardware", "capacity")},
}  # fmt: skip
"""Every word that decides a run, in the order in which they are shown."""


def refuse_unknown(words: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that is none of `known`, naming what it may mean.

    Raises
    ------
    SimError
        For the first such key.
    """
    for key in words:
        check_known("choice", key, known)


def make_spec(words: Mapping[str, Any]) -> RunSpec:
    """The run that words ask for: those of an option, of a key of a file, or typed values of Python.

    Parameters
    ----------
    words
        Values by the names of `CHOICES`; None is not given. What is not given comes from the engine's preset if it
        names it, and is `RunSpec`'s default otherwise.

    Raises
    ------
    SimError
        An unknown name; hardware or capacity missing, or a capacity given in two ways; a value of the wrong kind.
    """
    from expert_residency.sim.choices.preset import load_engine

    refuse_unknown(words, list(CHOICES))
    given = {key: value for key, value in words.items() if value is not None}
    given = dict(load_engine(_text("engine", given.get("engine", DEFAULTS["engine"]))).policy) | given
    problems = [] if "hardware" in given else ["hardware is missing (residency list hardware)"]
    try:
        given["capacity"] = capacity = make_capacity(given)
        if capacity.auto is not None and capacity.auto.kv:
            given["kv_type"] = words.get("kv_type")  # before the engine's
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise SimError("; ".join(problems))
    return RunSpec(**{key: value for key, value in given.items() if key in FIELDS})


def make_capacity(words: Mapping[str, Any]) -> Capacity:
    """The capacity and scope that words ask for, however they say it.

    Parameters
    ----------
    words
        One of `CAPACITY_WAYS`, and `scope`; the rest is not looked at.

    Raises
    ------
    SimError, HardwareError
        No capacity or several, one that cannot be read, an unknown scope.
    """
    ways = {key: words[key] for key in CAPACITY_WAYS if words.get(key) is not None}
    if not ways:
        raise SimError(f"capacity is missing: give one of {WAYS}")
    if len(ways) > 1:
        raise SimError(f"{' and '.join(ways)} are both given: a run has one capacity")
    ((way, asked),) = ways.items()
    return Capacity.of(CAPACITY_WAYS[way].kind.read(way, asked), words.get("scope"))
