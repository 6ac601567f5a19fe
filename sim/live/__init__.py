"""Real runs: a trace replayed with real copies, real reads and real expert compute.

`schedule` takes every decision beforehand, with the simulator's own residency pool and policies; the engines of
`hwmodels.executor` only carry them out against the clock; `arms` repeats and interleaves runs and writes the
table.
"""
