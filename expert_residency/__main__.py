"""`python -m expert_residency` is the command `residency`."""

from expert_residency.sim.cli import main

main()
