"""What an engine with slots finds on the card, by the share of experts that has slots, on generated routing.

Residents are chosen by a profile of other generated texts (or of the same ones, where a run says so) and exchanged
by the engine's own policy; nothing of a measured run is in it.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.traces import Phase, RoutingTrace, load_model
from expert_residency.traces.synthetic import generate, load_style

SHARES = (0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.4, 0.48, 0.64, 0.8)
"""Of a layer's experts that have slots."""
_ROOMY = "a100-80gb:cpu=epyc-7763,ram=512GB"
"""A machine that holds any of them: only counts are taken from it."""
_MODEL, _QUANT = "qwen3.8-flash-next", "Q2_0"
_TOKENS, _TEXTS = 80, 3
_SEEN_TOKENS, _SEEN_TEXTS = 50, 12


def _profile(trace: RoutingTrace, folder: str) -> Path:
    """Experts by how often a trace wants them, as a file that engines start from."""
    geometry = trace.geometry
    wanted = np.bincount(trace.keys, weights=trace.rows_wanting, minlength=geometry.n_experts)
    lines = [
        f"{key // geometry.experts},{key % geometry.experts},{int(wanted[key])}" for key in range(len(wanted))
    ]
    path = Path(folder) / "profile.csv"
    path.write_text("\n".join(["layer,expert,count", *lines]), encoding="utf-8")
    return path


@cache
def generated_hits(own_profile: bool) -> tuple[float, ...]:
    """Share of routed look-ups that the card serves, for every share of `SHARES`.

    Parameters
    ----------
    own_profile
        Whether the profile is that of the texts that run.
    """
    geometry, style = load_model(_MODEL, _QUANT), load_style(_MODEL)
    trace = generate(
        geometry, style, tokens=_TOKENS, requests=_TEXTS, draft_tokens=2, acceptance=0.75, seed=3, weights=False
    )
    seen = trace if own_profile else generate(
        geometry, style, tokens=_SEEN_TOKENS, requests=_SEEN_TEXTS, seed=77, weights=False
    )  # fmt: skip
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = _profile(seen, folder)
        for share in SHARES:
            slots = max(1, round(share * geometry.experts))
            spec = RunSpec.for_engine(
                "strata", hardware=_ROOMY, capacity=f"{slots}/layer", placement=f"profile:file={path}"
            )
            served = simulate(trace, spec).served_routed[Phase.VERIFY]
            found.append(float(served[0] / served.sum()))
    return tuple(found)


def hit_share(slots_share: float, own_profile: bool) -> float:
    """Straight lines between the simulated points, to everything at all experts."""
    known = generated_hits(own_profile)
    return float(np.interp(slots_share, (0.0, *SHARES, 1.0), (0.0, *known, 1.0)))
