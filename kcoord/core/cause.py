"""Why the epoch of a group changed, or a transaction was aborted.

The cause of a group's new epoch goes into the server's log, and every cause into a header of the record.
"""

from __future__ import annotations

from typing import Final, final

MEMBER_JOINED: Final = "member_joined"
MEMBER_REJOINED: Final = "member_rejoined"
STATIC_MEMBER_REPLACED: Final = "static_member_replaced"
MEMBER_LEFT: Final = "member_left"
SESSION_TIMEOUT: Final = "session_timeout"
REBALANCE_TIMEOUT: Final = "rebalance_timeout"
JOIN_TIMEOUT: Final = "join_timeout"
SYNC_TIMEOUT: Final = "sync_timeout"
SUBSCRIPTION_CHANGED: Final = "subscription_changed"
# The set of a member's client-side assignors changed, or the metadata of one of them.
CLIENT_ASSIGNORS_CHANGED: Final = "client_assignors_changed"
REGEX_RESOLVED: Final = "regex_resolved"
TOPICS_CHANGED: Final = "topics_changed"
ASSIGNOR_CHANGED: Final = "assignor_changed"
PROTOCOL_UPGRADED: Final = "protocol_upgraded"
PROTOCOL_DOWNGRADED: Final = "protocol_downgraded"
# These occur in classic groups only.
METADATA_CHANGED: Final = "metadata_changed"
LEADER_REJOINED: Final = "leader_rejoined"
GROUP_TOO_LARGE: Final = "group_too_large"
ASSIGNMENT_TOO_LARGE: Final = "assignment_too_large"
REBALANCED: Final = "rebalanced"
# Why a transaction was aborted: by its client, by its timeout, by a new producer with its transactional id, or by the
# producer that the group has assigned its partitions to.
CLIENT_ABORTED: Final = "client_aborted"
TRANSACTION_TIMEOUT: Final = "transaction_timeout"
PRODUCER_REPLACED: Final = "producer_replaced"
PARTITIONS_REASSIGNED: Final = "partitions_reassigned"
TRANSACTION_CAUSES: Final = (CLIENT_ABORTED, TRANSACTION_TIMEOUT, PRODUCER_REPLACED, PARTITIONS_REASSIGNED)

DETAIL_CHARS_MAX: Final = 500
# Clients choose member ids, which may be as long as the protocol allows.
MEMBER_CHARS_MAX: Final = 500
# The time of a cause that has none.
NO_TIME: Final = -1


@final
class Cause:
    """One cause: `kind` is one of the constants above, `member_id` the member that caused the change ("" for none), and
    `detail` a text for people.

    A classic group writes its record when the rebalance ends, so `since_ms` keeps the Unix time at which it started.
    NO_TIME means the time of the record itself.
    """

    def __init__(self, kind: str, member_id: str = "", detail: str = "", since_ms: int = NO_TIME) -> None:
        self.kind = kind
        self.member_id = member_id[:MEMBER_CHARS_MAX]
        self.detail = detail[:DETAIL_CHARS_MAX]
        self.since_ms = since_ms

    def followed_by(self, later: Cause) -> Cause:
        """This cause, extended by a later one that came before the rebalance ended."""
        detail = f"{self.detail}; then {later.kind} {later.member_id}".rstrip().removeprefix("; ")
        return Cause(self.kind, self.member_id, detail, self.since_ms)
