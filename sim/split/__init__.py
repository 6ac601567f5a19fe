"""Which split: placing a model on one to four cards and host memory."""

from typing import TYPE_CHECKING, Any

from sim.callable import make_callable

if TYPE_CHECKING:
    from sim.split.study import Study


def _split(*args: Any, **kwargs: Any) -> "Study":
    from sim.split.api import split

    return split(*args, **kwargs)


make_callable(__name__, _split)
