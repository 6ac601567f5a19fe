"""Seeded synthetic routing: a small random model of how an MoE model routes, fitted to published statistics."""

from expert_residency.traces.synthetic.generator import GENERATOR_VERSION, generate
from expert_residency.traces.synthetic.measure import lru_curve, measure
from expert_residency.traces.synthetic.style import RoutingStyle, list_styles, load_style

__all__ = ["GENERATOR_VERSION", "RoutingStyle", "generate", "list_styles", "load_style", "lru_curve", "measure"]
