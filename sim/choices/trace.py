"""Which trace: a file or a bundled one, with the byte sizes that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.sim.choices.synthetic import PREFIX, SEED, TOKENS, synthetic_trace, table_of
from expert_residency.text import check_known

if TYPE_CHECKING:  # the commands name these functions, and their help should not wait for numpy
    from expert_residency.traces import ModelGeometry, RoutingTrace

NO_FILE = ("bundled:", PREFIX)
"""Words that stand for a trace which is no file."""
PHASES = ("prefill", "decode", "verify")
"""Names of `traces.Phase`, whose module loads numpy, in the order of their numbers."""
MOST_REQUESTS = 1 << 20


@dataclass(frozen=True)
class Reading:
    """How a trace is read, and which of it.

    Parameters
    ----------
    options
        Of the format's reader, by name; values may be texts.
    partial
        Take what is whole of a file that is cut off, and the layers that it has.
    join
        Of several files: `recorded` or `file`, as `read_trace` has it.
    requests
        Numbers of the requests to take, such as `0,3..5`; None for all.
    phase
        Only passes of this phase; None for all.
    top_k
        Experts a token in the recorded run, where the format does not say it; where it does, they must be equal.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False
    join: str = "recorded"
    requests: str | None = None
    phase: str | None = None
    top_k: int | None = None

    @classmethod
    def of_table(cls, given: object) -> Reading:
        """From a table of a scenario or sweep file, with these names; None is nothing.

        Raises
        ------
        SimError
            Another name, or a value of another kind.
        """
        if isinstance(given, cls):
            return given
        kinds: dict[str, type | tuple[type, ...]] = {
            "options": dict, "partial": bool, "join": str, "requests": (str, int), "phase": str,
            "top_k": int,
        }  # fmt: skip
        if not isinstance(given, Mapping | None):
            raise SimError(f"reading is {given!r}, expected a table of {', '.join(kinds)}")
        for name, value in (given or {}).items():
            check_known("key of reading", name, kinds)
            if not isinstance(value, kinds[name]):
                raise SimError(f"reading: {name} is {value!r}, which is of another kind")
        table: dict[str, Any] = dict(given or {})
        if "requests" in table:
            table["requests"] = str(table["requests"])
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        """What `of_table` reads; without what is as by default."""
        plain = {name: getattr(self, name) for name in ("partial", "join", "requests", "phase", "top_k")}
        found = {name: value for name, value in plain.items() if value != getattr(Reading(), name)}
        return found | ({"options": dict(self.options)} if self.options else {})

    def words(self) -> dict[str, Any]:
        """Keyword arguments of `read_trace`."""
        own_k = {} if self.top_k is None else {"top_k": self.top_k}
        return {"partial": self.partial, "join": self.join} | dict(self.options) | own_k

    def of(self, trace: RoutingTrace) -> RoutingTrace:
        """The part of a trace that is meant.

        Raises
        ------
        SimError
            A request or phase that the trace lacks, or words that are neither.
        """
        return selected(trace, self.requests, self.phase)


def open_trace(
    source: str | Sequence[str],
    fmt: str | None,
    model: str | ModelGeometry | None,
    reading: Reading | None = None,
) -> RoutingTrace:
    """Trace from a file, several of them, a pattern, `bundled:NAME` or `synthetic:STYLE:tokens=300,seed=2`.

    Parameters
    ----------
    source
        What the user typed.
    fmt
        Name of a reader; sniffed if None.
    model
        Replaces the trace's byte sizes where it has its own.
    reading
        How to read it, and which requests and phase of it.

    Returns
    -------
    RoutingTrace
        The trace.

    Raises
    ------
    SimError, TraceError
        A format or a reader's options beside a bundled trace, a model of another shape, a part that the trace
        lacks, what cannot be read.
    """
    from expert_residency.traces import load_model, read_trace

    geometry = load_model(model) if isinstance(model, str) and model else model or None
    reading = reading or Reading()
    sources = [source] if isinstance(source, str) else list(source)
    if len(sources) == 1 and sources[0].startswith(NO_FILE):
        no_file = {"--format": fmt is not None, "--partial": reading.partial, "--join": reading.join != "recorded"}
        no_file["--top-k"] = reading.top_k is not None
        no_file |= {f"-o {name}": True for name in reading.options}
        if useless := [option for option, is_given in no_file.items() if is_given]:
            raise SimError(f"{useless[0]}: {sources[0]} has a format of its own; it goes with a file")
        trace = _no_file(sources[0], geometry)
    else:
        given = sources[0] if len(sources) == 1 else sources
        trace = read_trace(given, format=fmt, model=geometry, **reading.words())
    cut = geometry is not None and trace.geometry.name.startswith(f"{geometry.name} (")
    if geometry is not None and geometry.label != trace.geometry.label and not cut:
        trace = fit_geometry(trace, geometry)
    return reading.of(trace)


def _no_file(source: str, geometry: ModelGeometry | None) -> RoutingTrace:
    from expert_residency.traces.bundled import load

    if source.startswith(PREFIX):
        return synthetic_trace(table_of(source), geometry)
    return load(source.removeprefix("bundled:"))


def selected(trace: RoutingTrace, requests: str | None = None, phase: str | None = None) -> RoutingTrace:
    """The passes of some requests, and of one phase, of a trace.

    Parameters
    ----------
    trace
        The whole.
    requests
        Numbers such as `2`, `0,3` or `0..9`; None for all.
    phase
        prefill, decode or verify; None for all.

    Returns
    -------
    RoutingTrace
        Its passes renumbered, its requests as they were; the trace itself where nothing is left out.

    Raises
    ------
    SimError
        Words that are no numbers, or a request or phase that the trace lacks.
    """
    import numpy as np

    wanted = np.ones(trace.n_passes, dtype=bool)
    if requests is not None:
        there = set(trace.pass_request.tolist())
        chosen = _numbers(requests)
        lacking = sorted(number for number in chosen if number not in there)
        if lacking:
            raise SimError(f"requests {requests}: the trace has no request {lacking[0]} (it has {_span(there)})")
        wanted &= np.isin(trace.pass_request, sorted(chosen))
    if phase is not None:
        present = [one for one in PHASES if (trace.pass_phase == PHASES.index(one)).any()]
        check_known("phase", phase, PHASES)
        if phase not in present:
            raise SimError(f"the trace has no phase {phase!r} (it has: {', '.join(present)})")
        wanted &= trace.pass_phase == PHASES.index(phase)
    if wanted.all():
        return trace
    if not wanted.any():
        raise SimError(f"requests {requests} have no {phase} pass")
    return trace.select_passes(wanted)


def _numbers(text: str) -> set[int]:
    """`0,3..5` as numbers."""
    found: set[int] = set()
    for part in text.split(","):
        low, dots, high = part.strip().partition("..")
        if not low.isdecimal() or (dots and not high.isdecimal()):
            raise SimError(f"requests {text!r}: expected numbers such as 2, 0,3 or 0..9")
        first, last = int(low), int(high or low)
        if last < first or last - first > MOST_REQUESTS:
            raise SimError(f"requests {text!r}: {part.strip()} is no range")
        found |= set(range(first, last + 1))
    return found


def _span(numbers: set[int]) -> str:
    few = sorted(numbers)
    return ", ".join(map(str, few)) if len(few) < 9 else f"{few[0]}..{few[-1]}, {len(few)} of them"


def reader_options(words: Sequence[str]) -> dict[str, Any]:
    """Options of a reader from `name=value` each.

    Raises
    ------
    SimError
        No name or value, or a name that is given twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals or name in found:
            raise SimError(f"-o {word}: expected NAME=VALUE, each name once")
        found[name] = value
    return found


def fit_geometry(trace: RoutingTrace, model: ModelGeometry) -> RoutingTrace:
    """The same routing with another model's byte sizes.

    Raises
    ------
    SimError
        If the layers or expert counts differ.
    """
    own = trace.geometry
    if (model.n_layers, model.experts) != (own.n_layers, own.experts):
        raise SimError(
            f"model {model.label} has {model.n_layers} x {model.experts} experts, the trace of {own.label} has "
            f"{own.n_layers} x {own.experts}"
        )
    return replace(trace, geometry=replace(model, top_k=own.top_k))


def routing_of(
    model: str | None,
    source: str | None = None,
    fmt: str | None = None,
    *,
    quant: str | None = None,
    passes: int | None = None,
) -> RoutingTrace:
    """Routing for a model: the trace asked for, its bundled one, or a synthetic one of its shape and style.

    Parameters
    ----------
    model
        NAME, NAME/QUANT or file; None for that of the trace.
    source, fmt
        Trace as of `open_trace`, or None.
    quant
        Of the model, beside its name.
    passes
        The first so many passes only; None for all.

    Returns
    -------
    RoutingTrace
        With the model's byte sizes.

    Raises
    ------
    SimError, TraceError
        As `open_trace`; neither a model nor a trace.
    """
    import numpy as np

    from expert_residency.traces import load_model
    from expert_residency.traces.geometry import read_model
    from expert_residency.traces.synthetic import generate, load_style

    if source is None and model is None:
        raise SimError("which model? give --model, or a trace that has its sizes")
    geometry = None if model is None else load_model(model, quant)
    if source is None:
        file = read_model(str(model))
        source = f"bundled:{file.trace}" if file.trace is not None else None
    if source is not None:
        trace = open_trace(source, fmt, geometry)
    else:
        assert geometry is not None
        trace = generate(geometry, load_style(file.style), tokens=TOKENS, seed=SEED, weights=False)
    return trace if passes is None else trace.select_passes(np.arange(trace.n_passes) < passes)
