"""The leaderboard: all policies on traces x machines x capacities x miss modes, ranked by time with intervals."""

from expert_residency.sim.studies.leaderboard.board import Board, Place, Row, leaderboard
from expert_residency.sim.studies.leaderboard.field import BASELINE, Entrant, entrant_of, registered

__all__ = ["BASELINE", "Board", "Entrant", "Place", "Row", "entrant_of", "leaderboard", "registered"]
