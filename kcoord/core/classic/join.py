"""JoinGroup: which members may join, under which member id, and whether the group has to rebalance."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import (
    LEADER_REJOINED,
    MEMBER_JOINED,
    MEMBER_REJOINED,
    METADATA_CHANGED,
    STATIC_MEMBER_REPLACED,
    Cause,
)
from kcoord.core.classic.rebalance import (
    ClassicRebalance,
    answer_join,
    answer_sync,
    client_reason,
    join_error,
    join_success,
    members_for_leader,
)
from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
    unique_protocols,
    value_bytes_max,
)
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import (
    DEBUG,
    LIMIT,
    TIMER_PENDING_MEMBER,
    WARNING,
    Fact,
    Now,
    Outcome,
    Reply,
    Request,
)
from kcoord.protocol import errors
from kcoord.protocol.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue

# A new member sends no heartbeats until its first JoinGroup is answered. Its client may have given up meanwhile. So the
# parked request expires, and a client that is still there joins again.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000

# Member ids that were assigned and never used take memory until their timers fire. Kafka has no limit; this one is far
# above what well-behaved clients of one group need at once.
PENDING_MEMBERS_MAX: Final = 10000

# The longest string of the protocol, and the bytes that "-" and a UUID add to a client or instance id.
STRING_BYTES_MAX: Final = 32767
MEMBER_ID_SUFFIX_BYTES: Final = 37

UNKNOWN_MEMBER_ID: Final = ""


def make_member_id(prefix: str, entropy: bytes) -> str:
    """`prefix-UUID`: a version 4 UUID from 16 random bytes."""
    raw = bytearray(entropy)
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    text = raw.hex()
    return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@final
class ClassicJoin:
    def __init__(self, config: CoreConfig, store: GroupStore, rebalance: ClassicRebalance) -> None:
        self.config = config
        self.store = store
        self.rebalance = rebalance

    def handle_join_group(self, request: Request, body: JoinGroupRequest, now: Now) -> Outcome:
        out = Outcome()
        version = request.version
        error = self.check_request(request, body)
        if error != errors.NONE:
            out.reply(request.request_id, join_error(version, body.member_id, error))
            return out

        is_unknown_member = body.member_id == UNKNOWN_MEMBER_ID
        group = self.store.get(body.group_id)
        is_new_group = group is None
        if group is None:
            if not is_unknown_member:
                out.reply(request.request_id, join_error(version, body.member_id, errors.UNKNOWN_MEMBER_ID))
                return out
            group = self.store.get_or_create(body.group_id, now.wall_ms)

        if not self._accepts(group, body.member_id):
            self._refuse_full(request, body, group, out)
        elif is_unknown_member:
            self._join_new_member(request, body, group, now, out)
        else:
            self._join_existing_member(request, body, group, now, out)

        if is_new_group and not out.records:
            # The group exists from now on, whatever happened to its first member.
            out.add(
                group.log,
                GroupMetadataKey(group.group_id),
                GroupMetadataValue("", 0, None, None, group.current_state_timestamp_ms, []),
            )
        return out

    def check_request(self, request: Request, body: JoinGroupRequest) -> int:
        """Check the fields on their own and convert them to the form of the last version. Returns an error code."""
        if request.version == 0:
            # Version 0 has one timeout for both purposes.
            body.rebalance_timeout_ms = body.session_timeout_ms
        body.protocols = unique_protocols(body.protocols)
        if body.group_id == "":
            return errors.INVALID_GROUP_ID
        config = self.config
        timeout_ms = body.session_timeout_ms
        if timeout_ms < config.group_min_session_timeout_ms or timeout_ms > config.group_max_session_timeout_ms:
            return errors.INVALID_SESSION_TIMEOUT
        if body.member_id == UNKNOWN_MEMBER_ID:
            instance_id = body.group_instance_id
            prefix = instance_id if instance_id is not None else request.client_id
            if len(prefix.encode("utf-8")) + MEMBER_ID_SUFFIX_BYTES > STRING_BYTES_MAX:
                return errors.INVALID_REQUEST
        return errors.NONE

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether group.max.size allows this member.

        During a join phase only members that have rejoined count. So if the limit was lowered meanwhile, the last ones
        to rejoin are refused (KAFKA-9844).
        """
        if group.state == EMPTY or group.state == DEAD:
            return True
        member = group.members.get(member_id)
        if group.state == PREPARING_REBALANCE:
            if member is not None and member.is_awaiting_join():
                return True
            return group.awaiting_join < self.config.group_max_size
        return member is not None or len(group.members) < self.config.group_max_size

    def _refuse_full(self, request: Request, body: JoinGroupRequest, group: ClassicGroup, out: Outcome) -> None:
        member = group.members.get(body.member_id)
        if member is not None:
            self.rebalance.remove_member(group, member, out)
        else:
            group.pending_members.pop(body.member_id, None)
        out.facts.append(
            Fact(
                WARNING,
                "group_full",
                {"group": group.group_id, "max_size": self.config.group_max_size, "member": body.member_id},
                LIMIT,
            )
        )
        self._reply_error(request, UNKNOWN_MEMBER_ID, errors.GROUP_MAX_SIZE_REACHED, out)

    def _reply_error(self, request: Request, member_id: str, error_code: int, out: Outcome) -> None:
        out.reply(request.request_id, join_error(request.version, member_id, error_code))

    # ---- members without an id

    def _join_new_member(
        self, request: Request, body: JoinGroupRequest, group: ClassicGroup, now: Now, out: Outcome
    ) -> None:
        if not group.supports_protocols(body.protocol_type, body.protocols):
            self._reply_error(request, UNKNOWN_MEMBER_ID, errors.INCONSISTENT_GROUP_PROTOCOL, out)
            return
        instance_id = body.group_instance_id
        if instance_id is None:
            member_id = make_member_id(request.client_id, request.entropy)
            if request.version >= 4:
                self._hand_out_member_id(request, body, group, member_id, now, out)
            else:
                self._add_member(request, body, group, member_id, now, out)
            return
        member_id = make_member_id(instance_id, request.entropy)
        existing_id = group.static_members.get(instance_id)
        existing = group.members.get(existing_id) if existing_id is not None else None
        if existing is None:
            self._add_member(request, body, group, member_id, now, out)
        else:
            self._replace_static_member(request, body, group, existing, member_id, now, out)

    def _hand_out_member_id(
        self,
        request: Request,
        body: JoinGroupRequest,
        group: ClassicGroup,
        member_id: str,
        now: Now,
        out: Outcome,
    ) -> None:
        """First step of KIP-394: the client has to join again with this id before the timer removes it."""
        limit = self.config.group_max_size
        if limit < PENDING_MEMBERS_MAX:
            limit = PENDING_MEMBERS_MAX
        if len(group.pending_members) >= limit:
            self._reply_error(request, UNKNOWN_MEMBER_ID, errors.GROUP_MAX_SIZE_REACHED, out)
            return
        deadline_ms = now.mono_ms + body.session_timeout_ms
        token = self.store.timers.arm(TIMER_PENDING_MEMBER, group.group_id, member_id, deadline_ms, out)
        group.pending_members[member_id] = token
        self._reply_error(request, member_id, errors.MEMBER_ID_REQUIRED, out)

    def _add_member(
        self,
        request: Request,
        body: JoinGroupRequest,
        group: ClassicGroup,
        member_id: str,
        now: Now,
        out: Outcome,
    ) -> None:
        member = ClassicMember(
            member_id,
            body.group_instance_id,
            request.client_id,
            request.client_host,
            body.rebalance_timeout_ms,
            body.session_timeout_ms,
            body.protocol_type,
            body.protocols,
            b"",
        )
        member.is_new = True
        if group.state == PREPARING_REBALANCE and group.previous_state == EMPTY:
            # Members that join during the initial delay extend it.
            group.new_member_added = True
        group.add_member(member)
        group.park_join(member, request.request_id, request.version)
        self.store.timers.start_session(group.group_id, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS, now, out)
        by_client = f"client reason: {client_reason(body.reason)}"
        cause = Cause(MEMBER_JOINED, member_id, by_client)
        self.rebalance.prepare_or_complete(group, f"member {member_id} joined; {by_client}", now, out, cause)

    # ---- members with an id

    def _join_existing_member(
        self, request: Request, body: JoinGroupRequest, group: ClassicGroup, now: Now, out: Outcome
    ) -> None:
        member_id = body.member_id
        if not group.supports_protocols(body.protocol_type, body.protocols):
            self._reply_error(request, member_id, errors.INCONSISTENT_GROUP_PROTOCOL, out)
            return
        if member_id in group.pending_members:
            if body.group_instance_id is not None:
                # The id was assigned to a dynamic member. Kafka fails with an internal check here.
                self._reply_error(request, UNKNOWN_MEMBER_ID, errors.UNKNOWN_SERVER_ERROR, out)
                return
            self._add_member(request, body, group, member_id, now, out)
            return
        error = group.validate_member(member_id, body.group_instance_id)
        member = group.members.get(member_id)
        if error != errors.NONE or member is None:
            self._reply_error(request, member_id, error, out)
        elif group.state == PREPARING_REBALANCE:
            self._update_member(request, body, group, member, "rejoins", MEMBER_REJOINED, now, out)
        elif not member.matches(body.protocols):
            self._update_member(request, body, group, member, "has new metadata", METADATA_CHANGED, now, out)
        elif group.state == STABLE and group.is_leader(member_id):
            # The leader requests a rebalance this way, for example when a topic got more partitions.
            self._update_member(request, body, group, member, "is the leader and rejoins", LEADER_REJOINED, now, out)
        else:
            self._repeat_generation(request, group, member_id, out)

    def _repeat_generation(self, request: Request, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """Nothing changed for this member; it may have missed an answer. Repeat that of the current generation."""
        members: list[JoinGroupResponseMember] = []
        if group.state == COMPLETING_REBALANCE and group.is_leader(member_id):
            members = members_for_leader(group)
        response = join_success(group, request.version, member_id, group.leader_id, members, False)
        out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))

    def _park(self, request: Request, group: ClassicGroup, member: ClassicMember, out: Outcome) -> None:
        """Park the request until the join phase ends. An older parked request of the member gets an error."""
        answer_join(group, member, errors.REBALANCE_IN_PROGRESS, out, member.member_id)
        group.park_join(member, request.request_id, request.version)

    def _update_member(
        self,
        request: Request,
        body: JoinGroupRequest,
        group: ClassicGroup,
        member: ClassicMember,
        what: str,
        kind: str,
        now: Now,
        out: Outcome,
    ) -> None:
        group.update_member(member, body.protocols, body.rebalance_timeout_ms, body.session_timeout_ms)
        self._park(request, group, member, out)
        by_client = f"client reason: {client_reason(body.reason)}"
        reason = f"member {member.member_id} {what}; {by_client}"
        self.rebalance.prepare_or_complete(group, reason, now, out, Cause(kind, member.member_id, by_client))

    # ---- static members that return without their id

    def _replace_static_member(
        self,
        request: Request,
        body: JoinGroupRequest,
        group: ClassicGroup,
        old: ClassicMember,
        member_id: str,
        now: Now,
        out: Outcome,
    ) -> None:
        """The instance continues under a new member id. Requests parked under the old id are fenced (KIP-345)."""
        out.facts.append(
            Fact(
                DEBUG,
                "static_member_replaced",
                {
                    "group": group.group_id,
                    "instance": old.group_instance_id,
                    "old": old.member_id,
                    "new": member_id,
                    "state": group.state,
                },
            )
        )
        answer_join(group, old, errors.FENCED_INSTANCE_ID, out, old.member_id)
        answer_sync(old, errors.FENCED_INSTANCE_ID, out)
        old_leader_id = group.leader_id
        member = group.replace_static_member(old, member_id)
        self.store.timers.forget(group.group_id, old.member_id)
        group.update_member(member, body.protocols, body.rebalance_timeout_ms, body.session_timeout_ms)
        self.store.timers.start_session(group.group_id, member.member_id, old.session_timeout_ms, now, out)
        if group.state == STABLE and group.protocol_name == group.select_protocol():
            self._persist_static_member(request, group, old, member, old_leader_id, now, out)
            return
        self._park(request, group, member, out)
        by_client = f"client reason: {client_reason(body.reason)}"
        reason = f"static member {member_id} replaces {old.member_id}; {by_client}"
        cause = Cause(STATIC_MEMBER_REPLACED, member_id, f"replaces {old.member_id}; {by_client}")
        if group.state == PREPARING_REBALANCE:
            self.rebalance.maybe_complete_join(group, now, out)
        else:
            # In CompletingRebalance the leader may already be assigning to the old id, and the new id would get
            # nothing.
            self.rebalance.prepare_rebalance(group, reason, now, out, cause)

    def _persist_static_member(
        self,
        request: Request,
        group: ClassicGroup,
        old: ClassicMember,
        member: ClassicMember,
        old_leader_id: str | None,
        now: Now,
        out: Outcome,
    ) -> None:
        """Only the member id changed, so no rebalance is needed, but a record is: a restart would forget the id."""
        value = group.metadata_value()
        if value_bytes_max(group.group_id, value) > self.config.coordinator_batch_bytes_max:
            self._take_back_static_member(request, group, old, member, old_leader_id, now, out)
            return
        detail = f"replaces {old.member_id}, without a rebalance"
        cause = Cause(STATIC_MEMBER_REPLACED, member.member_id, detail)
        out.add(group.log, GroupMetadataKey(group.group_id), value, cause)
        version = request.version
        if version >= 9:
            is_leader = group.is_leader(member.member_id)
            members = members_for_leader(group) if is_leader else []
            response = join_success(group, version, member.member_id, group.leader_id, members, is_leader)
        else:
            # Versions without SkipAssignment: name the old id as the leader, so that the returning leader does not
            # assign.
            response = join_success(group, version, member.member_id, old_leader_id, [], False)
        out.reply(request.request_id, response)

    def _take_back_static_member(
        self,
        request: Request,
        group: ClassicGroup,
        old: ClassicMember,
        member: ClassicMember,
        old_leader_id: str | None,
        now: Now,
        out: Outcome,
    ) -> None:
        """The record would be too large: the instance keeps its former id and protocols."""
        protocols: list[JoinGroupRequestProtocol] = old.protocols
        group.update_member(member, protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        restored = group.replace_static_member(member, old.member_id)
        self.store.timers.forget(group.group_id, member.member_id)
        self.store.timers.start_session(group.group_id, restored.member_id, restored.session_timeout_ms, now, out)
        response = join_success(group, request.version, UNKNOWN_MEMBER_ID, old_leader_id, [], False)
        response.error_code = errors.UNKNOWN_SERVER_ERROR
        out.facts.append(Fact(WARNING, "group_record_too_large", {"group": group.group_id}, LIMIT))
        out.reply(request.request_id, response)
