"""Results as pandas frames; the methods called `frame` of the results lead here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from expert_residency.sim.runs.counts import ReplayResult
    from expert_residency.sim.split.study import Study
    from expert_residency.sim.timed.result import RunResult


def pass_frame(result: RunResult) -> pd.DataFrame:
    """One row a pass: `phase`, `emits` (tokens), `ms`, and its causes as `CAUSE_ms`, which add up to `ms`."""
    import pandas as pd

    from expert_residency.sim.timed.result import CAUSES, PHASES

    frame = pd.DataFrame({"phase": [PHASES[phase] for phase in result.pass_phase.tolist()]})
    frame["emits"] = result.pass_emits
    frame["ms"] = result.pass_ns / 1e6
    for i, cause in enumerate(CAUSES):
        frame[f"{cause}_ms"] = result.pass_causes[:, i] / 1e6
    frame.index.name = "pass"
    return frame


def counter_frame(result: ReplayResult) -> pd.DataFrame:
    """One row a phase, with `all` and `warm`: look-ups, hits, rates, `miss_bytes`."""
    import pandas as pd

    counters = result.phases | {"warm": result.warm}
    frame = pd.DataFrame([c.to_dict() for c in counters.values()], index=list(counters))
    frame.index.name = "phase"
    return frame


def split_frame(study: Study) -> pd.DataFrame:
    """One row an answer, fastest first: cards, layers of each, bytes in VRAM and RAM, tokens/s, or the limit."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for answer in study.answers:
        placement = answer.placement
        row: dict[str, Any] = {
            "cards": "+".join(answer.ordered),
            "quant": answer.geometry.quant,
            "host": answer.mode,
            "fits": placement is not None,
            "limit": answer.limit or None,
        }
        if placement is not None:
            row |= {
                "layers_each": "+".join(map(str, placement.layers_each)),
                "vram_expert_bytes": placement.vram_expert_bytes,
                "ram_needed_bytes": placement.ram.needed_bytes,
                "hit_rate": placement.hit_rate,
                "estimated_tokens_per_s": placement.tokens_per_s,
                "simulated_tokens_per_s": answer.simulated and answer.simulated.tokens_per_s,
            }
        rows.append(row | {"tokens_per_s": answer.tokens_per_s})
    return pd.DataFrame(rows).sort_values("tokens_per_s", ascending=False, kind="stable", ignore_index=True)
