"""Drives the classic group handlers without an engine: handle, replay what came out, collect answers, move time."""

from __future__ import annotations

import heapq
from typing import Any

from kcoord.core.admin.groups import DeleteGroupsStep, GroupAdmin
from kcoord.core.classic.join import ClassicJoin
from kcoord.core.classic.membership import ClassicMembership
from kcoord.core.classic.rebalance import ClassicRebalance
from kcoord.core.classic.sync import ClassicSync
from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.leave import LeaveGroups, LeaveGroupStep
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import CoordinatorRecord, Fact, LogId, Now, Outcome, Reply, Request, Timer
from kcoord.protocol import apis
from kcoord.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kcoord.protocol.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from kcoord.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kcoord.protocol.records.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    decode_group_metadata_value,
    encode_group_metadata_value,
)
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader

# The version of GroupMetadataValue that goes to disk; coding every record checks that its values fit.
VALUE_VERSION = 3


class Rig:
    """A coordinator of classic groups with `logs` partitions; a group's log is the length of its id modulo those."""

    def __init__(self, logs: int = 1, **settings: Any) -> None:
        self.config = CoreConfig()
        for name, value in settings.items():
            assert hasattr(self.config, name), name
            setattr(self.config, name, value)
        self.logs = [LogId("__consumer_offsets", partition) for partition in range(logs)]
        self.stored: list[list[CoordinatorRecord]] = [[] for _ in self.logs]
        # Offsets by group and topic, as the offset store would keep them.
        self.offsets: dict[str, dict[str, int]] = {}
        self.store = GroupStore(self.log_of)
        rebalance = ClassicRebalance(self.config, self.store)
        self.joins = ClassicJoin(self.config, self.store, rebalance)
        self.syncs = ClassicSync(self.config, self.store, rebalance)
        self.membership = ClassicMembership(self.config, self.store, rebalance)
        self.leaves = LeaveGroups(self.store, self.membership.leave, self.leave_consumer, 1 << 26)
        self.admin = GroupAdmin(self.store, self.tombstones_of, self.config.coordinator_batch_bytes_max)
        self.now_ms = 1_000_000
        self.wall_offset_ms = 1_700_000_000_000
        self.replies: dict[int, Reply] = {}
        self.facts: list[Fact] = []
        self.batches: list[tuple[LogId, int]] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._armed = 0
        self._request_id = 0

    # ---- the coordinator's surroundings

    def log_of(self, group_id: str) -> LogId:
        return self.logs[len(group_id) % len(self.logs)]

    def tombstones_of(self, group_id: str, at_most: int) -> list[CoordinatorRecord]:
        topics = list(self.offsets.get(group_id, {}))[:at_most]
        return [CoordinatorRecord(OffsetCommitKey(group_id, topic, 0), None) for topic in topics]

    def leave_consumer(self, step: LeaveGroupStep, share: list[MemberIdentity], now: Now, out: Outcome) -> None:
        raise AssertionError("there are no consumer groups here")

    def now(self) -> Now:
        return Now(self.now_ms, self.wall_offset_ms + self.now_ms)

    def apply(self, out: Outcome) -> None:
        if out.records:
            assert out.log is not None
            self.batches.append((out.log, len(out.records)))
            for record in out.records:
                self.replay(out.log, record)
        for reply in out.replies:
            assert reply.request_id not in self.replies, "a request was answered twice"
            self.replies[reply.request_id] = reply
        for timer in out.timers:
            self._armed += 1
            heapq.heappush(self._timers, (timer.deadline_ms, self._armed, timer))
        self.facts.extend(out.facts)
        for event in [*out.follow_ups, *out.continuations]:
            if isinstance(event, LeaveGroupStep):
                self.apply(self.leaves.handle_leave_group_step(event, self.now()))
                continue
            assert isinstance(event, DeleteGroupsStep)
            self.apply(self.admin.handle_delete_groups_step(event))

    def replay(self, log: LogId, record: CoordinatorRecord) -> None:
        stored = self.stored[log.partition]
        offset = len(stored)
        stored.append(record)
        key, value = record.key, record.value
        if isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            if value is not None:
                w = BytesWriter()
                encode_group_metadata_value(w, value, VALUE_VERSION)
                value = decode_group_metadata_value(Reader(w.getvalue()), VALUE_VERSION)
            self.store.replay_group_metadata(key, value, offset)
        elif isinstance(key, OffsetCommitKey):
            assert value is None
            self.offsets.get(key.group, {}).pop(key.topic, None)

    def restart(self, **settings: Any) -> Rig:
        """A new coordinator that knows what the log says and nothing else."""
        again = Rig(len(self.logs))
        again.config = self.config
        for name, value in settings.items():
            setattr(again.config, name, value)
        again.joins.config = again.syncs.config = self.config
        again.membership.config = again.membership.rebalance.config = self.config
        again.offsets = self.offsets
        again.now_ms = self.now_ms
        for log, records in zip(again.logs, self.stored, strict=True):
            for record in records:
                again.replay(log, record)
        out = Outcome()
        again.membership.loaded(again.now(), out)
        again.apply(out)
        return again

    def sleep(self, ms: int) -> None:
        """Move time on and fire what falls due, in order. 0 fires what is due already."""
        end_ms = self.now_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            deadline_ms, _, timer = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, deadline_ms)
            self.apply(self.membership.handle_timer(timer, self.now()))
        self.now_ms = end_ms

    # ---- requests

    def send(self, api_key: int, version: int, body: Message, client_id: str = "client") -> int:
        """The request's id; see `reply` and `is_parked`."""
        self._request_id += 1
        request_id = self._request_id
        request = Request(
            request_id, 1, api_key, version, client_id, "/127.0.0.1", body, request_id.to_bytes(16, "big")
        )
        now = self.now()
        if isinstance(body, JoinGroupRequest):
            out = self.joins.handle_join_group(request, body, now)
        elif isinstance(body, SyncGroupRequest):
            out = self.syncs.handle_sync_group(request, body, now)
        elif isinstance(body, HeartbeatRequest):
            out = self.membership.handle_heartbeat(request, body, now)
        elif isinstance(body, LeaveGroupRequest):
            out = self.leaves.handle_leave_group(request, body, now)
        elif isinstance(body, DescribeGroupsRequest):
            out = self.admin.handle_describe_groups(request, body)
        elif isinstance(body, ListGroupsRequest):
            out = self.admin.handle_list_groups(request, body)
        else:
            assert isinstance(body, DeleteGroupsRequest)
            out = self.admin.handle_delete_groups(request, body)
        self.apply(out)
        return request_id

    def is_parked(self, request_id: int) -> bool:
        return request_id not in self.replies

    def send_join(
        self,
        member_id: str = "",
        group: str = "g",
        version: int = 9,
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client_id: str = "client",
        reason: str | None = None,
    ) -> int:
        named = protocols if protocols is not None else [("range", b"meta")]
        body = JoinGroupRequest(
            group,
            session_ms,
            rebalance_ms,
            member_id,
            instance,
            protocol_type,
            [JoinGroupRequestProtocol(name, metadata) for name, metadata in named],
            reason,
        )
        return self.send(apis.JOIN_GROUP, version, body, client_id)

    def joined(self, request_id: int) -> JoinGroupResponse:
        response = self.replies[request_id].response
        assert isinstance(response, JoinGroupResponse)
        return response

    def new_member_id(self, group: str = "g", **fields: Any) -> str:
        """The first of the two steps of a dynamic member."""
        response = self.joined(self.send_join("", group, **fields))
        assert response.error_code == 79
        return response.member_id

    def send_sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        group: str = "g",
        version: int = 5,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> int:
        parts = [SyncGroupRequestAssignment(m, a) for m, a in (assignments or {}).items()]
        body = SyncGroupRequest(group, generation, member_id, instance, protocol_type, protocol_name, parts)
        return self.send(apis.SYNC_GROUP, version, body)

    def synced(self, request_id: int) -> SyncGroupResponse:
        response = self.replies[request_id].response
        assert isinstance(response, SyncGroupResponse)
        return response

    def heartbeat(self, member_id: str, generation: int, group: str = "g", instance: str | None = None) -> int:
        request_id = self.send(apis.HEARTBEAT, 4, HeartbeatRequest(group, generation, member_id, instance))
        response = self.replies[request_id].response
        assert isinstance(response, HeartbeatResponse)
        return response.error_code

    def leave(self, *members: str | tuple[str, str | None], group: str = "g", version: int = 5) -> LeaveGroupResponse:
        pairs = [(m, None) if isinstance(m, str) else m for m in members]
        identities = [MemberIdentity(m, i, "bye") for m, i in pairs]
        body = LeaveGroupRequest(group, pairs[0][0], identities)
        response = self.replies[self.send(apis.LEAVE_GROUP, version, body)].response
        assert isinstance(response, LeaveGroupResponse)
        return response

    def describe(self, *groups: str, version: int = 6, operations: bool = False) -> list[DescribedGroup]:
        body = DescribeGroupsRequest(list(groups) or ["g"], operations)
        response = self.replies[self.send(apis.DESCRIBE_GROUPS, version, body)].response
        assert isinstance(response, DescribeGroupsResponse)
        return response.groups

    def list_groups(self, states: list[str] | None = None, types: list[str] | None = None) -> list[ListedGroup]:
        body = ListGroupsRequest(states or [], types or [])
        response = self.replies[self.send(apis.LIST_GROUPS, 5, body)].response
        assert isinstance(response, ListGroupsResponse)
        return response.groups

    def delete(self, *groups: str) -> dict[str, int]:
        request_id = self.send(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(list(groups)))
        response = self.replies[request_id].response
        assert isinstance(response, DeleteGroupsResponse)
        return {result.group_id: result.error_code for result in response.results}

    # ---- groups in a state

    def group(self, group: str = "g") -> ClassicGroup:
        found = self.store.get(group)
        assert found is not None
        return found

    def last_value(self) -> GroupMetadataValue | None:
        """The group record that was written last."""
        value = self.stored[0][-1].value
        assert value is None or isinstance(value, GroupMetadataValue)
        return value

    def record_count(self) -> int:
        return sum(len(records) for records in self.stored)

    def join_all(self, *requests: int) -> list[JoinGroupResponse]:
        """Answers of joins that end up in one generation."""
        self.sleep(0)
        return [self.joined(request_id) for request_id in requests]

    def stable_group(self, members: int = 1, group: str = "g", **fields: Any) -> list[str]:
        """A Stable group of dynamic members; their ids, the leader's first. Everybody is assigned its own index."""
        ids = [self.new_member_id(group, **fields) for _ in range(members)]
        answers = self.join_all(*[self.send_join(m, group, **fields) for m in ids])
        leader = answers[0].leader
        generation = answers[0].generation_id
        assert [a.error_code for a in answers] == [0] * members
        self.sync_all(ids, leader, generation, group, fields.get("protocol_type", "consumer"))
        return ids

    def sync_all(
        self, ids: list[str], leader: str, generation: int, group: str = "g", protocol_type: str = "consumer"
    ) -> None:
        parts = {m: str(i).encode() for i, m in enumerate(ids)}
        name = self.group(group).protocol_name
        requests = []
        for m in sorted(ids, key=leader.__eq__):
            chosen = parts if m == leader else None
            requests.append(
                self.send_sync(m, generation, chosen, group, protocol_type=protocol_type, protocol_name=name)
            )
        assert [self.synced(r).error_code for r in requests] == [0] * len(ids)
