"""Computes the assignment of the group when the coordinator asks this member to (KIP-848, docs/client-assignors.md).

Prepare gets the group, the user's assignor assigns, Install sends the result. The coordinator asks in answers to
heartbeats until Prepare has reached it, and not again for this epoch. So an answer that is lost is asked for again
here. If the group has changed meanwhile, the next heartbeat asks again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, final

from kcoord.client.cluster import COORDINATOR_LANE, GROUP
from kcoord.client.consumer.consumer_group.assignor import (
    UNKNOWN_ERROR,
    AssignorError,
    AssignorMetadata,
    ClientAssignor,
    GroupSpec,
    MemberAssignment,
    MemberSpec,
)
from kcoord.client.consumer.consumer_group.member import AssignorOffer, Member
from kcoord.client.consumer.membership import GroupHost, end_tasks
from kcoord.client.consumer.options import log
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import (
    AssignorFailed,
    BrokerError,
    ConnectionLost,
    InvalidConfiguration,
    KafkaError,
    UnsupportedVersion,
    error_for,
)
from kcoord.client.metadata import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_install_assignment import (
    AssignedMember,
    AssignedTopicPartitions,
    ConsumerGroupInstallAssignmentRequest,
    ConsumerGroupInstallAssignmentResponse,
)
from kcoord.protocol.consumer_group_prepare_assignment import (
    AssignableMember,
    ConsumerGroupPrepareAssignmentRequest,
    ConsumerGroupPrepareAssignmentResponse,
)
from kcoord.wire.message import Message

M = TypeVar("M", ConsumerGroupPrepareAssignmentResponse, ConsumerGroupInstallAssignmentResponse)

VERSION: Final = 0
PROBE_LANE: Final = "client assignors"
# A broker that has opened a connection and closes it so many times at the first request does not know the API.
PROBES: Final = 2
# The coordinator decides anew, and says so in the answers to heartbeats.
DECIDED_ELSEWHERE: Final = frozenset(
    {errors.UNKNOWN_MEMBER_ID, errors.GROUP_ID_NOT_FOUND, errors.FENCED_MEMBER_EPOCH, errors.STALE_MEMBER_EPOCH}
)
NO_ASSIGNORS: Final = (
    "the broker does not support client-side assignors: they are part of the proposal of KIP-848 that no release of"
    " Kafka has; leave group_local_assignors out, or use kcoord"
)


class _Result(NamedTuple):
    error: int
    members: list[AssignedMember]


@final
class Computing:
    """`beat_soon` asks for a heartbeat; `report` passes an error to the user's next poll."""

    def __init__(
        self,
        host: GroupHost,
        member: Member,
        assignors: Sequence[ClientAssignor],
        beat_soon: Callable[[], None],
        report: Callable[[KafkaError], None],
    ) -> None:
        self._host = host
        self._member = member
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._beat_soon = beat_soon
        self._report = report
        self._is_supported = not assignors
        self._task: asyncio.Task[None] | None = None
        # Set by each answer to a heartbeat.
        self._answered = asyncio.Event()

    # --- what heartbeats say

    def offers(self) -> tuple[AssignorOffer, ...]:
        """The assignors with their metadata of now. Raises AssignorFailed."""
        return tuple(_offer(assignor) for assignor in self._assignors.values())

    async def check_support(self) -> None:
        """Ask the coordinator once, before the member joins. Raises UnsupportedVersion, or errors that may pass.

        Brokers do not list the API, and Kafka closes the connection when it gets an unknown one.
        """
        if self._is_supported:
            return
        cluster = self._host.cluster
        node_id = await cluster.coordinator(GROUP, self._host.group_id)
        for attempt in range(1, PROBES + 1):
            connection = await cluster.connection(node_id, PROBE_LANE)
            try:
                # Without a member id it is refused in any case.
                await connection.ask(
                    apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT,
                    VERSION,
                    ConsumerGroupPrepareAssignmentRequest(self._host.group_id),
                    ConsumerGroupPrepareAssignmentResponse,
                )
            except ConnectionLost:
                if attempt == PROBES:
                    raise UnsupportedVersion(f"group {self._host.group_id}: {NO_ASSIGNORS}") from None
            else:
                self._is_supported = True
                await connection.close()
                return

    def answered(self, should_compute: bool) -> None:
        """A heartbeat was answered."""
        self._answered.set()
        if should_compute and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name="kcoord assignment")

    async def close(self) -> None:
        """The member leaves, or was fenced: whoever is a member then is asked."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks([task])

    # --- what the assignors hear, in the user's task

    def tell(self) -> None:
        """Pass on what came with the assignment, once. Raises what `on_assignment` raises."""
        answer, self._member.assignor_answer = self._member.assignor_answer, None
        if answer is None:
            return
        error, version, data = answer
        for assignor in self._assignors.values():
            assignor.on_assignment(AssignorMetadata(version, data), error)

    # --- computing

    async def _run(self) -> None:
        deadline = Deadline(self._host.options.max_poll_interval_s, "the assignment")
        try:
            async with asyncio.timeout(deadline.left_s()):
                await self._compute(deadline)
        except TimeoutError:
            log.warning("group %s: no assignment within max_poll_interval", self._host.group_id)
        except InvalidConfiguration as error:
            # What the assignor returned cannot be sent.
            self._report_as_failed(error)
        except KafkaError as error:
            log.warning("group %s: no assignment computed: %s", self._host.group_id, error)
            if isinstance(error, AssignorFailed):
                self._report(error)
        except Exception as error:
            self._report_as_failed(error)

    def _report_as_failed(self, error: Exception) -> None:
        failure = AssignorFailed(f"group {self._host.group_id}: {error!r}")
        failure.__cause__ = error
        self._report(failure)

    async def _compute(self, deadline: Deadline) -> None:
        group = await self._ask(
            deadline,
            apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT,
            lambda: ConsumerGroupPrepareAssignmentRequest(
                self._host.group_id, self._member.member_id, self._member.epoch
            ),
            ConsumerGroupPrepareAssignmentResponse,
        )
        if group is None:
            return
        result = await self._assign(group)
        try:
            await self._ask(
                deadline,
                apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT,
                lambda: ConsumerGroupInstallAssignmentRequest(
                    self._host.group_id,
                    self._member.member_id,
                    self._member.epoch,
                    group.group_epoch,
                    result.error,
                    result.members,
                ),
                ConsumerGroupInstallAssignmentResponse,
            )
        except BrokerError as error:
            if error.code != errors.INVALID_REQUEST:
                raise
            raise AssignorFailed(f"assignor {group.assignor_name!r}: the coordinator refused: {error}") from error
        self._beat_soon()

    async def _ask(
        self, deadline: Deadline, api_key: int, request: Callable[[], Message], answer_type: type[M]
    ) -> M | None:
        """The answer of the coordinator; None if somebody else has to compute, or another assignment."""
        cluster, group = self._host.cluster, self._host.group_id
        backoff = Backoff(self._host.options.retry_backoff_s, self._host.options.retry_backoff_max_s)
        while True:
            epoch = self._member.epoch
            answer = await cluster.retry_coordinator(
                deadline, GROUP, group, lambda: self._ask_once(api_key, request(), answer_type)
            )
            code = answer.error_code
            if code == errors.NONE:
                return answer
            if code not in DECIDED_ELSEWHERE:
                raise error_for(code, f"group {group}", answer.error_message)
            log.debug("group %s: not to be computed now: %s", group, answer.error_message)
            if code != errors.STALE_MEMBER_EPOCH or not await self._has_other_epoch(epoch):
                return None
            await deadline.pause(backoff)

    async def _ask_once(self, api_key: int, request: Message, answer_type: type[M]) -> M:
        cluster, group = self._host.cluster, self._host.group_id
        node_id = await cluster.coordinator(GROUP, group)
        try:
            connection = await cluster.connection(node_id, COORDINATOR_LANE)
            # The API is in no broker's list.
            answer = await connection.ask(api_key, VERSION, request, answer_type)
        except KafkaError:
            cluster.forget_coordinator(GROUP, group)
            raise
        if answer.error_code in errors.RETRIABLE:
            raise error_for(answer.error_code, f"group {group}", answer.error_message)
        return answer

    async def _has_other_epoch(self, epoch: int) -> bool:
        """Whether the member's epoch is another one, now or after the next heartbeat."""
        if self._member.epoch == epoch:
            self._answered.clear()
            self._beat_soon()
            await self._answered.wait()
        return self._member.epoch != epoch and self._member.is_in_group

    async def _assign(self, group: ConsumerGroupPrepareAssignmentResponse) -> _Result:
        """The user's assignor, and what it returns in terms of the protocol. Raises AssignorFailed."""
        assignor = self._assignors.get(group.assignor_name)
        if assignor is None:
            raise AssignorFailed(
                f"the group uses the assignor {group.assignor_name!r}, which this member does not have"
            )
        topic_ids = {topic.topic_name: topic.topic_id for topic in group.topics}
        try:
            found = assignor.assign(_spec(group))
            assigned = await found if inspect.isawaitable(found) else found
            return _Result(errors.NONE, [_member(one, given, topic_ids) for one, given in assigned.items()])
        except AssignorError as error:
            log.warning("group %s: assignor %r: %s", group.assignor_name, self._host.group_id, error)
            return _Result(error.code, _unchanged(group))
        except Exception as error:
            failure = AssignorFailed(f"assignor {group.assignor_name!r}: {error!r}")
            failure.__cause__ = error
            self._report(failure)
            log.exception("group %s: assignor %r", self._host.group_id, group.assignor_name)
            return _Result(UNKNOWN_ERROR, _unchanged(group))


def check_assignors(assignors: Sequence[object]) -> tuple[ClientAssignor, ...]:
    """Raises ValueError."""
    found: dict[str, ClientAssignor] = {}
    for assignor in assignors:
        if not isinstance(assignor, ClientAssignor):
            raise ValueError(f"{assignor!r} is no ClientAssignor")
        if not assignor.name or assignor.name in found:
            raise ValueError(f"assignors need names of their own: {assignor.name!r}")
        found[assignor.name] = assignor
    return tuple(found.values())


def _offer(assignor: ClientAssignor) -> AssignorOffer:
    try:
        now = assignor.metadata()
        return AssignorOffer(
            assignor.name,
            assignor.minimum_version,
            assignor.maximum_version,
            now.reason,
            now.version,
            bytes(now.data),
        )
    except Exception as error:
        raise AssignorFailed(f"assignor {assignor.name!r}: metadata: {error!r}") from error


def _spec(group: ConsumerGroupPrepareAssignmentResponse) -> GroupSpec:
    names = {topic.topic_id: topic.topic_name for topic in group.topics}
    members = {one.member_id: _member_spec(one, names) for one in group.members}
    return GroupSpec(members, {topic.topic_name: topic.num_partitions for topic in group.topics})


def _member_spec(one: AssignableMember, names: Mapping[bytes, str]) -> MemberSpec:
    target = frozenset(
        TopicPartition(names[topic.topic_id], number)
        for topic in one.topic_partitions
        if topic.topic_id in names
        for number in topic.partitions
    )
    return MemberSpec(
        one.member_id,
        one.instance_id,
        one.rack_id,
        frozenset(names[topic_id] for topic_id in one.subscribed_topic_ids if topic_id in names),
        AssignorMetadata(one.assignor.metadata_version, one.assignor.metadata_bytes, one.assignor.reason),
        target,
    )


def _member(member_id: str, given: MemberAssignment, topic_ids: Mapping[str, bytes]) -> AssignedMember:
    topics: dict[bytes, list[int]] = {}
    for partition in sorted(given.partitions):
        topic_id = topic_ids.get(partition.topic)
        if topic_id is None:
            raise AssignorFailed(f"{partition} is assigned, but no member subscribes to its topic")
        topics.setdefault(topic_id, []).append(partition.partition)
    assigned = [AssignedTopicPartitions(topic_id, numbers) for topic_id, numbers in topics.items()]
    return AssignedMember(member_id, assigned, given.metadata.version, bytes(given.metadata.data))


def _unchanged(group: ConsumerGroupPrepareAssignmentResponse) -> list[AssignedMember]:
    """What the members have been assigned last, as far as it is still possible."""
    counts = {topic.topic_id: topic.num_partitions for topic in group.topics}
    members: list[AssignedMember] = []
    for one in group.members:
        kept: list[AssignedTopicPartitions] = []
        for topic in one.topic_partitions:
            numbers = [number for number in topic.partitions if number < counts.get(topic.topic_id, 0)]
            if numbers and topic.topic_id in one.subscribed_topic_ids:
                kept.append(AssignedTopicPartitions(topic.topic_id, numbers))
        members.append(AssignedMember(one.member_id, kept))
    return members
