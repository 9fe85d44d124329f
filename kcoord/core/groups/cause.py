"""Why a group's epoch changed. The cause goes into the server's log and, as a header, with the group's own record."""

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
# The client-side assignors of a member, or what it tells them.
CLIENT_ASSIGNORS_CHANGED: Final = "client_assignors_changed"
REGEX_RESOLVED: Final = "regex_resolved"
TOPICS_CHANGED: Final = "topics_changed"
ASSIGNOR_CHANGED: Final = "assignor_changed"
PROTOCOL_UPGRADED: Final = "protocol_upgraded"
PROTOCOL_DOWNGRADED: Final = "protocol_downgraded"
# Of classic groups only.
METADATA_CHANGED: Final = "metadata_changed"
LEADER_REJOINED: Final = "leader_rejoined"
GROUP_TOO_LARGE: Final = "group_too_large"
ASSIGNMENT_TOO_LARGE: Final = "assignment_too_large"
REBALANCED: Final = "rebalanced"

DETAIL_CHARS_MAX: Final = 500
# Clients make up member ids, which may be as long as the formats allow.
MEMBER_CHARS_MAX: Final = 500
# What a cause says of time when it does not.
NO_TIME: Final = -1


@final
class Cause:
    """`kind` is one of the names above; `member_id` is whose doing it was, "" for nobody's; `detail` is for people.

    A classic group writes its record when a rebalance is over: `since_ms` is the Unix time at which it began.
    NO_TIME: with the record itself.
    """

    def __init__(self, kind: str, member_id: str = "", detail: str = "", since_ms: int = NO_TIME) -> None:
        self.kind = kind
        self.member_id = member_id[:MEMBER_CHARS_MAX]
        self.detail = detail[:DETAIL_CHARS_MAX]
        self.since_ms = since_ms

    def followed_by(self, later: Cause) -> Cause:
        """This cause, where another one came before what this one began was over."""
        detail = f"{self.detail}; then {later.kind} {later.member_id}".rstrip().removeprefix("; ")
        return Cause(self.kind, self.member_id, detail, self.since_ms)
