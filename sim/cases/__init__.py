"""Published cases worked out: what was measured, what is fitted on which rows, what comes out for the others."""
