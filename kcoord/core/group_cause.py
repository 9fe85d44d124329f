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
REGEX_RESOLVED: Final = "regex_resolved"
TOPICS_CHANGED: Final = "topics_changed"
ASSIGNOR_CHANGED: Final = "assignor_changed"
PROTOCOL_UPGRADED: Final = "protocol_upgraded"
PROTOCOL_DOWNGRADED: Final = "protocol_downgraded"

DETAIL_CHARS_MAX: Final = 500


@final
class Cause:
    """`kind` is one of the names above; `member_id` is whose doing it was, "" for nobody's; `detail` is for people."""

    def __init__(self, kind: str, member_id: str = "", detail: str = "") -> None:
        self.kind = kind
        self.member_id = member_id
        self.detail = detail[:DETAIL_CHARS_MAX]
