"""The random process behind one request: preference, short memory, and Gumbel-top-k.

For every layer and expert the score of a token is

    locality * (preference(base + tilt) + memory(lag since last use)) + Gumbel noise

and the token takes the k best: a draw without replacement in proportion to exp(score without the noise)
(Gumbel-top-k, Kool et al. 2019, arXiv 1903.06059). `preference` skews a normal variable as Tukey's g does
(Tukey 1977: z -> (1 - exp(-g z)) / g), then gives it its mean and variance back. `tilt` is an
Ornstein-Uhlenbeck walk, moved once in `TILT_STEP` tokens. All layers are drawn at once.

Only uniform doubles of PCG64 are used, turned by formulas below: numpy promises that stream, while its
normal and Gumbel methods may change with its version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from expert_residency.traces.synthetic.style import RoutingStyle

FloatArray = npt.NDArray[np.float64]
MEMORY_LAGS = 16
TILT_STEP = 16
SMALLEST_G = 1e-6  # below it the skew is smaller than rounding
FIRST_LAYER_RECOVERY = 2.0


def stream(*words: int) -> np.random.Generator:
    """Independent generator for a tuple of non-negative integers."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Uniform doubles in (0, 1)."""
    return np.maximum(rng.random(shape), 2.0**-54)


def normals(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Standard normals (Box-Muller)."""
    radius = np.sqrt(-2.0 * np.log(_uniform(rng, shape)))
    return np.asarray(radius * np.cos(2.0 * np.pi * _uniform(rng, shape)))


def skewed(value: FloatArray, deviation: float, g: float) -> FloatArray:
    """Normal `value` of standard `deviation`, left-skewed by Tukey's `g`, with the same mean 0 and deviation.

    Parameters
    ----------
    value
        Draws of mean 0.
    deviation
        Their standard deviation.
    g
        Skewness parameter, 0 for none.

    Returns
    -------
    FloatArray
        Draws of the same shape.
    """
    if g < SMALLEST_G or deviation == 0.0:
        return value
    mean = -np.expm1(g * g / 2) / g
    spread = np.sqrt(np.exp(g * g) * np.expm1(g * g)) / g
    return np.asarray(deviation * (-np.expm1(-g * value / deviation) / g - mean) / spread)


class ModelBias:
    """What all requests of a model share: popularity (L, E) and locality (L, 1), from `style.model_seed`."""

    def __init__(self, style: RoutingStyle, layers: int, experts: int) -> None:
        rng = stream(style.model_seed)
        self.base = style.base_skew * normals(rng, (layers, experts))
        depth = np.arange(layers)[:, None]
        shallow = 1.0 - (1.0 - style.first_layer) * np.exp(-depth / FIRST_LAYER_RECOVERY)
        self.locality = shallow * np.exp(style.layer_spread * normals(rng, (layers, 1)))


class RequestProcess:
    """Routing of one request, token by token.

    Parameters
    ----------
    style, bias
        The model.
    rng
        The request's own stream.
    """

    def __init__(self, style: RoutingStyle, bias: ModelBias, rng: np.random.Generator) -> None:
        self._rng = rng
        self._bias = bias
        self._shape = bias.base.shape
        self._tilt = style.request_tilt * normals(rng, self._shape)
        self._deviation = float(np.hypot(style.base_skew, style.request_tilt))
        self._g = style.dead_tail
        self._preference = skewed(bias.base + self._tilt, self._deviation, self._g)
        self._keep = 0.5 ** (TILT_STEP / style.tilt_half_life_tokens)
        self._fresh = style.request_tilt * np.sqrt(1.0 - self._keep**2)
        lags = np.arange(MEMORY_LAGS)
        gain = style.memory * 0.5 ** (lags / style.memory_half_life_tokens)
        self._gain = np.concatenate([gain, [0.0]])
        self._never = -MEMORY_LAGS - 1
        self._last = np.full(self._shape, self._never, dtype=np.int64)
        self._clock = 0

    def draw(self, n_best: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """The `n_best` experts of the next token and their scores, both (L, n_best), best first."""
        if self._clock and self._clock % TILT_STEP == 0:
            self._tilt = self._keep * self._tilt + self._fresh * normals(self._rng, self._shape)
            self._preference = skewed(self._bias.base + self._tilt, self._deviation, self._g)
        lag = np.minimum(self._clock - self._last - 1, MEMORY_LAGS)
        noise = -np.log(-np.log(_uniform(self._rng, self._shape)))
        score = self._bias.locality * (self._preference + self._gain[lag]) + noise
        part = np.argpartition(score, self._shape[1] - n_best, axis=1)[:, self._shape[1] - n_best :]
        value = np.take_along_axis(score, part, axis=1)
        order = np.argsort(-value, axis=1, kind="stable")
        return np.take_along_axis(part, order, axis=1), np.take_along_axis(value, order, axis=1)

    def use(self, experts: npt.NDArray[np.int64]) -> None:
        """Remember the (L, k) experts of the token just drawn and step to the next one."""
        np.put_along_axis(self._last, experts, self._clock, axis=1)
        self._clock += 1

    def state(self) -> tuple[int, npt.NDArray[np.int64], FloatArray, FloatArray]:
        """Snapshot for `rewind`."""
        return self._clock, self._last.copy(), self._tilt, self._preference

    def rewind(self, state: tuple[int, npt.NDArray[np.int64], FloatArray, FloatArray]) -> None:
        """Forget the tokens since `state` (rejected drafts); the noise stream goes on."""
        self._clock, last, self._tilt, self._preference = state
        self._last = last.copy()
