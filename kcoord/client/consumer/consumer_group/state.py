"""The states of a member, with the names of Kafka's consumer, and the changes between them that are allowed."""

from __future__ import annotations

from enum import Enum
from typing import Final


class MemberState(Enum):
    UNSUBSCRIBED = "unsubscribed"
    # Asks to join, with epoch 0.
    JOINING = "joining"
    # Has an assignment that it has not adopted yet, or not whole.
    RECONCILING = "reconciling"
    # Has adopted something: the next heartbeat says so, at once.
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    # The coordinator has removed the member. It joins again when the user has given up the partitions.
    FENCED = "fenced"
    # Gives up its partitions before it leaves; heartbeats go on.
    PREPARE_LEAVING = "preparing to leave"
    LEAVING = "leaving"
    # An error that the user has to know. Nothing is sent any more.
    FATAL = "fatal"
    # Has left because the user did not poll. It joins again at the next poll.
    STALE = "stale"


_S = MemberState
# The states from which each state can be entered.
BEFORE: Final[dict[MemberState, frozenset[MemberState]]] = {
    _S.UNSUBSCRIBED: frozenset({_S.PREPARE_LEAVING, _S.LEAVING, _S.FENCED, _S.STALE, _S.FATAL}),
    _S.JOINING: frozenset({_S.UNSUBSCRIBED, _S.FENCED, _S.STALE}),
    _S.RECONCILING: frozenset({_S.JOINING, _S.ACKNOWLEDGING, _S.STABLE}),
    _S.ACKNOWLEDGING: frozenset({_S.RECONCILING}),
    _S.STABLE: frozenset({_S.JOINING, _S.ACKNOWLEDGING, _S.RECONCILING}),
    _S.FENCED: frozenset({_S.JOINING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE}),
    _S.PREPARE_LEAVING: frozenset({_S.JOINING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE}),
    _S.LEAVING: frozenset({_S.PREPARE_LEAVING}),
    _S.FATAL: frozenset({_S.JOINING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE, _S.PREPARE_LEAVING}),
    _S.STALE: frozenset({_S.LEAVING}),
}
# The states in which the coordinator counts the member, or will soon.
ACTIVE: Final = frozenset({_S.JOINING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE})
# The states in which heartbeats are sent at their interval.
BEATING: Final = ACTIVE | {_S.PREPARE_LEAVING}
# The states in which offsets can be committed with the member's epoch.
COMMITTING: Final = BEATING - {_S.JOINING}
