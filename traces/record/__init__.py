"""Recording: a model is run on prompts, and what its routers decide becomes a trace.

`routers` finds where a loaded transformers model decides, `sizes` counts its bytes, `run` runs it; `llamacpp` runs
a GGUF file through llama-cpp-python.
"""

from expert_residency.traces.record.routers import find_routers
from expert_residency.traces.record.run import record
from expert_residency.traces.record.sizes import geometry_of

__all__ = ["find_routers", "geometry_of", "record"]
