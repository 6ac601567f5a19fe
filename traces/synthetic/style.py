"""How a model routes, in eight numbers, and the published statistics that they were fitted to.

A style file (`traces/styles/*.toml`) holds the numbers, the workloads in which published statistics were taken,
and for each statistic what was asked and what the generator gives. Nothing in it is a copy of a trace.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from expert_residency.errors import TraceError
from expert_residency.toml import Shelf, checked

STYLES = Shelf("expert_residency.traces", "styles", "routing style", TraceError)
"""Where styles are."""


class RoutingStyle(BaseModel):
    """Parameters of the routing model (`docs/synthetic.md`); logits are in nats.

    Attributes
    ----------
    base_skew
        Standard deviation over experts of the log-popularity that all requests share.
    request_tilt
        Standard deviation of the log-popularity that a request adds of its own.
    tilt_half_life_tokens
        Tokens after which the request's own preference has lost half its correlation with itself.
    dead_tail
        Shape g of the preference (base and tilt together) in Tukey's g family: 0 is normal; more gives many
        experts that are hardly ever used and a flatter top, as recorded counts have. The variance stays.
    memory
        Logit that an expert gains when the previous token used it.
    memory_half_life_tokens
        Lags after which that gain has halved; beyond lag 16 there is none.
    layer_spread
        Standard deviation over layers of the log of their *locality*, the factor on all of the above (an
        inverse temperature of the layer's router).
    first_layer
        Locality of the first MoE layer, which recovers to 1 over the next layers with a length of 2 layers:
        first layers route by token more than by context.
    weight_temperature
        Mixing weights are a softmax of the chosen scores divided by this.
    model_seed
        Which experts the model favours. Another `seed` of a trace is another workload of the same model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    base_skew: float = Field(ge=0, le=5)
    request_tilt: float = Field(ge=0, le=5)
    tilt_half_life_tokens: float = Field(gt=0)
    dead_tail: float = Field(default=0.0, ge=0, le=1)
    memory: float = Field(ge=0, le=10)
    memory_half_life_tokens: float = Field(gt=0, le=100)
    layer_spread: float = Field(default=0.0, ge=0, le=1)
    first_layer: float = Field(default=1.0, ge=0, le=1)
    weight_temperature: float = Field(default=2.5, gt=0)
    model_seed: int = Field(default=0, ge=0)


class Workload(BaseModel):
    """What the model does while a statistic is taken (arguments of `generate`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    requests: int = Field(ge=1)
    tokens: int = Field(ge=1)
    prompt_tokens: int = Field(default=0, ge=0)
    draft_tokens: int = Field(default=0, ge=0)
    acceptance: float = Field(default=0.7, ge=0, le=1)
    draft_floor: float = Field(default=0.0, ge=0, le=1)
    about: str = ""


class Target(BaseModel):
    """One published statistic: asked and got.

    `statistic` is a name that `measure` knows. `fitted` says whether the fit saw it; the others are checks.
    `tolerance` is the absolute error that counts as 1 in the fit and that the tests allow; `layer` restricts
    the statistic to one MoE layer, counted from 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: str
    workload: str
    asked: float
    got: float | None = None
    tolerance: float = Field(gt=0)
    fitted: bool = True
    layer: int | None = None
    source: str
    note: str = ""


class StyleFile(BaseModel):
    """A style with its evidence.

    The statistics are taken on `layers` x `experts`, `top_k`; the fit moved `free_parameters`, the others were
    set by hand (why: `description`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    description: str
    experts: int
    top_k: int
    layers: int
    fit_seed: int = 0
    free_parameters: list[str]
    style: RoutingStyle
    workloads: dict[str, Workload]
    targets: list[Target]

    @model_validator(mode="after")
    def _known_workloads(self) -> StyleFile:
        for target in self.targets:
            if target.workload not in self.workloads:
                raise ValueError(f"target {target.statistic} names an unknown workload {target.workload!r}")
        return self


def list_styles() -> list[str]:
    """Names of the packaged styles."""
    return STYLES.names()


def load_style_file(name: str) -> StyleFile:
    """Packaged style by name, or a TOML file of the same form, with its targets.

    Raises
    ------
    TraceError
        Unknown name (the valid ones are listed), missing file, or a file that does not validate.
    """
    return checked(StyleFile, STYLES.load(name), TraceError, STYLES.where(name))


def load_style(name: str) -> RoutingStyle:
    """The parameters alone of `load_style_file`."""
    return load_style_file(name).style
