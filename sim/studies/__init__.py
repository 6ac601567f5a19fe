"""Questions that take several runs: scores, bounds, headroom, predictors, drafts, tuning."""
