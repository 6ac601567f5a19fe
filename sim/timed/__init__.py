"""The definition of time: machine, costs, channels, host memory and the SimPy engine."""
