"""The map at a predictor's own recall, precision and rank quality: a noisy oracle that is tuned to them."""

from __future__ import annotations

from collections.abc import Sequence

from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.studies.predictor.grid import noisy
from expert_residency.sim.studies.predictor.measured import Point
from expert_residency.sim.studies.predictor.proposals import Quality
from expert_residency.sim.studies.predictor.runs import Runs, base_with
from expert_residency.sim.timed.result import RunResult

ROUNDS = 4
"""Runs in which a noisy oracle is tuned to a predictor."""
DRAWS = 3
"""Seeds that a tuned oracle is run with: one draw over 16 passes lies up to 1.5 points beside their mean."""


class Tuned:
    """A noisy oracle that is to reach a predictor's recall and precision."""

    def __init__(self, point: Point, quality_of: Quality, seed: int) -> None:
        self.prefetch = point.prefetch
        self.quality = quality_of
        self.seed = seed
        self.recall = self.precision = 0.0
        self.found: RunResult | None = None

    def words(self, draw: int = 0) -> str:
        """The oracle as it is tuned now, with another seed for each draw."""
        ahead = round(self.quality.layers_ahead or 1)
        rank = 0.5 if self.quality.rank_quality is None else self.quality.rank_quality
        return noisy(self.recall, self.precision, rank, window=ahead, nearest=ahead,
                     within_pass=self.quality.within_pass, seed=self.seed + draw)  # fmt: skip

    def tune(self, result: RunResult, recall: float, precision: float) -> None:
        """Take what it reached, and set it for the next run.

        Parameters
        ----------
        result
            Its run.
        recall, precision
            The predictor's, which are to be reached.
        """
        self.found = result
        reached = result.prefetch
        self.recall = min(1.0, max(0.001, self.recall + recall - (reached.recall or 0.0)))
        if reached.precision:
            self.precision = min(1.0, max(0.01, self.precision * precision / reached.precision))


def tune(
    runs: Runs, base: RunSpec, tuned: Sequence[Tuned], result_of: dict[str, RunResult]
) -> dict[str, list[RunResult]]:
    """Runs of noisy oracles that reach what predictors reach, by the predictor's words, where they can.

    Parameters
    ----------
    runs
        Runs them.
    base
        Everything but the prefetcher.
    tuned
        One for each predictor.
    result_of
        The predictors' own runs, by their words.

    Returns
    -------
    dict
        Of each whose last run has recall and precision within 0.02 of the predictor's: that run, and those of
        the same oracle with other seeds.
    """
    going: list[tuple[Tuned, float, float]] = []
    for one in tuned:
        stats = result_of[one.prefetch].prefetch
        if stats.issued and stats.recall and stats.precision:
            one.recall, one.precision = stats.recall, max(0.01, stats.precision)
            going.append((one, stats.recall, stats.precision))
    for _ in range(ROUNDS):
        for (one, *target), result in zip(
            going, runs.run([base_with(base, one.words()) for one, *_ in going]), strict=True
        ):
            one.tune(result, *target)
    found, near = {}, []
    for one, recall, precision in going:
        assert one.found is not None
        reached = one.found.prefetch
        if abs((reached.recall or 0.0) - recall) < 0.02 and abs((reached.precision or 0.0) - precision) < 0.02:
            found[one.prefetch] = [one.found]
            near.append(one)
    more = [(one, draw) for one in near for draw in range(1, DRAWS)]
    results = runs.run([base_with(base, one.words(draw)) for one, draw in more])
    for (one, _), result in zip(more, results, strict=True):
        found[one.prefetch].append(result)
    return found
