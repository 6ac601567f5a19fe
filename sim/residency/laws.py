"""What a policy may answer: cheap checks of every answer, in both engines and in the replays.

A policy is a stranger's code. One that names a victim that is not resident would raise hits above the optimum, and
one of another scope would be asked without end; so each answer is checked, and the run stops in a sentence that
names the policy. The functions that return a fault are in the compiled subset (as `sim.timed.rules`): the kernels
compile them from this source and stop with the same sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from expert_residency.errors import PolicyFaultError
from expert_residency.policies.protocol import Future, Ints, PlacementPolicy, Policy, Pool

(
    LAWFUL, NO_KEY, NOT_RESIDENT, OTHER_SCOPE, PROTECTED, SWAP_NO_KEY, NEWCOMER_THERE, VICTIM_GONE, SWAP_SCOPE,
    NO_ROOM, TOO_MANY_SWAPS, TOO_MANY, NO_MISS, TOO_MANY_AHEAD, AHEAD_NO_KEY,
) = range(15)  # fmt: skip
SENTENCES = (
    "",
    "names {key} as a victim, which is no expert",
    "names {who} as a victim, which is not resident",
    "names {who} as a victim, which is in another part of the cache",
    "names {who} as a victim, which is protected: it is in use or under way",
    "swaps with {key}, which is no expert",
    "swaps {who} in, which is resident already",
    "swaps {who} out, which is not resident",
    "swaps {who} with an expert in another part of the cache",
    "swaps {who} into a part of the cache that has no room for it",
    "asks for {key} swaps, which is below 0 or more than there are experts",
    "lets {key} misses in, which is below 0 or more than there are",
    "lets position {key} in, which is no miss of the event or is named twice",
    "proposes {key} experts, which is below 0 or more than there are",
    "proposes {key}, which is no expert",
)


def victim_fault(
    victim: int, scope: int, resident: Sequence[int], scope_of: Sequence[int], guard: Sequence[int], tick: int
) -> int:
    """What is wrong with a victim (0 or above).

    Parameters
    ----------
    victim
        Whom the eviction policy names.
    scope
        The part of the cache in which room is short.
    resident, scope_of, guard : (keys,)
        As the policy was shown them.
    tick
        A key is protected while `guard[key] >= tick`.

    Returns
    -------
    int
        LAWFUL, or a place in `SENTENCES`.
    """
    if victim >= len(resident):
        return NO_KEY
    if resident[victim] == 0:
        return NOT_RESIDENT
    if scope_of[victim] != scope:
        return OTHER_SCOPE
    return PROTECTED if guard[victim] >= tick else LAWFUL


def swap_keys_fault(newcomers: Sequence[int], victims: Sequence[int], n: int, keys: int) -> int:
    """The first of `n` exchanges that names what is no expert, counted from 1 and negative for a victim; or 0.

    Parameters
    ----------
    newcomers, victims
        Of the exchanges; a victim below 0 is nobody.
    n
        How many there are.
    keys
        Experts of the model.

    Returns
    -------
    int
        0, or the place.
    """
    for i in range(n):
        if newcomers[i] < 0 or newcomers[i] >= keys:
            return i + 1
        if victims[i] >= keys:
            return -i - 1
    return 0


def swap_fault(
    newcomer: int, victim: int, resident: Sequence[int], scope_of: Sequence[int], size: int, freed: int,
    used: Sequence[int], capacity: Sequence[int],
) -> int:  # fmt: skip
    """What is wrong with an exchange between two passes.

    Parameters
    ----------
    newcomer, victim
        Who comes, and who leaves for it (below 0: nobody).
    resident, scope_of : (keys,)
        Of each expert.
    size, freed
        Bytes of the newcomer, and of the victim or 0.
    used, capacity : (scopes,)
        Bytes.

    Returns
    -------
    int
        LAWFUL, or a place in `SENTENCES`.
    """
    if resident[newcomer] != 0:
        return NEWCOMER_THERE
    scope = scope_of[newcomer]
    if victim >= 0:
        if resident[victim] == 0:
            return VICTIM_GONE
        if scope_of[victim] != scope:
            return SWAP_SCOPE
    return NO_ROOM if used[scope] - freed + size > capacity[scope] else LAWFUL


def swap_key(fault: int, newcomer: int, victim: int) -> int:
    """The key that a fault of an exchange is about.

    Parameters
    ----------
    fault
        Place in `SENTENCES`.
    newcomer, victim
        Of the exchange.

    Returns
    -------
    int
        One of them.
    """
    return victim if fault == VICTIM_GONE else newcomer


def miss_fault(position: int, hits: Sequence[int], marks: Ints, stamp: int) -> int:
    """What is wrong with a miss that admission lets in.

    Parameters
    ----------
    position
        In the event.
    hits : (members,)
        1 for members that were resident.
    marks : (members or more,)
        Marked with `stamp` once it is let in.
    stamp
        A number that no other event marks with.

    Returns
    -------
    int
        LAWFUL, or NO_MISS.
    """
    if position < 0 or position >= len(hits) or hits[position] != 0 or marks[position] == stamp:
        return NO_MISS
    marks[position] = stamp
    return LAWFUL


def policy_fault(fault: int, kind: str, name: str, key: int, experts: int) -> PolicyFaultError:
    """The error of a policy that broke a law.

    Parameters
    ----------
    fault
        Place in `SENTENCES`.
    kind, name
        `eviction`, `admission`, `prefetch`, and the policy's name.
    key
        The expert, position or number that it is about.
    experts
        Experts of a layer.

    Returns
    -------
    PolicyFaultError
        To be raised.
    """
    who = f"expert {key % experts} of MoE layer {key // experts}"
    sentence = SENTENCES[fault].format(key=key, who=who)
    return PolicyFaultError(f"{kind} policy {name} {sentence}: it breaks its protocol, and the run is stopped")


def fault_of(
    fault: int, policies: tuple[Policy, Policy, Policy | None], key: int, experts: int
) -> PolicyFaultError:  # fmt: skip
    """The same, from the eviction, admission and prefetch policies of a run.

    Parameters
    ----------
    fault
        Place in `SENTENCES`.
    policies
        Eviction, admission and prefetch policy.
    key
        The expert, position or number that it is about.
    experts
        Experts of a layer.

    Returns
    -------
    PolicyFaultError
        To be raised; it names the policy that asked.
    """
    which = 0 if fault < SWAP_NO_KEY else 1 if fault < TOO_MANY_AHEAD else 2
    policy = policies[which]
    assert policy is not None
    return policy_fault(fault, ("eviction", "admission", "prefetch")[which], policy.name, key, experts)


def ranked_by(placement: PlacementPolicy, pool: Pool, future: Future | None) -> list[int]:
    """A placement's ranking, checked.

    Parameters
    ----------
    placement
        The placement.
    pool
        Sizes and capacities.
    future
        What comes, or what other texts wanted; given only to a placement that asks for it.

    Returns
    -------
    list[int]
        Keys, hottest first.

    Raises
    ------
    PolicyFaultError
        It ranks what is no expert.
    """
    told = future if placement.needs_future or placement.other_texts else None
    ranked = [int(key) for key in placement.rank(pool, told)]
    for key in ranked:
        if not 0 <= key < pool.keys:
            raise PolicyFaultError(
                f"placement {placement.name} ranks {key}, which is no expert (there are {pool.keys})"
            )
    return ranked
