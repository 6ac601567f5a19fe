"""Every option of every command has an effect, or is refused by its name.

For each option a command line with it is set beside one without, and what they answer must differ: the numbers of
their JSON and the files they write, without what only repeats the question. Where a command hands its choices to a
room that has tests of its own, or needs another machine, a stand-in shows what it hands over.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

import expert_residency as er
from expert_residency.errors import UserError
from expert_residency.sim.choices.spec import CHOICES
from expert_residency.sim.cli import _register, app
from expert_residency.traces import Phase, RoutingTrace, TraceBuilder, write_parquet
from expert_residency.traces.synthetic import generate, load_style

MODEL = "granite-3.0-1b-a400m"
ECHO = {*CHOICES, "manifest", "context", "headroom_bytes", "carve", "folder", "version", "spec", "command"}
"""Keys of an answer that repeat the question."""


@dataclass(frozen=True)
class Refused:
    """Words that are refused, naming the option or its value."""

    words: str
    stand_in: str = ""


@dataclass(frozen=True)
class Whole:
    """Two whole lines, and who stands in for their work if anybody does."""

    first: str
    second: str
    stand_in: str = ""


@dataclass(frozen=True)
class Line:
    """A command: how it begins, which words stand for the rest by default, and who stands in for its work."""

    base: str
    default: str = ""
    stand_in: str = ""


class Reached(Exception):
    """A stand-in has been called."""


CARD = "--hardware tesla-p40 --capacity 25%"
FIT = "--hardware tesla-p40 --engine generic --passes 4 --trace <in>/tiny.parquet"
TWO = "--hardware tesla-p40+rtx-3090 --capacity 25% --layers-each 12+12"
AHEAD = CARD + " --prefetch oracle"
RUN: dict[str, Any] = {
    "--hardware": (CARD, "--hardware rtx-3070 --capacity 25%"),
    "--capacity": (CARD, "--hardware tesla-p40 --capacity 50%"),
    "--slots-per-layer": (CARD, "--hardware tesla-p40 --slots-per-layer 9"),
    "--card-capacity": (TWO, TWO.replace("--capacity 25%", "--card-capacity 50MiB --card-capacity 900MiB")),
    "--scope": "--scope layer:hindsight",
    "--layers-each": (TWO, TWO.replace("12+12", "4+20")),
    "--eviction": "--eviction random",
    "--admission": "--admission never",
    "--prefetch": "--prefetch oracle",
    "--placement": "--placement full",
    "--engine": "--engine ncmoe",
    "--miss": "--miss stream",
    "--host": "--host mmap",
    "--start": (CARD + " --host mmap", CARD + " --host mmap --start cold"),
    "--p2p": tuple("--hardware rtx-3090+rtx-3090 --capacity 25% --layers-each 12+12" + p for p in ("", " --p2p")),
    "--insertion": (AHEAD, AHEAD + " --insertion never-evict"),
    "--prefetch-bytes": (AHEAD, AHEAD + " --prefetch-bytes 1MiB"),
    "--predict-us": (AHEAD, AHEAD + " --predict-us 50"),
    "--depth": (CARD, CARD + " --depth 4096"),
    "--kv-type": tuple(f"{CARD} --depth 4096{d}" for d in ("", " --kv-type q4_0")),
    "--model": f"--model {MODEL}/Q8_0",
    "--format": Refused("--format nothing"),
}
"""Choices of a run, and how a trace is read."""


def only(*without: str, **more: Any) -> dict[str, Any]:
    """Cases of the choices of a run but for some, and further ones."""
    own = {f"--{name.replace('_', '-')}": case for name, case in more.items()}
    return {name: case for name, case in RUN.items() if name not in without} | own


def reading(line: str, stand_in: str = "", *without: str) -> dict[str, Any]:
    """How a trace is read and which of it, by a line that names the trace `{}`."""
    part, several = (line.replace("{}", f"<in>/{n}.parquet") for n in ("part", "req-*"))
    cases = {
        "-o": Refused("-o nothing", stand_in), "--requests": Refused("--requests 77", stand_in),
        "--partial": Whole(part, part + " --partial", stand_in),
        "--join": Whole(several, several + " --join file", stand_in),
        "--phase": Refused("--phase nothing", stand_in), "--top-k": Refused("--top-k 77", stand_in),
    }  # fmt: skip
    return {option: case for option, case in cases.items() if option not in without}


TUNE = """
traces = { tiny = "tiny.parquet" }
[choices]
hardware = "tesla-p40"
eviction = "lru"
capacity = "{share}%"
[parameters]
share = { low = 10, high = 60, step = 10 }
"""
CACHED = "--simulate 0 --engine generic"
SPLIT = f"--model {MODEL} --quant Q8_0 --gpu rtx-3070 --session 6500MiB --ram 16GB --host budget {CACHED}"
FLASH = f"--model qwen3.8-flash-next --quant IQ3_S --gpu rtx-3090 --host mmap --trace <in>/flash.parquet {CACHED}"
RULES = f"--model {MODEL} --quant Q8_0 --gpu tesla-p40 --count 2 --session 1GiB"
DRAFTED = "--model qwen3.8-flash-next --hardware rtx-3090 --context 65536"
PLAIN = f"run --trace <in>/tiny.parquet {CARD} --simulator reference"
QUICK = f"sweep --trace <in>/tiny.parquet --passes 2 --workers 1 --out s --prefetch none --eviction lru {CARD}"
BOARD = "--only --policy lfru --hardware tesla-p40 --capacity 25% --miss fetch"
ALL, RANKED = BOARD.removeprefix("--only "), "sim.studies.leaderboard:leaderboard"
CURVE = "curve <in>/tiny.parquet --simulator reference --points 2 --eviction lru"
ADVICE = f"--model {MODEL}/FP16 --gpu tesla-p40 --session 1GiB --passes 4 --draws 2"
LONG = ADVICE.replace("--session 1GiB", "").replace("tesla-p40", "rtx-3070")
HERE = ADVICE + " --engine <in>/own.toml"
LEARN = "learn <in>/req-*.parquet --predictor transitions --json out.json"
LINES: dict[str, Line] = {
    "advise": Line("advise --json out.json", ADVICE),
    "calibrate": Line("calibrate --cardless --disk 40GB --out p.toml", "", "sim.live.measure:measure"),
    "curve": Line("curve <in>/tiny.parquet --simulator reference --json out.json", "--points 2 --eviction lru"),
    "demo": Line("demo", "", "sim.studies.demo:run_demo"),
    "drafts": Line("drafts <in>/tiny.parquet", CARD, "sim.studies.drafts:window_costs"),
    "fit": Line("fit <in>/runs.csv --json out.json", FIT),
    "import": Line("import <in>/plain.csv out.parquet", f"--model {MODEL}"),
    "inspect": Line("inspect <in>/tiny.parquet"),
    "leaderboard": Line("leaderboard <in>/tiny.parquet --passes 2 --workers 1 --json out.json", BOARD),
    "learn": Line("learn <in>/req-a.parquet --json out.json", "--predictor transitions"),
    "list": Line("list hardware"),
    "measure": Line(
        "measure --out m --cardless --trace <in>/tiny.parquet --passes 2 --warmup 0 --disk 40GB", "",
        "sim.live.measure:measure"
    ),
    "machine": Line("machine tesla-p40"),
    "model": Line(f"model {MODEL}"),
    "placement": Line("placement <in>/drafted.parquet", "--slots 20 --out p.strp"),
    "predictor": Line("predictor <in>/tiny.parquet", CARD, "sim.studies.predictor:study"),
    "record": Line("record --model m --prompt-file <in>/a.txt --out r.parquet", "", "traces.record:record"),
    "replay": Line(
        "replay <in>/tiny.parquet --simulator reference --json out.json", "--capacity 25% --eviction lru"
    ),
    "report": Line("report <in>/swept --out r.html", "", "sim.report:write_plots"),
    "run": Line("run --trace <in>/tiny.parquet --simulator reference --json out.json", CARD),
    "score": Line("score <in>/run.json --json out.json"),
    "split": Line("split --json out.json", SPLIT),
    "sweep": Line("sweep --trace <in>/tiny.parquet --out s", CARD, "sim.sweep:sweep"),
    "tune": Line("tune <in>/tune.toml --out t", "", "sim.studies.tune:tune"),
    "validate": Line("validate", "--group exact --exact <in>/exact.parquet@25MiB"),
    "vram": Line(
        "vram --json out.json", "--model qwen3.8-flash-next --hardware rtx-3090 --context 65536"
    ),
    "why": Line("why <in>/tiny.parquet --json out.json", CARD),
    "window": Line("window <in>/drafted.parquet --json out.json", "--slots 200 --horizon 1"),
}  # fmt: skip
"""How each command is asked."""


def alone(*options: str) -> tuple[str, str]:
    """The option is in both lines, with one value and another."""
    first, second = options
    return first, second


CASES: dict[str, dict[str, Any]] = {
    "advise": {
        "--model": (ADVICE, ADVICE.replace("FP16", "Q8_0")),
        "--gpu": (ADVICE, ADVICE.replace("tesla-p40", "rtx-3090")),
        "--engine": (ADVICE + " --engine ktransformers", HERE), "--count": (ADVICE, ADVICE + " --count 2"),
        "--cpu": (ADVICE, ADVICE + " --cpu epyc-7763"), "--ram": Refused("--ram nothing"),
        "--link": (HERE, HERE + " --link 3.0x4"),
        "--context": tuple(f"{LONG} --context {n}" for n in (4_096, 100_000)),
        "--kv-type": tuple(f"{LONG} --context 100000 --kv-type {kv}" for kv in ("fp16", "q4_0")),
        "--cache-type-k": tuple(f"{LONG} --context 100000{more}" for more in ("", " -ctk q4_0")),
        "--cache-type-v": tuple(f"{LONG} --context 100000{more}" for more in ("", " -ctv q4_0")),
        "--session": (ADVICE, ADVICE.replace("1GiB", "20GiB")),
        "--headroom": Refused("--engine generic --headroom 1GB"),
        "--acceptance": Refused("--acceptance 2"), "--trace": (ADVICE, ADVICE + " --trace <in>/tiny.parquet"),
        "--format": Refused("--format nothing"), "--passes": (ADVICE, ADVICE.replace("passes 4", "passes 6")),
        "--draws": (HERE, HERE.replace("draws 2", "draws 5")), "--json": "--json other.json",
    },
    "calibrate": {
        "--out": "--out q.toml", "--trace": "--trace bundled:tinymoe-code",
        "--model": alone(*(f"--trace <in>/tiny.parquet --model {MODEL}/{n}" for n in ("FP16", "Q8_0"))),
        "--format": Refused("--format nothing", "sim.live.measure:measure"),
        "--like": Whole(
            *(f"calibrate --like rtx-{n} --out p.toml" for n in (3090, 3070)), "hwmodels.calibrate:calibrate"
        ),
        "--cardless": Refused("--no-cardless"),
        "--folder": "--folder <in>", "--workers": "--workers 3", "--rounds": "--rounds 1",
        "--disk": Refused("--disk 1MB"),
        **reading("calibrate --cardless --disk 40GB --out p.toml --trace {}", "sim.live.measure:measure", "--join",
                  "--requests", "--phase"),
    },
    "curve": {
        **reading(CURVE.replace("<in>/tiny.parquet", "{}"), "", "--phase"),
        "--cold": Whole(*(CURVE.replace("tiny", "req-a") + f" --cold {n}" for n in ("trace", "request"))),
        "--eviction": alone("--points 2 --eviction lru", "--points 2 --eviction fifo"),
        "--capacity": alone("--eviction lru --capacity 25%", "--eviction lru --capacity 50%"),
        "--scope": "--scope global", "--admission": "--admission two-hit", "--points": "--points 3",
        "--phase": Whole(CURVE, CURVE + " --phase prefill"), "--simulator": "--simulator kernel",
        "--plot": "--plot c.svg",
        "--model": f"--model {MODEL}/Q8_0", "--format": Refused("--format nothing"), "--json": "--json other.json",
    },
    "demo": {"--passes": "--passes 2", "--workers": "--workers 1", "--json": Refused("--json no/where/x.json")},
    "drafts": reading("drafts {} " + CARD, "sim.studies.drafts:window_costs") | only(
        rows="--rows 5", acceptance=Refused("--acceptance 2"), json=Refused("--json no/where/x.json")),
    "learn": {
        **reading("learn {} --predictor transitions --json out.json", "", "--partial"),
        "--predictor": alone("--predictor transitions", "--predictor transitions:depth=2"),
        "--out": "--out l.parquet", "--top": "--top 3", "--model": f"--model {MODEL}/Q8_0",
        "--folds": Whole(*(f"{LEARN} --folds {n}" for n in (2, 4))),
        "--seed": Whole(*(f"{LEARN} --folds 2 --seed {n}" for n in (0, 1))),
        "--format": Refused("--format nothing"), "--json": "--json other.json",
    },
    "fit": {
        "--hardware": (FIT, FIT.replace("tesla-p40", "rtx-3090")),
        "--engine": (FIT, FIT.replace("generic", "ncmoe")),
        "--model": f"--model {MODEL}/Q8_0",
        "--trace": (FIT, FIT.replace("tiny", "flash")),
        "--format": Refused("--format nothing"), "--windows": "--windows 2,1.5",
        "--passes": (FIT, FIT.replace("passes 4", "passes 6")), "--noise": "--noise 9", "--out": "--out p.toml",
        "--json": "--json other.json",
    },
    "import": {
        **reading("import {} out.parquet"),
        "-o": "-o top_k=4", "--columns": Refused("--columns nothing"),
        "--format": Refused("--format nothing"),
        "--model": alone(f"--model {MODEL}", f"--model {MODEL}/Q8_0"),
    },
    "inspect": {
        **reading("inspect {}"),
        "--layers": "--layers", "--model": f"--model {MODEL}/Q8_0", "--format": Refused("--format nothing"),
        "--json": "--json other.json",
    },
    "leaderboard": {
        **{name: case for name, case in reading(f"leaderboard {{}} {BOARD}").items() if name in ("-o", "--top-k")},
        "--policy": alone(BOARD, BOARD + " --policy fifo"),
        "--only": Whole(f"leaderboard <in>/tiny.parquet {BOARD}", f"leaderboard <in>/tiny.parquet {ALL}", RANKED),
        "--hardware": (BOARD, BOARD.replace("tesla-p40", "rtx-3070")),
        "--capacity": (BOARD, BOARD.replace("25%", "50%")), "--miss": (BOARD, BOARD.replace("fetch", "cpu")),
        "--engine": alone(BOARD, BOARD + " --engine imp"),
        "--host": alone(BOARD + " --host flash", BOARD + " --host mmap"), "--format": Refused("--format nothing"),
        "--passes": Whole(*(f"leaderboard <in>/tiny.parquet {BOARD} --json o.json --passes {n}" for n in (2, 5))),
        "--cells": "--cells kept", "--workers": Refused("--workers 0"), "--out": "--out b.md",
        "--plot": "--plot b.png",
        "--json": "--json other.json",
    },
    "list": {"--template": "--template", "--json": "--json out.json"},
    "measure": {
        **reading("measure --out m --cardless --trace {} --passes 2 --warmup 0 --disk 40GB",
                  "sim.live.measure:measure"),
        "--out": "--out n", "--trace": "--trace bundled:tinymoe-code", "--model": f"--model {MODEL}/Q8_0",
        "--format": Refused("--format nothing"), "--name": "--name there", "--group": "--group x4",
        "--cardless": Refused("--no-cardless"), "--passes": "--passes 3", "--warmup": "--warmup 1",
        "--rows": Refused("--rows 2"), "--depth": Refused("--depth 1"),
        "--rounds": "--rounds 3", "--full": "--full",
        "--profile": "--profile <in>/p.toml",
        "--engine": Refused("--engine <in>/p.engine.toml"), "--folder": "--folder <in>",
        "--disk": Refused("--disk 1MB"), "--workers": "--workers 3", "--dry-run": "--dry-run",
    },
    "machine": {"--out": "--out m.toml", "--json": "--json out.json"},
    "model": {"--layers": "--layers", "--out": "--out m.toml", "--json": "--json out.json"},
    "placement": {
        **reading("placement {} --slots 20 --out p.strp", "", "--join"),
        "--from": Whole(f"placement --from <in>/plain.csv --model {MODEL} --slots 3 --out p.csv",
                        f"placement --from <in>/few.csv --model {MODEL} --slots 3 --out p.csv"),
        "--slots": alone("--slots 20 --out p.strp", "--slots 30 --out p.strp"), "--out": "--out q.strp",
        "--first": "--first 1", "--tokens": "--tokens 1", "--kept-only": "--kept-only",
        "--model": Refused("--model nothing"), "--format": Refused("--format nothing"),
    },
    "predictor": reading("predictor {} " + CARD, "sim.studies.predictor:study") | only(
        "--prefetch", "--placement", insertion="--insertion never-evict", predict_us="--predict-us 50",
        prefetch_bytes="--prefetch-bytes 1MiB", recalls="--recalls 0.5", precisions="--precisions 0.5",
        windows="--windows 2", rank_qualities="--rank-qualities 1", decay="--decay 0.5",
        passes="--passes 2", seed="--seed 2", workers="--workers 3",
        plot=Refused("--plot no/where/x.png"), json=Refused("--json no/where/x.json"),
    ),
    "record": {
        "--model": "--model n", "--prompt-file": "--prompt-file <in>/b.txt", "--out": Refused("--out no/where/x"),
        "--decode-tokens": "--decode-tokens 2", "--prefill-chunk": "--prefill-chunk 2", "--seed": "--seed 2",
        "--temperature": "--temperature 1", "--look-ahead": "--look-ahead 2", "--device": "--device other",
        "--dtype": "--dtype float32", "--device-map": Refused("--device cpu --device-map auto"),
        "--load-in": Refused("--load-in 3bit"), "--gguf": Refused("--gguf <in>/a.txt"),
    },
    "replay": {
        **reading("replay {} --simulator reference --json out.json --capacity 25% --eviction lru"),
        "--cold": Whole(*(f"replay <in>/req-a.parquet --simulator reference --json out.json --capacity 25% "
                          f"--eviction lru --cold {n}" for n in ("trace", "request"))),
        "--eviction": alone("--capacity 25% --eviction lru", "--capacity 25% --eviction random"),
        "--capacity": alone("--capacity 25% --eviction lru", "--capacity 30% --eviction lru"),
        "--slots-per-layer": alone("--capacity 25% --eviction lru", "--slots-per-layer 5 --eviction lru"),
        "--scope": "--scope layer", "--admission": "--admission never", "--placement": "--placement full",
        "--contract": "--contract sequential",
        "--oversize": alone(
            *(f"--capacity 25% --scope layer --eviction lru --oversize {n}" for n in ("waves", "overflow"))
        ),
        "--warmup": "--warmup 2", "--simulator": "--simulator kernel", "--stream": "--stream --simulator kernel",
        "--model": f"--model {MODEL}/Q8_0", "--format": Refused("--format nothing"), "--json": "--json other.json",
    },
    "report": {
        "--out": Whole(*(f"report <in>/swept --out {n}.html" for n in "ab"), stand_in="sim.report:write_report"),
         "--plots": "--plots p",
    },
    "run": reading("run --simulator reference --json out.json --trace {} " + CARD) | only(
        cold=Whole(*(f"run --trace <in>/req-a.parquet --simulator reference --json out.json {CARD} --cold {n}"
                     for n in ("trace", "request"))),
        trace="--trace <in>/flash.parquet", passes="--passes 2", ceiling="--ceiling", explain="--explain",
        json="--json other.json",
        simulator=Whole(PLAIN, PLAIN + " --simulator kernel", "sim.runs.simulate:simulate"),
        timeline="--timeline t.json",
        cache_type_k=(f"{CARD} --depth 4096", f"{CARD} --depth 4096 -ctk q8_0"),
        cache_type_v=(f"{CARD} --depth 4096 -ctk q8_0", f"{CARD} --depth 4096 -ctk q8_0 -ctv q4_0"),
    ),
    "score": {
        **{option: Refused(f"--trace <in>/tiny.parquet {words}") for option, words in (
            ("-o", "-o nothing"), ("--requests", "--requests 77"), ("--phase", "--phase nothing"),
            ("--top-k", "--top-k 77"),
        )},
        "--trace": "--trace <in>/tiny.parquet", "--model": Refused(f"--model {MODEL}"),
        "--passes": Refused("--passes 3"), "--format": Refused("--format parquet"), "--json": "--json other.json",
        "--compare": Refused("--compare lru nothing"), "--policy": Refused("--policy lru"),
    },
    "split": {
        "--cpu": f"{SPLIT} --cpu ryzen-5-5600x",
        "--link": f"{SPLIT} --link 3.0x1",
        "--model": alone(SPLIT, SPLIT.replace(MODEL, "olmoe-1b-7b").replace("Q8_0", "BF16")),
        "--gpu": alone(SPLIT, SPLIT.replace("rtx-3070", "tesla-p40")),
        "--quant": "--quant FP16", "--count": "--count 2", "--ram": "--ram 10500MB",
        "--machine": "--machine rtx-5070-7600",
        "--host": "--host mmap", "--headroom": "--headroom 11GB", "--session": "--session 2GiB",
        "--context": alone(FLASH, FLASH + " --context 65536"), "--kv-type": alone(FLASH, FLASH + " --kv int8"),
        "--cache-type-k": alone(FLASH, FLASH + " -ctk q8_0"), "--cache-type-v": alone(FLASH, FLASH + " -ctv q8_0"),
        "--kv-resident": alone(*(FLASH + f" --context 65536 --kv-resident {n}" for n in (0, 20480))),
        "--draft": alone(FLASH, FLASH + " --draft"),
        "--carve": alone(SPLIT + " --count 2", SPLIT + " --count 2 --carve"),
        "--rows": "--rows 2 --emitted 1.5",
        "--emitted": alone(*(f"{SPLIT} --rows 2 --emitted {n}" for n in (1, 2))),
        "--engine": "--engine strata",
        "--miss": alone(*(f"{SPLIT} --miss {n}" for n in ("cpu", "fetch"))),
        "--p2p": alone(*(SPLIT.replace("rtx-3070", "rtx-3090") + " --count 2" + p for p in ("", " --p2p"))),
        "--store": alone(*(SPLIT + p for p in ("", " --store rtx-3090"))),
        "--trace": "--trace <in>/tiny.parquet", "--format": Refused("--trace <in>/tiny.parquet --format nothing"),
        "--simulate": "--simulate 1",
        "--cpu-moe": alone(RULES + " --n-cpu-moe 2", RULES + " --cpu-moe"),
        "--n-cpu-moe": alone(RULES + " --n-cpu-moe 2", RULES + " --n-cpu-moe 3"),
        "-ot": alone(*(RULES + rf" -ot blk\.{n}\.=CPU" for n in ("3", "[3-9]"))),
        "-ts": alone(*(RULES + f" --n-cpu-moe 2 -ts {n}" for n in ("12,13", "6,19"))),
        "-ngl": alone(*(RULES + f" --n-cpu-moe 2 -ngl {n}" for n in (25, 20))), "-sm": Refused("-sm row"),
        "--plot": alone(SPLIT + " --count 2", SPLIT + " --count 2 --plot p.svg"), "--json": "--json other.json",
        "--explain": alone(*(RULES + f" --n-cpu-moe 2{words}" for words in ("", " --explain"))),
    },
    "sweep": {
        "--top-k": "--top-k 3", "-o": "-o top_k=3", "--partial": "--partial", "--join": "--join file",
        "--requests": "--requests 0",
        "--phase": "--phase decode", "--cold": "--cold request",
    } | only(
        "--card-capacity", out="--out other", trace="--trace <in>/flash.parquet", passes="--passes 2",
        seeds="--seeds 2", workers="--workers 3", scheduler="--scheduler tcp://here:1", resume="--resume",
        retry_failed="--resume --retry-failed", simulator="--simulator kernel",
        json=Whole(QUICK, QUICK + " --json"),
    ),
    "tune": {"--out": "--out other", "--trials": "--trials 3", "--resume": "--resume"},
    "validate": {
        "--group": alone("--group exact --exact <in>/exact.parquet@25MiB", "--group published"),
        "--exact": alone("--group exact", "--group exact --exact <in>/exact.parquet@25MiB"),
        "--live": Refused("--live <in>"), "--published": Refused("--published <in>/a.txt"),
        "--plot": alone("--group published", "--group published --plot p.svg"), "--json": "--json other.json",
        "--check": "--check", "--cases": "--no-cases", "--add": Refused("--add <in>/a.txt"),
        "--out": Refused("--out o"),
    },
    "vram": {
        "--model": alone(DRAFTED, DRAFTED.replace("qwen3.8-flash-next", "gpt-oss-20b")),
        "--hardware": alone(DRAFTED, DRAFTED.replace("rtx-3090", "rtx-5090")), "--context": "--context 131072",
        "--engine": "--engine strata", "--kv-type": "--kv-type int8",
        "--cache-type-k": "--cache-type-k q8_0", "--cache-type-v": "--cache-type-v q8_0",
        "--kv-resident": "--kv-resident 20480", "--draft": "--no-draft",
        "--session": alone(*(f"--model {MODEL} --hardware rtx-3090 --session {n}" for n in ("1GiB", "2GiB"))),
        "--reserve": "--reserve 1GiB", "--host": "--host mmap", "--json": "--json other.json",
    },
    "why": reading("why {} --json out.json " + CARD) | only(
        cold=Whole(*(f"why <in>/req-a.parquet --json out.json --pass 7 {CARD} --cold {n}"
                     for n in ("trace", "request"))),
        passes="--passes 2", json="--json other.json",
    ) | {"--pass": "--pass 2"},
    "window": {
        **reading("window {} --json out.json --slots 200 --horizon 1", "", "--join", "--partial"),
        "--slots": alone("--slots 200 --horizon 1", "--slots 260 --horizon 1"), "--horizon": "--horizon 2",
        "--link": "--link rtx-3090", "--profile": "--profile <in>/p.strp", "--kept-only": "--kept-only",
        "--model": Refused("--model nothing"), "--format": Refused("--format nothing"),
        "--json": "--json other.json",
    },
}  # fmt: skip


class Inputs:
    """The folder that `<in>` names, and what a line answers in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.work = folder
        self.runs = 0
        self.known: dict[tuple[str, str], Any] = {}
        self.folder.mkdir()
        self.fill()

    def fill(self) -> None:
        """Traces, sweeps, profiles and prompts that the lines read."""
        shape, style = er.load_model(MODEL), load_style("qwen3-30b-a3b")
        tiny, drafted = (
            generate(shape, style, tokens=6, prompt_tokens=4, draft_tokens=n, seed=1, weights=False)
            for n in (0, 2)
        )
        write_parquet(tiny, self.folder / "tiny.parquet")
        write_parquet(drafted, self.folder / "drafted.parquet")
        for n in "ab":
            two = generate(shape, style, tokens=6, requests=2, prompt_tokens=4, seed=2, weights=False)
            write_parquet(two, self.folder / f"req-{n}.parquet")
        part = tiny.select_passes(tiny.pass_phase == 1)
        some = TraceBuilder(shape, synthetic=True)
        for event, rows in enumerate(part.event_row_offsets[:-1]):
            if part.event_layer[event] == 0:
                some.begin_pass(Phase.DECODE)
            if part.event_layer[event] < 20:
                lo, hi = part.row_offsets[rows : rows + 2]
                some.row(int(part.event_layer[event]), part.row_experts[lo:hi].tolist())
        write_parquet(some.build(whole=False), self.folder / "part.parquet")
        flash = er.load_model("qwen3.8-flash-next")
        made = generate(flash, load_style("qwen3.8-flash-next"), tokens=3, seed=1, weights=False)
        write_parquet(made, self.folder / "flash.parquet")
        (self.folder / "plain.csv").write_text(
            "layer,expert\n" + "".join(f"{n},{e}\n" for n in range(24) for e in range(8))
        )
        (self.folder / "few.csv").write_text("layer,expert\n3,4\n")
        seen = np.ones(tiny.n_routed, dtype=np.int8)
        write_parquet(replace(tiny, row_residency=seen), self.folder / "exact.parquet")
        (self.folder / "a.txt").write_text("one")
        (self.folder / "b.txt").write_text("two")
        (self.folder / "tune.toml").write_text(TUNE)
        (self.folder / "runs.csv").write_text("capacity,miss,tokens_per_s\n0B,cpu,90\n50%,fetch,120\n")
        (self.folder / "p.toml").write_text('name = "p"\nbase = "rtx-3090"\nsummary = "s"\n')
        (self.folder / "own.toml").write_text(
            'base = "fetch-lru"\nname = "own"\n[knobs.cache]\nsets = "capacity"\nvalues = [0.01, 0.02]\n'
        )
        (self.folder / "p.engine.toml").write_text('name = "p"\nbase = "generic"\nsummary = "s"\nsource = "s"\n')
        for words in (
            QUICK.replace("--out s", "--out <in>/swept"),
            "placement <in>/tiny.parquet --slots 20 --out <in>/p.strp",
            f"run --trace <in>/tiny.parquet --simulator reference {CARD} --json <in>/run.json",
        ):
            assert self.answer(words, "")[0] == 0

    def answer(self, words: str, stand_in: str) -> tuple[int, Any]:
        """(exit code, what it says): of one line, remembered."""
        if (words, stand_in) not in self.known:
            self.known[words, stand_in] = self.ask(words.replace("<in>", str(self.folder)).split(), stand_in)
        return self.known[words, stand_in]

    def ask(self, words: list[str], stand_in: str) -> tuple[int, Any]:
        self.runs += 1
        place = self.work / str(self.runs)
        place.mkdir()
        said: list[Any] = []

        def reached(*args: Any, **named: Any) -> None:
            said.append([plain(value) for value in (*args, *sorted(named.items()))])
            raise Reached

        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
            patch.chdir(place)
            patch.setenv("COLUMNS", "200")
            for name, module in FAKES.items() if words[0] == "record" else ():
                patch.setitem(sys.modules, name, module)
            if stand_in:
                module, _, name = stand_in.partition(":")
                patch.setattr(f"expert_residency.{module}.{name}", reached)
            code = run(words)
        files = {str(p.relative_to(place)): p for p in sorted(place.rglob("*")) if p.is_file()}
        read = {name: content(path) for name, path in files.items()}
        silent = code == 0 and any(name.endswith(".json") for name in read)
        return code, [said, read, "" if silent else out.getvalue().replace(str(place), "")]


def run(words: list[str]) -> int:
    """Exit code of a command line."""
    try:
        with suppress(Reached):
            commands()(words)
    except UserError as error:
        sys.stderr.write(str(error))
        return 2
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@cache
def commands() -> Any:
    """The command line, built once."""
    _register()
    return typer.main.get_command(app)


def plain(value: Any) -> Any:
    """What a stand-in was given, as text that is equal for equal choices."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, RoutingTrace):
        return [value.geometry.label, value.content_hash]
    if isinstance(value, Path) and value.suffix == ".toml" and value.is_file():
        return value.read_text()
    return repr(value) if isinstance(value, Loaded) or not callable(value) else ""


def content(path: Path) -> Any:
    """Numbers of a JSON file, bytes of another."""
    return without(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


def without(data: Any) -> Any:
    """Plain data without what repeats the question."""
    if isinstance(data, dict):
        return {key: without(value) for key, value in data.items() if key not in ECHO}
    return [without(one) for one in data] if isinstance(data, list) else data


def torch_like() -> dict[str, Any]:
    """Just enough of the libraries that record a model."""

    auto = SimpleNamespace(from_pretrained=lambda name, **more: Loaded(name, **more))
    library = SimpleNamespace(AutoTokenizer=auto, AutoModelForCausalLM=auto)
    return {"torch": SimpleNamespace(device=str), "transformers": library}


class Loaded:
    """A model or tokenizer that knows what it was made of and where it went."""

    def __init__(self, name: str, **options: Any) -> None:
        self.said = [name, options]

    def __call__(self, text: str) -> dict[str, Any]:
        return {"input_ids": text}

    def __repr__(self) -> str:
        return repr(self.said)

    def to(self, place: Any) -> None:
        self.said.append(place)


FAKES = torch_like()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("options"))


def options() -> Iterator[tuple[str, str]]:
    """Every option of every command."""
    for name, command in commands().commands.items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                yield name, parameter.opts[0]


def test_every_option_has_a_case() -> None:
    assert {name: set(cases) for name, cases in CASES.items()} == {
        name: {option for own, option in options() if own == name} for name, _ in options()
    }


@pytest.mark.parametrize(("command", "option"), list(options()), ids=lambda part: part)
def test_an_option_has_an_effect_or_is_refused(command: str, option: str, inputs: Inputs) -> None:
    line, case = LINES[command], CASES[command][option]
    if isinstance(case, Whole):
        line, case = Line("", stand_in=case.stand_in), (case.first, case.second)
    if isinstance(case, Refused):
        code, said = inputs.answer(f"{line.base} {line.default} {case.words}", case.stand_in)
        assert code == 2, said
        value = case.words.rpartition(option)[2].split()[0] if option in case.words else option
        assert option in said[2] or value.replace("<in>", str(inputs.folder)) in said[2], said
        return
    first, second = case if isinstance(case, tuple) else (line.default, f"{line.default} {case}")
    stand_in = line.stand_in
    before, after = (inputs.answer(f"{line.base} {words}", stand_in) for words in (first, second))
    assert (before[0], after[0]) in ((0, 0), (0, 1)), (before, after)
    assert before != after


@pytest.mark.parametrize("words", [f"vram {DRAFTED}", f"split {FLASH}"])
def test_the_kv_type_has_one_name_everywhere(words: str, inputs: Inputs) -> None:
    """`--kv-type` as `run` has it; `--kv` is the same."""
    old, new = (inputs.answer(f"{words} {option} int8", "") for option in ("--kv", "--kv-type"))
    assert old == new != inputs.answer(words, "")
    assert old[0] == 0


WHOLE = f"{RULES} --n-cpu-moe 24"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (f"vram {DRAFTED}", f"vram {DRAFTED}".replace("--context", "-c")),
        (f"vram {DRAFTED}", f"vram {DRAFTED}".replace("--context", "--ctx-size")),
        (f"vram {DRAFTED} --kv-type q8_0", f"vram {DRAFTED} -ctk q8_0 -ctv Q8_0"),
        (f"vram {DRAFTED} --kv-type q8_0/f16", f"vram {DRAFTED} --cache-type-k q8_0"),
        (f"vram {DRAFTED} --kv-type f16/q4_0", f"vram {DRAFTED} --cache-type-v q4_0"),
        (f"split {FLASH} --context 65536 --kv q8_0/q4_0", f"split {FLASH} -c 65536 -ctk q8_0 -ctv q4_0"),
        (f"split {WHOLE}", f"split {WHOLE}".replace("--n-cpu-moe", "-ncmoe")),
        *((f"split {WHOLE}", f"split {RULES} {option}") for option in ("--cpu-moe", "-cmoe")),
        (f"split {WHOLE} -ngl 20 -ts 12,13", f"split {WHOLE} --n-gpu-layers 20 --tensor-split 12,13"),
        (f"split {RULES} -ot exps=CPU", f"split {RULES} --override-tensor exps=CPU"),
    ],
)  # fmt: skip
def test_llama_cpp_s_own_spellings(ours: str, theirs: str, inputs: Inputs) -> None:
    first, second = (inputs.answer(words, "") for words in (ours, theirs))
    assert first == second
    assert first[0] == 0, first


@pytest.mark.parametrize(
    ("words", "named"),
    [
        *((f"split {RULES} --n-cpu-moe 2 {more}", more.split()[0]) for more in (
            "--host arena", "--miss cpu", "--store rtx-3090", "--simulate 1", "--carve", "--quant FP16",
            "--plot p.svg", "--kv-resident 20480",
        )),
        *((f"vram {DRAFTED} --kv-type q8_0 --cache-type-{one} q4_0", f"--cache-type-{one}") for one in "kv"),
        (f"vram {DRAFTED} --cache-type-k nothing", "nothing"),
        *((f"split {SPLIT} {more}", more.split()[0]) for more in (
            "--context 4096", "--kv fp16", "--cache-type-k f16",
            "--cpu-moe", "--kv-resident 20480", "--draft", "--format parquet", "-ts 12,13",
            "-ngl 9", "--split-mode row",
        )),
        ("run --trace bundled:tinymoe-prose --hardware rtx-3090 --capacity 25% --format parquet", "--format"),
        *((f"validate --add <in>/a.txt {more}", more.split()[0]) for more in ("--check", "--plot p.svg")),
        ("validate --out o", "--add"),
        ("validate --group exact --live <in>", "--live"),
        ("validate --group exact --published <in>/a.txt", "--published"),
        ("validate --group published --exact <in>/exact.parquet@25MiB", "--exact"),
    ],
)  # fmt: skip
def test_what_has_no_use_beside_others_is_refused_by_name(words: str, named: str, inputs: Inputs) -> None:
    code, said = inputs.answer(words, "")
    assert code == 2
    assert named in said[2]
