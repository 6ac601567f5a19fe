"""Who competes: one policy an entrant, and the plain choice for all else, so that a difference is that policy's.

An eviction policy runs with admission `always`, an admission, prefetch or placement policy with LRU; nothing is
prefetched but by a prefetcher. Registered placements do not compete: they decide the start only, and one that is
copied before the clock starts is no faster, it has a head start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from expert_residency.errors import PolicyError
from expert_residency.policies import Policy, adopt, adopted, available, create, placed_class, sees_future
from expert_residency.policies.registry import KINDS, Kind, load

PLAIN: dict[str, str | None] = {"eviction": "lru", "admission": "always", "prefetch": "none", "placement": None}
"""What an entrant has where its own policy decides nothing."""
COMPETING: tuple[Kind, ...] = ("eviction", "admission", "prefetch")
OURS = "expert_residency."


@dataclass(frozen=True)
class Entrant:
    """One line of the leaderboard.

    Parameters
    ----------
    kind, words
        The policy that is compared, `name` or `name:param=value`.
    """

    kind: Kind
    words: str

    @property
    def label(self) -> str:
        """As scores name it: `lfru`; `lru, admission two-hit`."""
        return self.words if self.kind == "eviction" else f"{PLAIN['eviction']}, {self.kind} {self.words}"

    @property
    def choices(self) -> dict[str, Any]:
        """Its words of a run."""
        chosen = PLAIN | {self.kind: self.words}
        return {name: words for name, words in chosen.items() if words is not None}

    @property
    def sees_future(self) -> bool:
        """Whether it is a bound and no candidate.

        Raises
        ------
        PolicyError
            It cannot be made.
        """
        create(self.kind, self.words)
        return sees_future(
            str(self.choices["eviction"]), str(self.choices["prefetch"]), self.choices.get("placement")
        )

    @property
    def home(self) -> str | None:
        """Where its class is, if that is not this package."""
        cls = load(self.kind, self.words.partition(":")[0])
        return None if cls.__module__.startswith(OURS) else f"{cls.__module__}:{cls.__qualname__}"

    @property
    def compiled(self) -> bool:
        """Whether it says that the kernel can run it."""
        return load(self.kind, self.words.partition(":")[0]).compiled


BASELINE = Entrant("eviction", "lru")
"""What all are compared with."""


def registered() -> list[Entrant]:
    """All registered policies that compete, other packages' among them, adopted classes not.

    Of the prefetchers that see the future only `oracle` is a bound; the others assume how good a predictor is,
    which `residency predictor` varies.
    """
    field = [BASELINE]
    for kind in COMPETING:
        for name in available(kind):
            plain = name == PLAIN[kind]
            assumes = kind == "prefetch" and name != "oracle" and _needs_future(kind, name)
            if not plain and not assumes and (kind, name) not in adopted():
                field.append(Entrant(kind, name))
    return field


def _needs_future(kind: Kind, name: str) -> bool:
    try:
        return load(kind, name).needs_future
    except PolicyError:  # a package that cannot be imported is said where its entrant is tried
        return False


def entrant_of(given: Entrant | Policy | type[Policy] | str) -> Entrant:
    """The entrant that is meant by `module:Class`, by a registered policy as `lfru:window=3`, or by a class.

    Raises
    ------
    PolicyError
        No such policy, or one of the same name for several decisions.
    """
    if isinstance(given, Entrant):
        return given
    if not isinstance(given, str):
        cls = given if isinstance(given, type) else type(given)
        own = next((kind for kind, base in KINDS.items() if issubclass(cls, base)), None)
        if own is None:
            raise PolicyError(f"{given!r} is no policy: expected words, a policy or its class")
        return Entrant(own, adopt(own, given))
    word = given
    found = placed_class(word)
    if found is None:
        name = word.partition(":")[0].strip()
        kinds = [kind for kind in KINDS if name in available(kind)]
        if len(kinds) != 1:
            raise PolicyError(_which(word, name, kinds))
        found = kinds[0], word
    kind, words = found
    create(kind, words)
    return Entrant(kind, words)


def _which(word: str, name: str, kinds: Iterable[str]) -> str:
    if several := list(kinds):
        return f"policy {word}: {name!r} is {' and '.join(several)}; give its class, as module:Class"
    return f"unknown policy {word!r} (residency list policies; or give a class of your own, as module:Class)"


def joined(field: Iterable[Entrant]) -> list[Entrant]:
    """Each once, the baseline first."""
    return list(dict.fromkeys([BASELINE, *field]))
