"""Timelines: Chrome trace JSON, written as the run goes, that opens in Perfetto.

Slices carry the MoE layer and expert as the model numbers them. Times are microseconds with three decimals, so
that no nanosecond is lost.

Above the tracks of what works stand requests, tokens and passes, so that a slow token is found by its width. Three
counters stand below: hits and misses of each event, copies that each link has before it by class, and their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from expert_residency.files import atomic
from expert_residency.policies.protocol import Event
from expert_residency.sim.timed.channels.copy_engine import CLASSES, Batch
from expert_residency.sim.timed.channels.cpu import Segment
from expert_residency.sim.timed.channels.disk import Read
from expert_residency.sim.timed.watch import Watch
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace

TRACKS = (
    ("request", "requests"),
    ("token", "tokens"),
    ("pass", "passes"),
    ("GPU", "GPU {}: computing"),
    ("H2D card", "PCIe to card {}: experts in"),
    ("D2H card", "PCIe from card {}: results, victims out"),
    ("CPU pool", "CPU pool: experts in RAM"),
    ("disk lane", "disk, lane {}: reads"),
    ("host plan", "host: router, planning"),
)
"""Tracks from top to bottom: how the engine calls them, and how a person reads them."""
FILLING = "slots being filled"
HITS = "hits and misses of an event"
QUEUE = "copies before {}"
BYTES = "bytes before {}"
Pass = tuple[int, str, int]
"""Request, phase and tokens of a pass."""


def passes_of(trace: RoutingTrace) -> list[Pass]:
    """What a timeline says of each pass."""
    names = [Phase(phase).name.lower() for phase in trace.pass_phase.tolist()]
    return list(zip(trace.pass_request.tolist(), names, trace.pass_emits.tolist(), strict=True))


class Timeline(Watch):
    """Writes slices to a file; a context manager. The file appears whole, under its name, at the end.

    Parameters
    ----------
    path
        File to write.
    geometry
        Names layers and experts.
    title
        Shown as the process name.
    passes
        Request, phase and tokens of each pass.
    """

    def __init__(
        self, path: str | Path, geometry: ModelGeometry, title: str, *, passes: Sequence[Pass] = ()
    ) -> None:
        self.path = Path(path)
        self.geometry = geometry
        self.title = title
        self._files = ExitStack()
        self._stream: IO[str] | None = None
        self._tracks: dict[str, int] = {}
        self._lanes: dict[str, list[int]] = {}
        self.passes = passes
        self._tokens = 0
        self._request: tuple[int, int, int] | None = None
        """Number, begin and end of the request whose passes are under way."""

    def __enter__(self) -> Timeline:
        with self._files as files:
            part = files.enter_context(atomic(self.path))
            self._stream = files.enter_context(part.open("w", encoding="utf-8"))
            files.callback(self._stream.write, "\n]}\n")
            self._stream.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            self._write(_meta("process_name", 0, self.title), first=True)
            self._files = files.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end_request()
        self._files.__exit__(kind, error, trace)

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """One slice on a track; empty ones are left out.

        Parameters
        ----------
        track
            Name of the track.
        name
            Of the slice.
        start_ns, end_ns
            When it begins and ends.
        args
            Shown when it is clicked.
        """
        if end_ns <= start_ns:
            return
        event = {
            "ph": "X",
            "pid": 0,
            "tid": self._track(track),
            "name": name,
            "ts": start_ns / 1000,
            "dur": (end_ns - start_ns) / 1000,
        }
        if args:
            event["args"] = args
        self._write(event)

    def transfer(self, track: str, what: Batch | Segment | Read, start_ns: int, end_ns: int) -> None:
        """A transfer that has ended, from a channel.

        Parameters
        ----------
        track
            Name of the track.
        what
            What was moved.
        start_ns, end_ns
            When it began and ended.
        """
        if isinstance(what, Segment):
            experts = [key % self.geometry.experts for key in what.keys]
            places = [f"L{self.geometry.layer_of_key(key)[0]}" for key in what.keys[:1]]
            name = " ".join([what.label or "experts", *places])
            self.slice(track, name, start_ns, end_ns, experts=experts, bytes=what.nbytes)
            return
        if isinstance(what, Batch):
            at = what.landed - 1
            layer, expert = self.geometry.layer_of_key(what.keys[at])
            name = f"{CLASSES[what.priority]} L{layer} E{expert}"
            self.slice(
                track, name, start_ns, end_ns, bytes=what.nbytes[at], queued_us=(start_ns - what.asked) / 1000
            )
        else:
            layer, expert = self.geometry.layer_of_key(what.key)
            lane = self._lane(track, start_ns, end_ns)
            self.slice(f"{track} lane {lane}", f"read L{layer} E{expert}", start_ns, end_ns, bytes=what.nbytes)

    def filling(self, now_ns: int, slots: int) -> None:
        """So many slots have an expert on its way that nobody waits for yet."""
        self._count(FILLING, now_ns, slots=slots)

    def queue(self, link: str, now_ns: int, waiting: Sequence[int], nbytes: int) -> None:
        """Copies that a link has before it.

        Parameters
        ----------
        link, now_ns
            Name of the link, and the time.
        waiting
            Copies of each class, the one in service included.
        nbytes
            Their bytes.
        """
        self._count(QUEUE.format(link), now_ns, **dict(zip(CLASSES, waiting, strict=True)))
        self._count(BYTES.format(link), now_ns, bytes=nbytes)

    def decided(self, event: Event, ready: Sequence[int], admitted: Sequence[int], now_ns: int) -> None:
        """Hits that are ready, and the rest of the event.

        Parameters
        ----------
        event
            The event, with its hits.
        ready
            Keys that are ready on the card.
        admitted
            Positions of misses that may take a slot.
        now_ns
            The time.
        """
        self._count(HITS, now_ns, hits=len(ready), misses=len(event.keys) - len(ready))

    def pass_done(self, number: int, start_ns: int, end_ns: int) -> None:
        """Slices of the pass, its tokens, and of a request that has ended.

        Parameters
        ----------
        number
            Of the pass.
        start_ns, end_ns
            When it began and ended.
        """
        if number >= len(self.passes):
            return
        request, phase, tokens = self.passes[number]
        self.slice("pass", f"pass {number} {phase}", start_ns, end_ns, request=request, tokens=tokens)
        if tokens:
            first, self._tokens = self._tokens, self._tokens + tokens
            name = f"token {first}" if tokens == 1 else f"tokens {first}-{self._tokens - 1}"
            self.slice("token", name, start_ns, end_ns, of_pass=number)
        if self._request is None or self._request[0] != request:
            self._end_request()
            self._request = request, start_ns, end_ns
        self._request = request, self._request[1], end_ns

    def _end_request(self) -> None:
        if self._request is not None:
            number, start_ns, end_ns = self._request
            self.slice("request", f"request {number}", start_ns, end_ns)

    def _count(self, name: str, now_ns: int, **values: int) -> None:
        self._write({"ph": "C", "pid": 0, "name": name, "ts": now_ns / 1000, "args": values})

    def _lane(self, track: str, start_ns: int, end_ns: int) -> int:
        """First lane of the track that was free at the start."""
        ends = self._lanes.setdefault(track, [])
        for lane, end in enumerate(ends):
            if end <= start_ns:
                ends[lane] = end_ns
                return lane
        ends.append(end_ns)
        return len(ends) - 1

    def _track(self, name: str) -> int:
        if name not in self._tracks:
            tid = self._tracks[name] = len(self._tracks) + 1
            kind, _, number = name.rpartition(" ") if name[-1].isdigit() else (name, "", "")
            place = [known for known, _ in TRACKS].index(kind)
            order = 100 * place + int(number or 0)
            self._write(_meta("thread_name", tid, TRACKS[place][1].format(number)))
            self._write(
                {"ph": "M", "pid": 0, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": order}}
            )
        return self._tracks[name]

    def _write(self, event: dict[str, Any], *, first: bool = False) -> None:
        assert self._stream is not None
        self._stream.write(("" if first else ",\n") + json.dumps(event, separators=(",", ":")))


def _meta(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": tid, "name": kind, "args": {"name": name}}
