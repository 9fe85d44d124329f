"""States of groups, coordinators and producers on demand, for tests that do not want to wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

from kcoord.core.outcome import TIMER_SESSION, Outcome, Timer, TimerFired
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kcoord.protocol.errors import ERROR_NAMES
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from kcoord.server.probe import Probe
from kcoord.server.server import Server
from kcoord.testing.double.faults import FAIL, Action, error_code
from kcoord.testing.double.selector import Selector
from kcoord.testing.double.watching import view
from kcoord.testing.groups import SeenMember, describe
from kcoord.testing.time_travel import ClockTools

# What a member, a committing client and a tool send to a coordinator.
COORDINATOR_APIS: Final = (
    "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "TxnOffsetCommit",
    "ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "DescribeGroups", "DeleteGroups", "OffsetDelete",
)  # fmt: skip
CONSUMER_GROUP_APIS: Final = (
    "ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "ConsumerGroupPrepareAssignment",
    "ConsumerGroupInstallAssignment",
)  # fmt: skip
LEAVE_VERSION: Final = 5
INIT_PRODUCER_VERSION: Final = 4
HEARTBEAT_VERSION: Final = 1
LEAVE_EPOCH: Final = -1
TRANSACTION_TIMEOUT_MS: Final = 60_000
REASON: Final = "a test asked for it"


class GroupStates(ClockTools):
    """The part of the fixture that puts groups, coordinators and producers into a state."""

    # --- the coordinator

    def coordinator_loading(self, group: str | None = None) -> AbstractContextManager[None]:
        """In this block the coordinator of the group (or every one) loads: it answers COORDINATOR_LOAD_IN_PROGRESS.

        Members of classic groups notice nothing as long as they send heartbeats only: as on a broker, these are good.
        """
        names = [name for name in COORDINATOR_APIS if name != "Heartbeat"]
        return self._failing(names, "COORDINATOR_LOAD_IN_PROGRESS", group)

    def coordinator_unavailable(self, group: str | None = None) -> AbstractContextManager[None]:
        """In this block the group (or every one) has no coordinator: none is found, and none answers for it."""
        return self._failing([*COORDINATOR_APIS, "FindCoordinator"], "COORDINATOR_NOT_AVAILABLE", group)

    def coordinator_moved(self, group: str | None = None) -> AbstractContextManager[None]:
        """In this block the broker is not the group's coordinator any more: it answers NOT_COORDINATOR."""
        return self._failing(COORDINATOR_APIS, "NOT_COORDINATOR", group)

    def classic_only(self) -> AbstractContextManager[None]:
        """In this block groups have the classic protocol only: the APIs of KIP-848 are answered UNSUPPORTED_VERSION.

        So does a broker of Kafka 4 with `group.coordinator.rebalance.protocols=classic`, which lists these APIs all the
        same. `offer("3.9")` does not list them.
        """
        return self._failing(CONSUMER_GROUP_APIS, "UNSUPPORTED_VERSION", None)

    @contextmanager
    def _failing(self, names: Sequence[str], error: str, group: str | None) -> Iterator[None]:
        action = Action(FAIL, error_code=error_code(error))
        rules = self._call(lambda double: [double.rules.add(Selector(api=name, group=group), action) for name in names])
        try:
            yield
        finally:
            self._remove(*rules)

    # --- members

    def expire_member(
        self, group: str, *, member_id: str | None = None, client_id: str | None = None, instance_id: str | None = None
    ) -> str:
        """End the session of a member as if it had been silent for its timeout. Returns its member id.

        Without conditions the group must have one member. Raises LookupError unless exactly one member matches.
        """
        is_wanted = _wants(member_id, client_id, instance_id)
        return self._thread.call(lambda server: _expire(server, group, is_wanted))

    def remove_member(
        self, group: str, *, member_id: str | None = None, client_id: str | None = None, instance_id: str | None = None
    ) -> str:
        """Remove a member as an administrator does (LeaveGroup). Returns its member id. Raises LookupError as above."""
        is_wanted = _wants(member_id, client_id, instance_id)
        found = self._thread.call(lambda server: _find(server, group, is_wanted))
        identity = MemberIdentity(found.member_id, found.instance_id, REASON)
        if found.instance_id:
            identity.member_id = ""
        with Probe(self._own_address()) as probe:
            request = LeaveGroupRequest(group_id=group, members=[identity])
            answer = probe.ask(apis.LEAVE_GROUP, LEAVE_VERSION, request, LeaveGroupResponse)
        check_answer(answer.error_code or answer.members[0].error_code)
        return found.member_id

    def force_rebalance(self, group: str) -> None:
        """Make a group rebalance: all members of a classic group join again, a consumer group gets new epochs.

        A consumer group rebalances because a member joins and leaves at once.
        """
        seen = self._thread.call(lambda server: describe(view(server), group))
        if not seen.members:
            raise LookupError(f"the group {group!r} has no members")
        if self._thread.call(lambda server: _rebalance_classic(server, group)):
            return
        topics = self._thread.call(lambda server: _subscribed(server, group))
        with Probe(self._own_address()) as probe:
            ask = partial(_heartbeat, probe, group)
            ask(0, topics)
            ask(LEAVE_EPOCH, None)

    # --- producers

    def fence_producer(self, transactional_id: str) -> int:
        """Start a rival producer with this id: the present one is fenced, its open transaction is aborted.

        Returns the new producer epoch.
        """
        request = InitProducerIdRequest(transactional_id, TRANSACTION_TIMEOUT_MS)
        with Probe(self._own_address()) as probe:
            while True:
                answer = probe.ask(apis.INIT_PRODUCER_ID, INIT_PRODUCER_VERSION, request, InitProducerIdResponse)
                # The open transaction is being aborted.
                if ERROR_NAMES.get(answer.error_code) != "CONCURRENT_TRANSACTIONS":
                    break
        check_answer(answer.error_code)
        return answer.producer_epoch


def check_answer(code: int) -> None:
    if code:
        raise RuntimeError(f"the server refused: {ERROR_NAMES.get(code, code)}")


def _wants(member_id: str | None, client_id: str | None, instance_id: str | None) -> Callable[[SeenMember], bool]:
    def is_wanted(member: SeenMember) -> bool:
        return (
            (member_id is None or member.member_id == member_id)
            and (client_id is None or member.client_id == client_id)
            and (instance_id is None or member.instance_id == instance_id)
        )

    return is_wanted


def _find(server: Server, group: str, is_wanted: Callable[[SeenMember], bool]) -> SeenMember:
    members = describe(view(server), group).members
    found = [member for member in members if is_wanted(member)]
    if len(found) != 1:
        there = ", ".join(f"{member.client_id} ({member.member_id})" for member in members) or "none"
        raise LookupError(f"{len(found)} members of the group {group!r} match, of: {there}")
    return found[0]


def _expire(server: Server, group: str, is_wanted: Callable[[SeenMember], bool]) -> str:
    member_id = _find(server, group, is_wanted).member_id
    assert server.assembly is not None
    engine = server.assembly.engine
    timers = engine.core.groups.timers.find(group, member_id)
    if timers is None:
        raise LookupError(f"{member_id} has no session")
    now = server.now()
    timers.deadline_ms = now.mono_ms
    engine.handle_event(TimerFired(Timer(TIMER_SESSION, group, member_id, timers.session_token, now.mono_ms)), now)
    server.pump.schedule_turn()
    return member_id


def _rebalance_classic(server: Server, group: str) -> bool:
    assert server.assembly is not None
    engine = server.assembly.engine
    found = engine.core.groups.get(group)
    if found is None:
        return False
    out = Outcome()
    now = server.now()
    if found.can_rebalance():
        engine.core.rebalance.prepare_rebalance(found, REASON, now, out)
        engine.applier.apply(out, now)
        server.pump.schedule_turn()
    return True


def _subscribed(server: Server, group: str) -> list[str]:
    """The topics of the members of a consumer group."""
    assert server.assembly is not None
    found = server.assembly.engine.core.groups.consumer_groups[group]
    return sorted({topic for member in found.members.values() for topic in member.topic_names})


def _heartbeat(probe: Probe, group: str, epoch: int, topics: list[str] | None) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group, "rebalancer", epoch, None, None, TRANSACTION_TIMEOUT_MS, topics, None, None, [] if epoch == 0 else None
    )
    answer = probe.ask(apis.CONSUMER_GROUP_HEARTBEAT, HEARTBEAT_VERSION, request, ConsumerGroupHeartbeatResponse)
    check_answer(answer.error_code)
