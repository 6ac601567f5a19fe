"""Real runs: a trace replayed with real copies, real reads and real expert compute.

`schedule` takes every decision beforehand, with the simulator's own residency pool and policies; `card` and
`cardless` only carry them out against the clock; `arms` repeats and interleaves runs and writes the table.
"""
