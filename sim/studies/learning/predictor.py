"""What a learned predictor is, and finding one by name."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Ahead, check_parameters
from expert_residency.sim.studies.learning.request import Request
from expert_residency.text import check_known, parse_call

GROUP = "expert_residency.predictor"
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Predictor(ABC):
    """A predictor that is fitted to some requests and then scores the experts of others.

    A subclass is a frozen dataclass whose fields are its parameters. `fit` is never handed a request that its
    model is evaluated on. What `scores` may use of a request is written in `Request`; that it keeps to it is
    checked by changing everything that it must not have seen.
    """

    name: ClassVar[str]
    source: ClassVar[str]

    depth: Ahead = 1
    """Layers between the event that is done and the one that is predicted."""

    def __post_init__(self) -> None:
        """Check the parameters, as `policies.parameters` has it."""
        check_parameters(self)

    @abstractmethod
    def fit(self, requests: Sequence[Request]) -> Any:
        """A model of any kind, learned from whole requests."""

    @abstractmethod
    def scores(self, model: Any, request: Request) -> Scores:
        """How much each expert is expected, at each event of a request.

        Parameters
        ----------
        model
            What `fit` made.
        request
            One that `fit` has not seen.

        Returns
        -------
        array
            (T, L, E): entry (t, l) is what was known of layer l of token t when layer l - depth of its pass was
            done; -inf where nothing is predicted. Entries of layers before `depth` are not looked at.
        """


def predictors() -> list[str]:
    """Names of registered predictors, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def create_predictor(words: str) -> Predictor:
    """Predictor from `name` or `name:param=value,...`.

    Raises
    ------
    PolicyError
        No such name or parameter (the valid ones are listed), a value of another kind, or a plug-in that cannot be
        imported.
    """
    name, given = parse_call(words, "predictor", PolicyError)
    check_known("predictor", name, predictors(), PolicyError)
    try:
        cls = next(point for point in entry_points(group=GROUP) if point.name == name).load()
    except ImportError as error:
        raise PolicyError(f"predictor {name!r} cannot be imported: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Predictor)):
        raise PolicyError(f"predictor {name!r}: {cls!r} is no Predictor")
    hints = typing.get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls)]
    values: dict[str, Any] = {}
    for key, text in given.items():
        check_known(f"predictor {name}: parameter", key, known, PolicyError)
        kind = hints[key]
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
        try:
            values[key] = kind(text)
        except ValueError:
            raise PolicyError(f"predictor {name}: {key} is {text!r}, expected {kind.__name__}") from None
    return cls(**values)
