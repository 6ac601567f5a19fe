"""The leaderboard: means and intervals, strangers' policies, what is left out, the page."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import EvictionPolicy
from expert_residency.sim.cli import main
from expert_residency.sim.report.leaderboard import inert, page
from expert_residency.sim.studies.leaderboard import BASELINE, Entrant, entrant_of, leaderboard, registered
from expert_residency.sim.studies.leaderboard.runs import shortened
from expert_residency.sim.studies.leaderboard.times import Times, real
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder, write_parquet

STRANGER = '''
from dataclasses import dataclass, field
from typing import ClassVar

from expert_residency.policies import AdmissionPolicy, EvictionPolicy


@dataclass
class State:
    members: set = field(default_factory=set)
    last: dict = field(default_factory=dict)
    scope_of: list = field(default_factory=list)


@dataclass(frozen=True)
class Mru(EvictionPolicy):
    """Most recently used expert leaves first."""

    name: ClassVar[str] = "mru"
    source: ClassVar[str] = "a stranger"
    skip: int = 0

    def start(self, pool, alloc, future):
        return State(scope_of=pool.scope_of)

    @staticmethod
    def learn(state, event):
        for key in event.keys:
            state.last[key] = event.number

    @staticmethod
    def insert(state, key):
        state.members.add(key)

    @staticmethod
    def remove(state, key):
        state.members.discard(key)

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        free = [k for k in state.members if state.scope_of[k] == scope and guard[k] < tick]
        return max(free, key=lambda k: (state.last.get(k, -1), k), default=-1)


@dataclass(frozen=True)
class Clumsy(Mru):
    """Fails when it must decide."""

    name: ClassVar[str] = "clumsy"

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        raise RuntimeError("no idea")


@dataclass(frozen=True)
class Nobody(AdmissionPolicy):
    """No miss is admitted."""

    name: ClassVar[str] = "nobody"
    source: ClassVar[str] = "a stranger"

    def start(self, pool, alloc):
        return ()

    @staticmethod
    def select(state, event, misses, n):
        return 0


class NoPolicy:
    pass
'''


def recorded(seed: int, name: str = "one", requests: int = 3, tokens: int = 8) -> RoutingTrace:
    """Requests of which each likes other experts."""
    sizes = (2_000_000,) * 3
    geometry = ModelGeometry(name, (0, 1, 2), 8, 2, sizes, (1_000_000,) * 3, hidden_size=64, quant_family="q4")
    draw = np.random.default_rng(seed)
    builder = TraceBuilder(geometry)
    for request in range(requests):
        liked = draw.dirichlet(np.full(8, 0.5), 3)
        for _ in range(tokens):
            builder.begin_pass(Phase.DECODE, request=request)
            for layer in range(3):
                builder.row(layer, draw.choice(8, 2, replace=False, p=(liked[layer] + 0.01) / 1.08).tolist())
    return builder.build()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a stranger's package in a folder of its own, which is where we are; two traces lie there too."""
    name = f"stranger_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(STRANGER)
    write_parquet(recorded(1), tmp_path / "chat.parquet")
    write_parquet(recorded(2, "two"), tmp_path / "code.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


TRACES = {"chat": recorded(1), "code": recorded(2, "two"), "more": recorded(3, "two")}
CHOICES = {"hardware": ["tesla-p40", "rtx-3070"], "capacity": ["40%"], "miss": ["fetch", "cpu"]}
FIELD = ["lfru", "random", "two-hit", "min"]
SMALL = "--hardware tesla-p40 --capacity 40% --miss fetch --workers 1"


@pytest.fixture(scope="module")
def board() -> Any:
    return leaderboard(TRACES, FIELD, CHOICES, workers=1)


def run(capsys: pytest.CaptureFixture[str], words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["leaderboard", *words.split()])
    said = capsys.readouterr()
    assert stopped.value.code in (0, None), said.err
    return said.out


def refused(capsys: pytest.CaptureFixture[str], words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["leaderboard", *words.split()])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said.count("\n") == 1
    return said


def test_speeds_are_means_over_cases_then_models(board: Any) -> None:
    frame = board.result.frame
    frame = frame.assign(name=[f"{a} {b}" for a, b in zip(frame["eviction"], frame["admission"], strict=True)])
    names = {"lru": "lru always", "lru, admission two-hit": "lru two-hit"}
    for row in [*board.ranked, *board.bounds]:
        label = row.entrant.label
        own = frame[frame["name"] == names.get(label, f"{label} always")]
        base = frame[frame["name"] == "lru always"]
        logs = {}
        for model, mine in own.groupby("model"):
            per_case = []
            for (machine, miss), cells in mine.groupby(["hardware", "miss"]):
                theirs = base[(base.model == model) & (base.hardware == machine) & (base.miss == miss)]
                per_case.append(np.log(theirs["decode_ns"].sum() / cells["decode_ns"].sum()))
            logs[model] = np.mean(per_case)
        assert row.ratio == pytest.approx(np.exp(np.mean(list(logs.values()))), rel=1e-12)
        assert row.hit_rate == pytest.approx(own.groupby("model")["hit_rate"].mean().mean())
        faster = [a < b for a, b in zip(own["decode_ns"], base["decode_ns"], strict=True)]
        assert row.faster == sum(faster)
        models = own["model"].to_numpy()
        saved, could = (
            pd.Series(1 - ns.to_numpy() / base["decode_ns"].to_numpy()).groupby(models).mean().mean()
            for ns in (own["decode_ns"], base["bound_ns"])
        )
        assert row.headroom == pytest.approx(saved / could)
    assert [row.ratio for row in board.ranked] == sorted((row.ratio for row in board.ranked), reverse=True)
    assert [row.rank for row in board.ranked] == [1, 2, 3, 4]
    assert [row.entrant.label for row in board.bounds] == ["min"]
    assert board.cases == 12
    assert board.requests == 9


def test_what_wins_somewhere_is_the_fastest_there(board: Any) -> None:
    assert [(p.axis, p.value) for p in board.places] == [
        ("everywhere", "everywhere"), ("trace", "chat"), ("trace", "code"), ("trace", "more"),
        ("hardware", "tesla-p40"), ("hardware", "rtx-3070"), ("miss", "fetch"), ("miss", "cpu"),
    ]  # fmt: skip
    for place in board.places:
        speeds = {row.entrant.label: row.ratio_at(place) for row in board.ranked}
        order = sorted(speeds, key=lambda label: -speeds[label])
        assert (place.first, place.second) == (order[0], order[1])
        assert place.ratio == speeds[order[0]]
        assert place.ahead == pytest.approx(speeds[order[0]] / speeds[order[1]])
        over = speeds[order[0]] / speeds[board.ranked[0].entrant.label]
        assert (place.over or 1.0) == pytest.approx(over)
        assert (place.over is None) == (order[0] == board.ranked[0].entrant.label)
    everywhere = board.places[0]
    frame = board.result.frame
    by_cause = frame.filter(regex=r"^(?!ms_).*_ms_per_token$")
    best, base = (by_cause[(frame["eviction"] == n) & (frame["admission"] == "always")] for n in ("lfru", "lru"))
    assert everywhere.first == "lfru"
    shares = (base.to_numpy() - best.to_numpy()) / base.sum(axis=1).to_numpy()[:, None]
    means = pd.DataFrame(shares).groupby(frame.loc[base.index, "model"].to_numpy()).mean().mean()
    causes = [name.removesuffix("_ms_per_token") for name in by_cause]
    for cause, share in zip(causes, means, strict=True):
        assert everywhere.saved.get(cause, 0.0) == pytest.approx(share, abs=0.0005)


def test_no_policy_is_faster_than_the_limit(board: Any) -> None:
    assert board.limit is not None
    assert all(row.ratio <= board.limit for row in [*board.ranked, *board.bounds])


Draw = st.lists(st.floats(0.1, 10), min_size=3, max_size=8)


def cells(times: dict[str, dict[str, list[float]]]) -> pd.DataFrame:
    """One case of each trace; trace `a1` is of model `a`."""
    return pd.DataFrame(
        [{"entrant": who, "model": trace[0], "trace": trace, "miss": "fetch", "ns": np.array(ns)}
         for who, own in times.items() for trace, ns in own.items()]
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(Draw, Draw, st.floats(0.2, 5))
def test_a_policy_that_is_always_as_much_faster_has_no_width(
    one: list[float], two: list[float], by: float
) -> None:
    base = {"a1": one, "b1": two}
    mine = {trace: [ns / by for ns in own] for trace, own in base.items()}
    times = Times.of(cells({"lru": base, "mine": mine}), ["lru", "mine"], ["trace", "miss"])
    assert times.ratios[0] == 1
    assert times.ratios[1] == pytest.approx(by)
    assert times.interval(1) == pytest.approx((by, by))
    assert times.part({"trace": "a1"}).ratios[1] == pytest.approx(by)


def test_two_models_that_disagree_leave_it_open_and_two_traces_of_one_do_not_count_twice() -> None:
    base = {"a1": [1.0] * 5, "b1": [1.0] * 5}
    mine = {"a1": [0.5] * 5, "b1": [1.5] * 5}
    times = Times.of(cells({"lru": base, "mine": mine}), ["lru", "mine"], ["trace", "miss"])
    assert times.interval(1) == pytest.approx((1 / 1.5, 2.0))
    assert real(times.interval(1)) is False
    more = {"a1": [1.0] * 5, "a2": [1.0] * 5, "b1": [1.0] * 5}
    again = Times.of(cells({"lru": more, "mine": mine | {"a2": [0.5] * 5}}), ["lru", "mine"], ["trace", "miss"])
    assert again.ratios[1] == pytest.approx(times.ratios[1])


def test_an_interval_widens_with_what_requests_disagree_on_and_needs_five() -> None:
    base = {"a1": [1.0] * 8}
    calm = Times.of(cells({"lru": base, "x": {"a1": [0.9, 0.8] * 4}}), ["lru", "x"], ["trace", "miss"])
    wild = Times.of(cells({"lru": base, "x": {"a1": [0.2, 1.5] * 4}}), ["lru", "x"], ["trace", "miss"])
    (a, b), (c, d) = calm.interval(1), wild.interval(1)
    assert c < a < calm.ratios[1] < b < d
    assert real((a, b)) is True
    assert real((c, d)) is False
    few = Times.of(cells({"lru": {"a1": [1.0] * 4}, "x": {"a1": [0.5] * 4}}), ["lru", "x"], ["trace", "miss"])
    assert few.interval(1) is None


def test_a_strangers_classes_compete_from_the_folder_of_the_command(package: str, capsys: Any) -> None:
    words = f"chat.parquet code.parquet --policy {package}:Mru:skip=0 --policy {package}:Nobody --only"
    said = run(
        capsys, f"{words} --policy lfru --hardware tesla-p40 --capacity 40% --miss fetch --workers 2 --out b.md"
    )
    text = Path("b.md").read_text()
    for name in ("`mru:skip=0`", "`lru, admission nobody`", "`lfru`", "`lru`"):
        assert f" {name} |" in text
    assert "`belady`" not in text
    assert f"mru:skip=0 is {package}:Mru" in said
    assert f"--policy {package}:Nobody" in text.splitlines()[2]
    assert "4 of 4 runs" not in said
    assert "8 runs in " in said
    assert "not compiled" in said


def test_a_class_is_taken_in_python_as_well(package: str) -> None:
    @dataclass(frozen=True)
    class Own(EvictionPolicy):
        """Whoever is first."""

        name: ClassVar[str] = "own"
        source: ClassVar[str] = "a test"

        def start(self, pool: Any, alloc: Any, future: Any) -> Any:
            return set()

        @staticmethod
        def insert(state: Any, key: int) -> None:
            state.add(key)

        @staticmethod
        def remove(state: Any, key: int) -> None:
            state.discard(key)

        @staticmethod
        def victim(state: Any, scope: int, incoming: int, guard: Any, tick: int) -> int:
            return min((key for key in state if guard[key] < tick), default=-1)

    one = {"hardware": ["tesla-p40"], "capacity": ["40%"], "miss": ["fetch"]}
    found = leaderboard({"chat": TRACES["chat"]}, [Own, "lfru"], one, workers=1)
    assert {row.entrant.label for row in found.ranked} == {"lru", "lfru", "own"}


def test_an_installed_package_competes_by_itself(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from importlib.metadata import EntryPoint

    from expert_residency.policies import registry

    point = EntryPoint("mru", f"{package}:Mru", "expert_residency.eviction")
    known = registry._names("eviction")
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr(registry, "_names", lambda kind: known | {"mru": point} if kind == "eviction" else {})
    assert Entrant("eviction", "mru") in registered()


def test_a_class_with_parameters_competes_once(package: str) -> None:
    word = entrant_of(f"{package}:Mru:skip=1")
    assert word.label == "mru:skip=1"
    assert "mru" not in {entrant.label for entrant in registered()}


def test_an_interrupted_run_says_what_is_kept(package: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("expert_residency.sim.studies.leaderboard.leaderboard", stop)
    for more, said in (("", "nothing is kept without --cells"), (" --cells kept", "finished runs are in kept")):
        with pytest.raises(SystemExit) as stopped:
            main(f"leaderboard chat.parquet{more}".split())
        assert stopped.value.code == 130
        assert said in capsys.readouterr().err


def test_kept_runs_are_not_run_again(package: str, capsys: Any) -> None:
    words = f"chat.parquet --only --policy lfru {SMALL} --cells kept"
    assert "2 runs in " in run(capsys, words)
    first = run(capsys, words)
    assert "0 runs in " in first
    assert "2 were there" in first
    assert "1 runs in " in run(capsys, f"{words} --policy {package}:Mru")


def test_who_cannot_run_everywhere_is_named_and_has_no_place(package: str, capsys: Any) -> None:
    said = run(
        capsys, f"chat.parquet --only --policy gate-lookahead --policy {package}:Clumsy {SMALL} --json b.json"
    )
    assert "left out: lru, prefetch gate-lookahead: prefetch policy gate-lookahead: depth 1" in said
    assert "left out: clumsy: failed in 1 of 1 cases" in said
    assert "no idea" in said
    assert [row["policy"] for row in json.loads(Path("b.json").read_text())["ranked"]] == ["lru"]


def test_what_does_not_fit_is_named(package: str, capsys: Any) -> None:
    words = "chat.parquet --only --policy lfru --hardware rtx-3070 --miss fetch --workers 1"
    said = run(capsys, f"{words} --capacity 40% --capacity 100GiB")
    assert "too large for the machine: one rtx-3070 100GiB (rtx-3070: an expert cache" in said
    assert "no case fits its machine" in refused(capsys, f"{words} --capacity 100GiB")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--policy nowhere:Thing", "nowhere:Thing: there is no module nowhere, here or installed, nor a policy"),
        ("--policy {0}:Lost", "{0}:Lost: {0} has no Lost; expected a class over EvictionPolicy"),
        ("--policy {0}:NoPolicy", "NoPolicy of {0} is no policy"),
        ("--policy {0}:Mru:nonsense=3", "eviction policy mru: unknown parameter"),
        ("--policy lfru:nonsense", "'nonsense' has no value"),
        ("--policy nothing", "unknown policy 'nothing'"),
        ("--only", "--only leaves nobody to rank"),
        ("chat.parquet@granite-3.0-1b-a400m", "chat.parquet: "),
        ("chat.parquet", "a trace is named twice"),
        ("--hardware nothing", "nothing"),
    ],
)
def test_what_is_wrong_is_a_sentence(words: str, sentence: str, package: str, capsys: Any) -> None:
    said = refused(capsys, f"chat.parquet {words.format(package)} --workers 1")
    assert sentence.format(package) in said


def test_a_trace_takes_the_sizes_of_its_own_model(package: str, tmp_path: Path, capsys: Any) -> None:
    words = f"bundled:tinymoe-code chat.parquet --only --policy lfru {SMALL} --passes 4 --json -"
    plain = json.loads(run(capsys, words))["traces"]
    assert {one["model"] for one in plain.values()} == {"tinymoe/bfloat16", "one"}
    write_parquet(recorded(5), tmp_path / "a@b.parquet")
    named = json.loads(run(capsys, f"a@b.parquet --only --policy lfru {SMALL} --json -"))
    assert list(named["traces"]) == ["one"]


def test_a_long_trace_gives_its_first_whole_requests() -> None:
    trace = recorded(1, requests=3, tokens=8)
    assert shortened(trace, None) is trace
    assert shortened(trace, 24) is trace
    assert shortened(trace, 23).n_passes == 16
    assert shortened(trace, 8).n_passes == 8
    assert shortened(trace, 5).n_passes == 5


def test_the_page_is_the_boards(board: Any) -> None:
    text = page(board, "residency leaderboard x")
    assert text.startswith("# Leaderboard\n\nMade by `residency leaderboard x`.")
    ranking = text.partition("## Policies that see no future")[2].partition("## ")[0]
    rows = [line.split(" | ") for line in ranking.splitlines() if re.match(r"\| \d", line)]
    assert [(cells[0], cells[1], cells[2]) for cells in rows] == [
        (f"| {row.rank}", f"`{row.entrant.label}`", f"{row.ratio:.3f}") for row in board.ranked
    ]
    first = board.ranked[0]
    assert f"First is {inert(first.entrant.label)}, {first.ratio:.2f} times as fast as lru" in text
    assert f"faster in {first.faster} of 12 cases" in text
    assert "12 cases, 3 traces of 2 models, 9 requests, 72 tokens" in text
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in ranking.splitlines() if line.startswith("|")}
    assert len(widths) == 1


@pytest.mark.parametrize("name", ["a|b", "<script>", "[x](http://y)", "`z`", "a\nb", "*_~$#\\"])
def test_names_of_files_are_no_markup(name: str) -> None:
    one = {"hardware": ["tesla-p40"], "capacity": ["40%"], "miss": ["fetch"]}
    made = leaderboard({name: recorded(1, name), "b": recorded(2)}, ["lfru"], one, workers=1)
    text = page(made, f"residency leaderboard {name}")
    assert "<script" not in text
    assert "](http" not in text.replace("\\]", "")
    for block in text.split("\n\n"):
        rows = [len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines() if block.startswith("|")]
        assert len(set(rows)) < 2


def test_the_baseline_is_always_there_and_nobody_competes_twice() -> None:
    field = registered()
    assert field[0] == BASELINE
    assert len({entrant.label for entrant in field}) == len(field)
    assert {"lfru", "lru, admission two-hit", "lru, prefetch markov", "belady"} <= {e.label for e in field}
    assert not any("noisy" in entrant.words or entrant.kind == "placement" for entrant in field)
    with pytest.raises(PolicyError, match="is no policy"):
        entrant_of(3)  # type: ignore[arg-type]
    with pytest.raises(SimError):
        leaderboard({"chat": recorded(1)}, ["lfru"], {"nonsense": ["1"]}, workers=1)


def said_by(capsys: pytest.CaptureFixture[str], words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    said = capsys.readouterr()
    assert stopped.value.code in (0, None), said.err
    return said.out


def test_a_class_is_named_by_its_place_wherever_a_policy_is_chosen(package: str, capsys: Any) -> None:
    place = "--hardware tesla-p40 --capacity 40% --miss fetch"
    said_by(
        capsys, f"run chat.parquet {place} --eviction {package}:Mru --admission {package}:Nobody --json r.json"
    )
    spec = json.loads(Path("r.json").read_text())["manifest"]
    assert (spec["spec"]["eviction"], spec["spec"]["admission"]) == ("mru", "nobody")
    assert set(spec["policies_sha256"]) == {"eviction", "admission"}
    assert "mru" in said_by(capsys, f"replay chat.parquet --capacity 40% --eviction {package}:Mru")
    assert "mru:skip=1" in said_by(capsys, f"curve chat.parquet --points 2 --eviction {package}:Mru:skip=1")
    Path("s.toml").write_text(
        'traces = { chat = "chat.parquet" }\n'
        '[constants]\nhardware = "tesla-p40"\ncapacity = "40%"\nmiss = "fetch"\n'
        f'[axes]\neviction = ["lru", "{package}:Mru"]\n'
    )
    said_by(capsys, "sweep s.toml --out swept --workers 1")
    with pytest.raises(SystemExit):
        main(["run", "chat.parquet", *place.split(), "--eviction", f"{package}:Nobody"])
    assert f"{package}:Nobody is no eviction policy but decides admission" in capsys.readouterr().err


def test_results_are_scored_where_their_policies_are_unknown(
    package: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "--hardware tesla-p40 --capacity 40% --miss fetch"
    axes = f"--eviction lru --eviction {package}:Mru --prefetch none"
    said_by(capsys, f"sweep --trace chat.parquet --out swept --workers 1 {place} {axes}")
    said_by(capsys, f"run chat.parquet {place} --eviction {package}:Mru --json r.json")
    monkeypatch.setattr("expert_residency.policies.registry._adopted", {})
    assert "mru" in said_by(capsys, "score swept")
    for words in ("score r.json", "score swept --trace chat.parquet"):
        with pytest.raises(SystemExit) as stopped:
            main(words.split())
        assert stopped.value.code == 2
        assert "unknown eviction policy 'mru'" in capsys.readouterr().err
        assert "mru" in said_by(capsys, f"{words} --policy {package}:Mru")
        monkeypatch.setattr("expert_residency.policies.registry._adopted", {})


def test_a_file_of_results_imports_nothing(package: str, capsys: Any) -> None:
    from expert_residency.sim.choices.spec import RunSpec

    place = "--hardware tesla-p40 --capacity 40% --miss fetch"
    said_by(capsys, f"run chat.parquet {place} --json r.json")
    data = json.loads(Path("r.json").read_text())
    data["manifest"]["spec"]["eviction"] = f"{package}:Mru"
    Path("evil.json").write_text(json.dumps(data))
    for words in ("score evil.json", "score evil.json --trace chat.parquet"):
        with pytest.raises(SystemExit) as stopped:
            main(words.split())
        assert stopped.value.code == 2
        capsys.readouterr()
    with pytest.raises(SimError, match="is no name of a policy"):
        RunSpec.from_dict(data["manifest"]["spec"])
    assert package not in sys.modules


PAGE = Path(__file__).parents[1] / "docs" / "leaderboard.md"
CLAIM = re.compile(r"`([^`]+)` (\d+\.\d\d) (?:on|of) `([^`]+)`")


def table_of(text: str, head: str) -> dict[str, dict[str, str]]:
    """Rows of the table that begins with a heading, by the policy or place that they are about."""
    block = next(part for part in text.split("\n\n") if part.startswith(head))
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
    key = 1 if names[0].strip() == "#" else 0
    return {row[key].strip("` ").replace("\\", ""): dict(zip(names, row, strict=True)) for row in rows}


def test_what_the_page_says_of_winners_is_in_its_tables() -> None:
    """The first of the ranking is the one that the text names, and each speed that it quotes is its table's."""
    text = PAGE.read_text(encoding="utf-8")
    own, _, made = text.partition("<!-- table: board -->")
    ranked, places = table_of(made, "| # | policy"), table_of(made, "| where")
    bounds = table_of(made.partition("### Policies that see the future")[2], "| # | policy")
    by_trace = table_of(made, "| policy |")
    for row in by_trace.values():
        for name in [name for name in row if "\\" in name]:
            row[name.replace("\\", "")] = row.pop(name)
    first = re.search(r"First over all is `([^`]+)`", own)
    assert first is not None
    assert first[1] == next(iter(ranked)) == places["everywhere"]["first"]
    assert re.search(r"more than ([\d.]+) times", own)[1] == re.search(r"more than ([\d.]+) times", made)[1]  # type: ignore[index]
    assert f"takes {ranked[first[1]]['headroom %'].strip()} % of the time" in own
    claims = CLAIM.findall(" ".join(own.split()))
    assert len(claims) > 20
    for policy, speed, column in claims:
        row = (
            (ranked | bounds)[policy]
            | by_trace.get(policy, {})
            | {"everywhere": (ranked | bounds)[policy]["x lru"]}
        )
        assert f"{float(row[column]):.2f}" == speed, (policy, column)
    for place, policy in re.findall(r"^- \*\*([^*]+)\*\*: `([^`]+)` is first", own, re.MULTILINE):
        assert places[place]["first"] == policy
