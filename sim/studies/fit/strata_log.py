"""The log of Strata's server as runs: one a request, with the cache that it had, its depth and its verify windows.

Lines as the engine writes them (Niko1221/Strata, src/program): a start prints the slots of the cache and what they
take; a request its prompt, what it generated and how many drafts were accepted; the line after that where routed
experts were found. Of `G` tokens of which `A` were accepted drafts, `G - A` windows verified them, with `O` drafts
offered: `(G - A + O) / (G - A)` rows each.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from expert_residency.errors import SimError
from expert_residency.sim.studies.fit.runs import MeasuredRun

MARK = "strata serve: prompt "
FEWEST = 32
"""Tokens of a request from which on its speed is one."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REQUEST = re.compile(
    r"strata serve: prompt (\d+) tokens = (\d+) reused \+ (\d+) read in [\d.]+ ms \([\d.]+ tok/s\), "
    r"(\d+) generated in ([\d.]+) ms \([\d.]+ tok/s\)(?:, drafts accepted (\d+) of (\d+))?"
)
_CACHE = re.compile(r"expert cache (\d+) slots, ([\d.]+) GiB of VRAM")
_WORKERS = re.compile(r"(\d+) expert-pool workers")


def read_strata_log(text: str, path: Path) -> tuple[list[MeasuredRun], list[str]]:
    """Requests of a log, and why others are left out.

    Parameters
    ----------
    text
        The log, of one or more starts.
    path
        Its file, for messages.

    Returns
    -------
    runs, left_out
        `left_out` has a sentence for each request that is not among the runs.

    Raises
    ------
    SimError
        No line of a request that can be read.
    """
    cache, workers = "", ""
    found: list[tuple[MeasuredRun, str]] = []
    left_out = []
    for line, raw in enumerate(text.splitlines(), start=1):
        said = _COLOUR.sub("", raw)
        if match := _CACHE.search(said):
            cache = f"{match[2]}GiB"
        elif match := _WORKERS.search(said):
            workers = match[1]
        elif MARK in said:
            request = _REQUEST.search(said)
            if request is None:
                left_out.append(f"line {line}: a request that is not written as Strata 0.1.31 to 0.1.45 do")
            elif why := _no_speed(request, cache):
                left_out.append(f"line {line}: {why}")
            else:
                found.append((_run(request, f"line {line}", cache), workers))
    if not found and not left_out:
        raise SimError(f"{path}: no line of a request ({MARK.strip()!r})")
    usual = Counter(pool for _, pool in found).most_common(1)[0][0] if found else ""
    left_out += [
        f"{run.name}: {pool or 'unknown'} workers where most requests have {usual or 'an unknown number'}"
        for run, pool in found if pool != usual
    ]  # fmt: skip
    return [run for run, pool in found if pool == usual], left_out


def _no_speed(request: re.Match[str], cache: str) -> str:
    prompt, reused, read, made = (int(request[n]) for n in range(1, 5))
    if not cache:
        return "no line 'expert cache N slots, X GiB of VRAM' stands before it, so its cache is not known"
    if prompt != reused + read:
        return f"prompt {prompt} is not {reused} reused and {read} read"
    if made < FEWEST:
        return f"{made} tokens generated are too few for a speed (at least {FEWEST})"
    if not float(request[5]) > 0:
        return "it took no time"
    accepted, offered = int(request[6] or 0), int(request[7] or 0)
    if accepted > offered or accepted >= made:
        return f"{accepted} of {offered} drafts accepted do not go with {made} tokens generated"
    return ""


def _run(request: re.Match[str], where: str, cache: str) -> MeasuredRun:
    prompt, made, ms = int(request[1]), int(request[4]), float(request[5])
    accepted, offered = int(request[6] or 0), int(request[7] or 0)
    rounds = made - accepted
    return MeasuredRun(
        where, {"capacity": cache, "depth": prompt + made // 2}, 1000 * made / ms,
        windows=(round((rounds + offered) / rounds, 2), round(made / rounds, 2)),
    )  # fmt: skip
