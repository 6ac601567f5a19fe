"""The replay compiled: loops over residency that count, without time."""
