"""The timed model in compiled code: what `sim.timed.engine` defines, with the same integers."""
