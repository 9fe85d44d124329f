"""Epochs on demand: of groups, leaders and transactions, and the members and producers that a newer one fences."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Final, cast

from kcoord.core.cause import REBALANCED, Cause
from kcoord.core.dispatch import handle_request
from kcoord.core.outcome import TIMER_TRANSACTION, Outcome, Request, Timer, TimerFired
from kcoord.core.transactions.state import ONGOING
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupResponse
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.server.probe import Probe
from kcoord.server.server import Server
from kcoord.testing.double.double import Double
from kcoord.testing.double.watching import NO_CONNECTION
from kcoord.testing.group_states import HEARTBEAT_VERSION, REASON, GroupStates, check_answer
from kcoord.testing.waiting import TIMEOUT_S

JOIN_VERSION: Final = 9
# A static member that leaves for a while, and one that joins.
RELEASE_EPOCH: Final = -2
JOIN_EPOCH: Final = 0
NO_REQUEST_ID: Final = 1
OWN_HOST: Final = "127.0.0.1"


class EpochControls(GroupStates):
    """The part of the fixture that makes epochs grow."""

    def bump_group_epoch(self, group: str) -> int:
        """Give a consumer group (KIP-848) its next group epoch; its members move to it. Returns the epoch.

        Raises LookupError for any other group; `force_rebalance` gives a classic group its next generation.
        """
        return self._thread.call(lambda server: _bump_group(server, group))

    def bump_leader_epoch(self, topic: str, partition: int) -> int:
        """Have the leader of a partition elected again. Returns the new leader epoch.

        Requests with the old epoch are answered FENCED_LEADER_EPOCH until the client has new metadata. Raises
        LookupError for an unknown partition.
        """

        def bump(server: Server) -> int:
            assert self._double is not None
            return _bump_leader(server, self._double, topic, partition)

        return self._thread.call(bump)

    def fence_instance(self, group: str, instance_id: str) -> str:
        """Have another member join with an instance id: the present one gets FENCED_INSTANCE_ID. Returns its member id.

        In a consumer group the place of the present member is released first, as KIP-848 wants it; a client that does
        not name its instance id with each heartbeat gets UNKNOWN_MEMBER_ID, and UNRELEASED_INSTANCE_ID when it joins
        again. The other member sends nothing more. It has the partitions until its session ends, or until
        `remove_member`. Raises LookupError if the group has no member with this instance id.
        """
        join = self._thread.call(lambda server: _take_instance(server, group, instance_id))
        if isinstance(join, str):
            return join
        with Probe(self._own_address()) as probe:
            joined = probe.ask(apis.JOIN_GROUP, JOIN_VERSION, join, JoinGroupResponse)
        check_answer(joined.error_code)
        return joined.member_id

    def abort_transaction(self, transactional_id: str) -> int:
        """Abort an open transaction as if its timeout had passed: its producer is fenced. Returns the new epoch.

        The markers are written when the call returns. Raises LookupError if no transaction is open.
        """
        return self._thread.run(lambda server: _abort(server, transactional_id), TIMEOUT_S)


def _bump_group(server: Server, group: str) -> int:
    assert server.assembly is not None
    engine = server.assembly.engine
    found = engine.core.groups.consumer_groups.get(group)
    if found is None:
        raise LookupError(f"there is no consumer group {group!r} (KIP-848)")
    out = Outcome()
    now = server.now()
    epoch = engine.core.targets.bump_epoch(found, found.metadata_hash, Cause(REBALANCED, "", REASON), now, out)
    engine.applier.apply(out, now)
    server.pump.schedule_turn()
    return epoch


def _bump_leader(server: Server, double: Double, topic: str, partition: int) -> int:
    assert server.assembly is not None
    engine = server.assembly.engine
    served = engine.data_plane.table.by_name.get(topic)
    if served is None or not 0 <= partition < len(served.partitions):
        raise LookupError(f"there is no partition {topic}-{partition}")
    if double.cluster is not None:
        # The engine knows nothing of the epochs of a cluster.
        return double.cluster.bump_leader_epoch(topic, partition)
    out = Outcome()
    change = PartitionChangeRecord(partition, served.topic_id, leader=server.config.core.node_id)
    out.add(engine.core.topics.log, None, change)
    engine.applier.apply(out, server.now())
    known = engine.core.topics.by_id(served.topic_id)
    assert known is not None
    served.partitions[partition].leader_epoch = known.leader_epoch(partition)
    server.pump.schedule_turn()
    return known.leader_epoch(partition)


def _take_instance(server: Server, group: str, instance_id: str) -> JoinGroupRequest | str:
    """Let another member take over an instance id, with everything else as the present one has it.

    Returns its member id, or in a classic group the request with which it joins.
    """
    assert server.assembly is not None
    groups = server.assembly.engine.core.groups
    consumer_group = groups.consumer_groups.get(group)
    if consumer_group is not None:
        present = consumer_group.static_member(instance_id)
        if present is not None and present.classic is None:
            release = ConsumerGroupHeartbeatRequest(group, present.member_id, RELEASE_EPOCH, instance_id)
            join = ConsumerGroupHeartbeatRequest(
                group, str(uuid.uuid4()), JOIN_EPOCH, instance_id, None, present.rebalance_timeout_ms,
                list(present.topic_names), present.regex(), None, [],
            )  # fmt: skip
            # Both at once: no heartbeat of the present member comes in between.
            for body in (release, join):
                _heartbeat(server, body)
            return join.member_id
    classic = groups.get(group)
    member_id = None if classic is None else classic.static_members.get(instance_id)
    if classic is None or member_id is None:
        raise LookupError(f"the group {group!r} has no member with the instance id {instance_id!r}")
    member = classic.members[member_id]
    return JoinGroupRequest(
        group, member.session_timeout_ms, member.rebalance_timeout_ms, "", instance_id, member.protocol_type,
        member.protocols, REASON,
    )  # fmt: skip


def _heartbeat(server: Server, body: ConsumerGroupHeartbeatRequest) -> None:
    """Handle a heartbeat that no connection has sent."""
    assert server.assembly is not None
    engine = server.assembly.engine
    now = server.now()
    api_key = apis.CONSUMER_GROUP_HEARTBEAT
    request = Request(NO_REQUEST_ID, NO_CONNECTION, api_key, HEARTBEAT_VERSION, "", OWN_HOST, body)
    out = handle_request(engine.core, request, now)
    answer = cast(ConsumerGroupHeartbeatResponse, out.replies[0].response)
    out.replies = []
    engine.applier.apply(out, now)
    server.pump.schedule_turn()
    check_answer(answer.error_code)


async def _abort(server: Server, transactional_id: str) -> int:
    assert server.assembly is not None
    engine = server.assembly.engine
    found = engine.core.transactions.by_id.get(transactional_id)
    if found is None or found.status != ONGOING:
        raise LookupError(f"no transaction of {transactional_id!r} is open")
    now = server.now()
    engine.handle_event(TimerFired(Timer(TIMER_TRANSACTION, transactional_id, "", found.timer_token, now.mono_ms)), now)
    await after_turns(server, lambda: found.status != ONGOING and not found.is_ending)
    return found.producer_epoch


async def after_turns(server: Server, is_met: Callable[[], bool]) -> None:
    """Wait until a condition is met, which is looked at after each turn."""
    met = asyncio.get_running_loop().create_future()

    def look() -> None:
        if is_met() and not met.done():
            met.set_result(None)

    server.pump.after_turn.append(look)
    try:
        server.pump.schedule_turn()
        look()
        await met
    finally:
        server.pump.after_turn.remove(look)
