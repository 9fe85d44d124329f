"""The direct path of both heartbeats: a member that only says that it is alive, in a group where nothing happens.

As in `direct_commit.py`, everything is checked first, and what is unusual takes the generic path
(`core/classic/membership.py`, `core/consumer/heartbeat.py`), which defines what is right: errors, rebalances, static
members of consumer groups, subscriptions, session timers that have to be armed. Such a heartbeat extends the session of
the member and changes nothing else. `tests/unit/engine/test_direct_heartbeat.py` compares both paths.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.groups.classic import PREPARING_REBALANCE
from kcoord.core.groups.members import NOT_GIVEN, ConsumerMember
from kcoord.core.outcome import Now
from kcoord.engine.commits import Commits
from kcoord.engine.outbox import Outbox
from kcoord.engine.request_head import HEAD_BYTES_MAX, read_head
from kcoord.engine.session import Session
from kcoord.protocol import heartbeat
from kcoord.protocol.errors import NONE
from kcoord.wire.primitives import (
    DecodeError,
    Reader,
    write_compact_string,
    write_i16_be,
    write_i32_be,
    write_int8,
)

INSTANCE_VERSION: Final = 3
THROTTLE_VERSION: Final = 1
REGEX_VERSION: Final = 1
NO_WAIT: Final = 0


@final
class DirectHeartbeats:
    """Handles Heartbeat and ConsumerGroupHeartbeat requests that change nothing but the end of a session."""

    def __init__(self, core: Core, commits: Commits, outbox: Outbox) -> None:
        self.core = core
        self.groups = core.groups
        self.timers = core.groups.timers
        self.group_configs = core.topics.groups
        self.commits = commits
        self.outbox = outbox
        # Tests compare both paths: they switch this one off, and count what it handles.
        self.is_on = True
        self.handled = 0

    def handle(
        self, session: Session, reader: Reader, api_key: int, version: int, correlation_id: int, now: Now
    ) -> bool:
        """Answer a request whose body is next in `reader`. False: nothing has changed, the reader is where it was, and
        the generic path must answer.
        """
        if not self.is_on:
            return False
        start = reader.pos
        elements_left = reader.elements_left
        is_done = False
        try:
            if api_key == heartbeat.API_KEY:
                is_done = self._classic(session, reader, version, correlation_id, now)
            else:
                is_done = self._consumer(session, reader, version, correlation_id, now)
        except DecodeError:
            is_done = False
        if is_done:
            self.handled += 1
            return True
        reader.pos = start
        reader.elements_left = elements_left
        return False

    def _classic(self, session: Session, reader: Reader, version: int, correlation_id: int, now: Now) -> bool:
        is_compact = version >= heartbeat.FLEXIBLE_VERSION
        head = read_head(reader, session.heartbeat_head, version, is_compact, version >= INSTANCE_VERSION)
        if head is not session.heartbeat_head and head.size <= HEAD_BYTES_MAX:
            session.heartbeat_head = head
        group_id = head.group_id
        member_id = head.member_id
        if is_compact:
            reader.skip_tags()
        group = self.groups.groups.get(group_id)
        if group is None or group_id in self.groups.consumer_groups:
            return False
        if head.epoch != group.generation_id or group.state == PREPARING_REBALANCE:
            return False
        member = group.members.get(member_id)
        if member is None or group.validate_member(member_id, head.instance_id) != NONE:
            return False
        if not self.timers.extend_session(group_id, member_id, member.session_timeout_ms, now.mono_ms):
            return False
        chunk = self.outbox.begin_answer(session, correlation_id, is_compact, NO_WAIT)
        w = chunk.writer
        if version >= THROTTLE_VERSION:
            write_i32_be(w, 0)
        write_i16_be(w, NONE)
        if is_compact:
            w.append(0)
        self.outbox.end_answer(session, chunk, 0)
        self.outbox.touch(session)
        return True

    def _consumer(self, session: Session, reader: Reader, version: int, correlation_id: int, now: Now) -> bool:
        group_id = reader.compact_string()
        member_id = reader.compact_string()
        epoch = reader.int32()
        if not is_plain(reader, version):
            return False
        group = self.groups.consumer_groups.get(group_id)
        if group is None or not self.core.serves_consumer_protocol:
            return False
        if group.is_unbalanced or group.regex_counts or group.computation is not None:
            return False
        if group.assignment_epoch < group.epoch or now.mono_ms >= group.refresh_deadline_ms:
            return False
        member = group.members.get(member_id)
        if member is None or epoch != member.member_epoch or epoch <= 0:
            return False
        if not member.is_reconciled_to(group.assignment_epoch) or not is_same_client(session, member):
            return False
        timeout_ms = self.group_configs.session_timeout_ms(group_id)
        if not self.timers.extend_session(group_id, member_id, timeout_ms, now.mono_ms):
            return False
        # The member must not learn of an epoch that a crash may take back.
        wait_seq = self.commits.seq_of(group.log, group.end_offset)
        chunk = self.outbox.begin_answer(session, correlation_id, True, wait_seq)
        w = chunk.writer
        write_i32_be(w, 0)
        write_i16_be(w, NONE)
        w.append(0)
        write_compact_string(w, member_id)
        write_i32_be(w, epoch)
        write_i32_be(w, self.group_configs.heartbeat_interval_ms(group_id))
        # No assignment: the member has it already.
        write_int8(w, -1)
        w.append(0)
        self.outbox.end_answer(session, chunk, 0)
        self.outbox.touch(session)
        return True


def is_plain(reader: Reader, version: int) -> bool:
    """Whether the rest of a ConsumerGroupHeartbeat gives nothing: every field is null. Raises DecodeError."""
    if reader.compact_nullable_string() is not None or reader.compact_nullable_string() is not None:
        return False
    if reader.int32() != NOT_GIVEN or reader.compact_nullable_array_len(1) >= 0:
        return False
    if version >= REGEX_VERSION and reader.compact_nullable_string() is not None:
        return False
    if reader.compact_nullable_string() is not None:
        return False
    return reader.compact_nullable_array_len(1) < 0 and reader.uvarint() == 0


def is_same_client(session: Session, member: ConsumerMember) -> bool:
    """Whether a dynamic member of the new protocol still has the client that it has joined with."""
    return (
        member.instance_id is None
        and member.classic is None
        and member.regex() is None
        and member.client_id == session.client_id
        and member.client_host == session.member_host
    )
