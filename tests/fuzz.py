"""Commands on damaged files and parameters: each answers with a result or a sentence, in bounded time and memory.

    python -m tests.fuzz --seconds 60 --seed 1 [--only readers,toml] [--cases 17,41] [--keep FOLDER]

A case is made from the seed and its number alone, and runs in a process of its own. It must end with exit code 0,
or with 2 and a last line on stderr that begins with `residency: ` (for options also `Error: `); whatever else it
does is printed and makes this program end with 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz_damage import NUMBERS, WORDS, damaged_bytes, damaged_tree, toml_text

CPU_SECONDS = 20
WALL_SECONDS = 200
MEMORY_BYTES = 3 << 30
"""Above what the program takes before it does anything."""
RUN = ["--hardware", "tesla-p40", "--slots-per-layer", "2", "--simulator", "reference"]
MODEL = {
    "name": "small", "total_layers": 2, "experts": 8, "top_k": 2, "source": "test", "default_quant": "Q4",
    "quants": {"Q4": {"family": "q4", "expert_bytes": [3000, 4000], "dense_layer_bytes": 500, "head_bytes": 100,
                      "kind": "assumed", "source": "test"}},
}  # fmt: skip
SCENARIO = {
    "trace": "t.parquet", "hardware": "tesla-p40", "slots_per_layer": 2, "eviction": "lru", "admission": "always",
    "prefetch": "oracle:window=2", "placement": "none", "engine": "generic", "miss": "hybrid", "host": "arena",
    "start": "warm", "insertion": "staging:slots=2", "prefetch_bytes": 100000, "predict_us": 1.5, "passes": 4,
    "chunk": 2, "windows": {"rows": 2.5, "emitted": 1.2}, "p2p": False, "scope": "layer",
}  # fmt: skip
VARIANTS = {
    "trace": "t.parquet", "hardware": "tesla-p40", "slots_per_layer": 2, "passes": 3,
    "variants": [{"name": "a", "host": "mmap"}, {"name": "b", "host": "mmap", "start": "carry"}],
}  # fmt: skip
SYNTHETIC = {
    "trace": "synthetic", "model": "granite-3.0-1b-a400m", "hardware": "tesla-p40", "slots_per_layer": 4,
    "synthetic": {"style": "gpt-oss-20b", "tokens": 4, "seed": 1, "prompt_tokens": 2, "draft_tokens": 2,
                  "acceptance": 0.5, "requests": 1},
}  # fmt: skip
SWEEP = {
    "name": "s", "misfits": "record",
    "traces": {"t": "t.parquet", "u": {"path": "t.parquet", "format": "parquet"}},
    "constants": {"miss": "fetch", "hardware": "tesla-p40", "passes": 3, "trace": "t"},
    "axes": {"capacity": ["50%", "2/layer"], "eviction": ["lru", "lfu:counts=in-cache"]},
    "exclude": [{"capacity": "50%", "eviction": ["lru"]}], "scenarios": {"a": {"host": "mmap"}},
}  # fmt: skip
TUNE = {
    "seed": 1, "traces": {"t": "t.parquet"}, "objectives": ["ms_per_token", "vram_bytes"],
    "choices": {"hardware": "tesla-p40", "miss": "fetch", "passes": 3, "capacity": "{share}%", "eviction": "{p}"},
    "parameters": {"share": {"low": 20, "high": 60, "step": 10}, "p": {"values": ["lru", "random:seed={s}"]},
                   "s": {"low": 1, "high": 3, "log": True}},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command, in a folder where its files are."""

    target: str
    args: list[str]


Make = Callable[[random.Random, Path], list[str]]
"""Writes damaged files into a folder and gives the command that reads them."""


def readers(draw: random.Random, folder: Path) -> list[str]:
    """Foreign formats, byte by byte; gzipped now and then."""
    import gzip

    files = json.loads((folder / "foreign.json").read_text())
    kind = draw.choice(sorted(files))
    path = folder / "foreign" / files[kind]
    data = damaged_bytes(draw, path.read_bytes())
    path.write_bytes(damaged_bytes(draw, gzip.compress(data, mtime=0)) if draw.random() < 0.1 else data)
    how = [] if draw.random() < 0.3 else ["--format", kind]
    how += ["-o", "prompt_tokens=3", "-o", "routing=softmax"] if kind == "router-logits" else []
    sized = [] if kind in ("bigmoe-edge", "moe-trace-csv") and draw.random() < 0.8 else ["--model", "small.toml"]
    partial = ["--partial"] if draw.random() < 0.2 else []
    return ["inspect", str(path), *how, *sized, *partial]


def parquet(draw: random.Random, folder: Path) -> list[str]:
    """Our own traces: bytes, or a header that another program edited."""
    path = folder / "t.parquet"
    if draw.random() < 0.4:
        path.write_bytes(damaged_bytes(draw, path.read_bytes()))
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(path, use_threads=False)
        header = json.loads(table.schema.metadata[b"expert_residency"])
        if draw.random() < 0.8:
            del header["content_sha256"], header["parts_sha256"], header["header_sha256"]
        block = json.dumps(damaged_tree(draw, header)).encode()
        pq.write_table(table.replace_schema_metadata({b"expert_residency": block}), path)
    stream = ["replay", str(path), "--stream", "--slots-per-layer", "2", "--eviction", "lru"]
    return stream if draw.random() < 0.05 else ["run", "--trace", str(path), *RUN, "--json", "out.json"]


def toml(draw: random.Random, folder: Path) -> list[str]:
    """Machines, presets, models, scenarios, sweeps and searches that somebody edits."""
    own = {"base": "tesla-p40", "name": "own", "summary": "own"}
    preset = {"name": "own"} | packaged("sim/choices/presets/strata.toml")
    kinds: dict[str, tuple[Any, list[str]]] = {
        "machine": (own | packaged("hwmodels/profiles/tesla-p40.toml"), run_with("--hardware", "own.toml")),
        "card": (own | packaged("hwmodels/profiles/rtx-5070-7600.toml"), run_with("--hardware", "own.toml")),
        "engine": (preset, run_with("--engine", "own.toml")),
        "model": (MODEL, ["inspect", "foreign/lattice.trace", "--format", "lattice", "--model", "own.toml"]),
        "sized": (MODEL, run_with("--model", "own.toml")),
        "scenario": (SCENARIO, ["run", "own.toml", "--json", "out.json"]),
        "variants": (VARIANTS, ["run", "own.toml", "--json", "out.json"]),
        "synthetic": (SYNTHETIC, ["run", "own.toml", "--json", "out.json"]),
        "sweep": (SWEEP, ["sweep", "own.toml", "--out", "new", "--workers", "1", "--simulator", "reference"]),
        "tune": (TUNE, ["tune", "own.toml", "--out", "new", "--trials", "2"]),
    }
    data, args = kinds[draw.choice(sorted(kinds))]
    edited = damaged_tree(draw, data)
    asked = edited.get("synthetic")
    if isinstance(asked, dict):  # a large trace takes long, as it was asked to
        asked |= {key: 50 for key, size in asked.items() if isinstance(size, int) and 50 < size < 1 << 30}
    text = toml_text(edited).encode("utf-8", "surrogatepass")
    (folder / "own.toml").write_bytes(damaged_bytes(draw, text) if draw.random() < 0.15 else text)
    return args


def run_with(option: str, value: str) -> list[str]:
    rest = [*RUN[2:]] if option == "--hardware" else RUN
    return ["run", "--trace", "t.parquet", *rest, "--passes", "4", option, value, "--json", "out.json"]


def packaged(path: str) -> dict[str, Any]:
    """A file of this repository."""
    return tomllib.loads((Path(__file__).parents[1] / path).read_text(encoding="utf-8"))


def results(draw: random.Random, folder: Path) -> list[str]:
    """Results of runs and sweeps, edited by hand or half-written."""
    kind = draw.choice(("score", "score", "score", "report", "resume", "dataset"))
    if kind == "score":
        data = json.loads((folder / "result.json").read_text())
        edited = json.dumps(damaged_tree(draw, data)).encode()
        (folder / "result.json").write_bytes(damaged_bytes(draw, edited) if draw.random() < 0.2 else edited)
        more = ["--trace", "t.parquet"] if draw.random() < 0.2 else []
        return ["score", "result.json", *more, "--json", "out.json"]
    if kind == "dataset":
        damaged = draw.choice(sorted((folder / "swept/cells").iterdir()))
        damaged.write_bytes(damaged_bytes(draw, damaged.read_bytes()))
        return draw.choice((["score", "swept"], ["report", "swept", "--out", "r.html"]))
    path = folder / "swept" / draw.choice(("journal.jsonl", "plan.json"))
    text = path.read_bytes()
    if draw.random() < 0.6:
        lines = text.splitlines()
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(damaged_tree(draw, json.loads(lines[at]))).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_bytes(damaged_bytes(draw, text))
    if kind == "report":
        shutil.rmtree(folder / "swept/cells")
        return ["report", "swept", "--out", "r.html"]
    return ["sweep", "sweep.toml", "--out", "swept", "--resume", "--workers", "1", "--simulator", "reference"]


def parameters(draw: random.Random, folder: Path) -> list[str]:
    """Parameters of policies, in and out of any range."""
    from expert_residency.policies.registry import KINDS, available, load

    kind = draw.choice(sorted(KINDS))
    name = draw.choice(available(kind))
    import dataclasses

    fields = [field for field in dataclasses.fields(load(kind, name)) if field.name != "file"]
    chosen = draw.sample(fields, draw.randrange(min(3, len(fields)) + 1))
    values = [
        f"{field.name}={draw.choice([*NUMBERS, 0.5, 0.01, 1e-9, 3, field.default, f'-{field.default}', 'x'])}"
        for field in chosen
    ]
    spec = name + (":" + ",".join(values) if values else "")
    eviction = ["--eviction", draw.choice(("belady", "lru"))] if kind != "eviction" else []
    simulator = ["--simulator", "kernel"] if os.environ.get(KERNEL) and draw.random() < 0.3 else RUN[4:]
    if kind != "prefetch" and draw.random() < 0.4:
        return [
            "replay",
            "t.parquet",
            "--slots-per-layer",
            draw.choice("123"),
            f"--{kind}",
            spec,
            *eviction,
            *simulator,
        ]
    miss = ["--miss", draw.choice(("fetch", "cpu", "hybrid"))]
    return [
        "run",
        "--trace",
        "t.parquet",
        *RUN[:4],
        f"--{kind}",
        spec,
        *eviction,
        *miss,
        *simulator,
        "--json",
        "out.json",
    ]


def placements(draw: random.Random, folder: Path) -> list[str]:
    """Profiles of placements, binary and CSV."""
    name = draw.choice(("profile.strp", "profile.csv"))
    path = folder / name
    path.write_bytes(damaged_bytes(draw, path.read_bytes()))
    policy = "strp" if name.endswith("strp") else "profile"
    rest = ["--slots-per-layer", "2", "--eviction", "lru", "--simulator", "reference"]
    return ["replay", "t.parquet", "--placement", f"{policy}:file={name}", *rest]


def options(draw: random.Random, folder: Path) -> list[str]:
    """Values of options as they are mistyped."""
    from typer.main import get_command

    from expert_residency.sim.cli import app

    name = draw.choice(sorted(COMMANDS))
    parameters = get_command(app).commands[name].params  # type: ignore[attr-defined]
    named = [parameter.opts[-1] for parameter in parameters if parameter.opts[-1].startswith("--")]
    words = [str(word).replace("\0", "") for word in (*NUMBERS, *WORDS)]
    chosen = [draw.choice(named) for _ in range(draw.choice((1, 1, 2)))]
    given = [part for option in chosen if option not in WRITING for part in (option, draw.choice(words))]
    return [name, *COMMANDS[name].split(), *given]


WRITING = ("--json", "--out", "--plot", "--timeline", "--plots", "--workers", "--help")
PLACE = "--hardware tesla-p40 --capacity 2/layer"
COMMANDS = {
    "inspect": "t.parquet", "run": f"--trace t.parquet {PLACE}", "window": "t.parquet", "list": "policies",
    "replay": "t.parquet --capacity 2/layer --eviction lru", "curve": "t.parquet --points 2 --eviction lru",
    "learn": "t.parquet --predictor transitions",
    "placement": "t.parquet --slots 4 --out p.strp", "drafts": f"t.parquet {PLACE}", "score": "result.json",
    "vram": "--model granite-3.0-1b-a400m --hardware rtx-5070", "model": "granite-3.0-1b-a400m",
    "split": "--model granite-3.0-1b-a400m --gpu tesla-p40 --simulate 0", "report": "swept --out r.html",
    "import": "t.parquet u.parquet", "sweep": f"--trace t.parquet --out new --workers 1 {PLACE} --prefetch none",
}  # fmt: skip
KERNEL = "EXPERT_RESIDENCY_FUZZ_KERNEL"
"""If set, some policies also run in the compiled kernel, which takes long to compile each of them once."""
TARGETS: dict[str, Make] = {
    f.__name__: f for f in (readers, parquet, toml, results, parameters, placements, options)
}


def prepare(folder: Path) -> None:
    """Valid files of every kind."""
    from expert_residency.sim.cli import main
    from expert_residency.sim.testing.cases import random_trace
    from expert_residency.traces import write_parquet
    from tests.trace_files import write_all, write_more

    os.chdir(folder)
    (folder / "foreign").mkdir()
    files = write_all(folder / "foreign") | write_more(folder / "foreign")
    (folder / "foreign.json").write_text(json.dumps({kind: path.name for kind, path in files.items()}))
    write_parquet(random_trace(3, passes=8), folder / "t.parquet")
    (folder / "small.toml").write_text(toml_text(MODEL))
    (folder / "sweep.toml").write_text(toml_text(SWEEP))
    (folder / "profile.csv").write_text("layer,expert,count\n0,1,5\n1,2,3\n2,0,1.5\n")
    for args in (
        ["placement", "t.parquet", "--slots", "4", "--out", "profile.strp"],
        ["run", "--trace", "t.parquet", *RUN, "--json", "result.json"],
        ["sweep", "sweep.toml", "--out", "swept", "--workers", "1", "--simulator", "reference"],
    ):
        child = os.fork()
        if child == 0:
            quiet(folder, "prepare")
            try:
                main(args)
            except SystemExit as stopped:
                os._exit(int(stopped.code or 0))
            os._exit(3)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"cannot prepare: {' '.join(args)}: {(folder / 'prepare.err').read_text()}")
    shutil.rmtree(folder / "swept/cache")


def quiet(folder: Path, name: str) -> None:
    """What is printed goes to files."""
    for number, suffix in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)


def run_case(target: str, seed: int, number: int, valid: Path) -> tuple[str, list[str]]:
    """Fault of a case, empty if there is none, and its command."""
    folder = valid.parent / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(valid, folder)
    os.chdir(folder)
    args = TARGETS[target](random.Random(f"{seed} {number}"), folder)
    child = os.fork()
    if child == 0:
        in_child(args, folder)
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return verdict(status, (folder / "said.err").read_text(errors="replace")), args
        if time.monotonic() - began > WALL_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"more than {WALL_SECONDS} s", args
        time.sleep(0.002)


def in_child(args: list[str], folder: Path) -> None:
    """Run a command within the limits; never returns."""
    from expert_residency.sim.cli import main

    quiet(folder, "said")
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    code = 9
    try:
        main(args)
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 0 if stopped.code is None else 8
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def verdict(status: int, said: str) -> str:
    """What is wrong with how a command ended."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"ended by {name}" + (f" (more than {CPU_SECONDS} s)" if name in ("SIGXCPU", "SIGKILL") else "")
    code, lines = os.WEXITSTATUS(status), [line for line in said.splitlines() if line.strip()]
    if code not in (0, 2):
        return f"exit code {code}: {' | '.join(lines[-3:])[:400]}"
    if code == 2 and (not lines or not lines[-1].startswith(("residency: ", "Error: "))):
        return f"no sentence: {' | '.join(lines[:3])[:400]}"
    strange = [line for line in lines if "Warning:" in line or line.startswith(("Traceback", "Exception"))]
    return f"exit code {code} with {strange[0][:400]}" if strange else ""


def main() -> int:
    """Run cases until the time is over; 1 if any failed."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=60)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--only", default=",".join(TARGETS))
    asked.add_argument("--cases", default="", help="these numbers only, whatever time they take")
    asked.add_argument("--keep", type=Path, default=None, help="folder for the files of failed cases")
    given = asked.parse_args()
    warm()
    targets, faults, ran = given.only.split(","), Counter[str](), Counter[str]()
    end = time.monotonic() + given.seconds
    chosen = [int(number) for number in given.cases.split(",") if number]
    home = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        valid = Path(place, "valid")
        valid.mkdir()
        prepare(valid)
        number = 0
        while number < len(chosen) if chosen else time.monotonic() < end:
            case = chosen[number] if chosen else number
            target = targets[case % len(targets)]
            fault, args = run_case(target, given.seed, case, valid)
            ran[target] += 1
            number += 1
            if fault:
                faults[target] += 1
                print(f"{target} {case}: {fault}\n    residency {' '.join(args)}", flush=True)  # noqa: T201
                if given.keep is not None:
                    shutil.copytree("..", home / given.keep / f"{target}-{case}", dirs_exist_ok=True,
                                    ignore=shutil.ignore_patterns("valid"))  # fmt: skip
        os.chdir(home)
    print(f"{sum(ran.values())} cases ({dict(ran)}), {sum(faults.values())} faults")  # noqa: T201
    return int(bool(faults))


def warm() -> None:
    """Load once what every case needs; no work that starts threads."""
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich.console  # noqa: F401

    from expert_residency.sim.cli import _register

    _register()
    for module in ("runs.simulate", "runs.variants", "studies.score", "studies.tune", "sweep", "report"):
        importlib.import_module(f"expert_residency.sim.{module}")


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
