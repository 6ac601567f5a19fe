"""The timed model in compiled code: what `sim.engine` defines, with the same integers."""
