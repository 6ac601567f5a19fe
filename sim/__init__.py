"""Time: residency, channels, the event-driven engine, scores, sweeps, plans, reports and the command line."""
