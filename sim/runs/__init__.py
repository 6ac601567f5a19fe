"""One run, by either engine: timed, counted, streamed, or over a curve of capacities."""
