"""Sends the heartbeats of a member from a task of its own, so that they go on while the user processes records.

There is one request under way at a time. The next one is sent at the interval that the coordinator names, or at once if
the member has news; after a failure, with growing pauses. If the user does not poll for `max_poll_interval`, the member
leaves the group, so that others get its partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, final

from kcoord.client.cluster import COORDINATOR_LANE, GROUP
from kcoord.client.consumer.consumer_group.member import PATTERNS_FROM, Member, Wanted
from kcoord.client.consumer.consumer_group.state import ACTIVE, BEATING, MemberState
from kcoord.client.consumer.membership import GroupHost
from kcoord.client.consumer.options import log
from kcoord.client.deadline import Backoff
from kcoord.client.errors import KafkaError, UnsupportedVersion, error_for, may_retry
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

# Until the coordinator names an interval: its default.
INTERVAL_S: Final = 5.0
# An answer may take as many intervals as a session has by default, less the time to try again elsewhere.
ANSWER_INTERVALS: Final = 3
ANSWER_S_MIN: Final = 5.0
# So many attempts to leave; after that the session timeout removes the member.
LEAVE_ATTEMPTS: Final = 3
# The task looks at its state this often at the least.
TURN_S_MAX: Final = 60.0

NO_PROTOCOL: Final = (
    "the broker does not have the consumer group protocol (KIP-848, on by default from Kafka 4.0 on);"
    " use group_protocol='classic'"
)
NO_PATTERNS: Final = "the coordinator cannot match patterns (Kafka 4.0); subscribe to topics or to a compiled pattern"

MOVED: Final = frozenset({errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE})
# A group that the coordinator does not have any more is made again by a member that joins.
FENCED: Final = frozenset({errors.FENCED_MEMBER_EPOCH, errors.UNKNOWN_MEMBER_ID, errors.GROUP_ID_NOT_FOUND})
# An earlier member with the instance id is still there: its session ends, or somebody removes it.
WAITING: Final = frozenset({errors.COORDINATOR_LOAD_IN_PROGRESS, errors.UNRELEASED_INSTANCE_ID})


@final
class Heartbeats:
    """`wanted` says what the member asks for now. `before` and `after` are called around each heartbeat."""

    def __init__(
        self,
        host: GroupHost,
        member: Member,
        wanted: Callable[[], Wanted],
        before: Callable[[], Awaitable[None]],
        after: Callable[[ConsumerGroupHeartbeatResponse | None], None],
    ) -> None:
        self._host = host
        self._member = member
        self._wanted = wanted
        self._before = before
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(host.options.retry_backoff_s, host.options.retry_backoff_max_s)
        self._kicked = asyncio.Event()
        self._interval_s = INTERVAL_S
        self._next_s = self._loop.time()
        # No heartbeat before this time, whatever is new: set after failures.
        self._pause_end_s = 0.0
        self._polled_s = self._loop.time()
        self._is_nudged = False
        # Heartbeats that were answered without an error.
        self.answers = 0
        # The error that ended the membership, and one that does not end it, for the user.
        self.failure: KafkaError | None = None
        self.problem: KafkaError | None = None

    # --- what the user's calls say

    def note_poll(self) -> None:
        self._polled_s = self._loop.time()
        self._is_nudged = False

    def kick(self) -> None:
        """Have the next heartbeat sent now, or as soon as the pause after a failure is over."""
        self._next_s = max(self._loop.time(), self._pause_end_s)
        self._kicked.set()

    # --- the task

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wait()
            if self._member.state not in BEATING:
                continue
            now_s = self._loop.time()
            if self._member.state in ACTIVE and now_s >= self._polled_s + self._host.options.max_poll_interval_s:
                await self._leave_stale()
            elif now_s >= self._next_s or self._may_tell_news(now_s):
                await self._beat()

    def _may_tell_news(self, now_s: float) -> bool:
        return now_s >= self._pause_end_s and self._member.wants_beat(self._wanted())

    async def _wait(self) -> None:
        """Until the next heartbeat is due, a poll is overdue, or somebody kicks."""
        now_s = self._loop.time()
        end_s = now_s + TURN_S_MAX
        if self._member.state in BEATING:
            end_s = min(end_s, self._next_s)
            if self._member.wants_beat(self._wanted()):
                end_s = min(end_s, self._pause_end_s)
        if self._member.state in ACTIVE:
            # A user who waits for records in a call is woken, so that the call counts as a poll again.
            limit_s = self._host.options.max_poll_interval_s
            if not self._is_nudged and now_s >= self._polled_s + limit_s / 2:
                self._is_nudged = True
                self._host.wake()
            end_s = min(end_s, self._polled_s + (limit_s if self._is_nudged else limit_s / 2))
        if end_s > now_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(end_s - now_s):
                    await self._kicked.wait()
        self._kicked.clear()

    async def _beat(self) -> None:
        self._next_s = self._loop.time() + self._interval_s
        limit_s = min(max(self._interval_s * ANSWER_INTERVALS, ANSWER_S_MIN), self._host.options.request_timeout_s)
        try:
            await self._before()
            answer = await self._ask(self._request, limit_s)
        except KafkaError as error:
            self._member.failed()
            if may_retry(error):
                self._pause(error)
            else:
                self._fail(error)
            self._after(None)
            return
        self._take(answer)
        self._after(answer)

    async def _ask(
        self, request: Callable[[int], ConsumerGroupHeartbeatRequest], limit_s: float
    ) -> ConsumerGroupHeartbeatResponse:
        version_min = PATTERNS_FROM if self._wanted().pattern else 0
        try:
            return await self._host.cluster.ask_coordinator(
                GROUP,
                self._host.group_id,
                apis.CONSUMER_GROUP_HEARTBEAT,
                request,
                ConsumerGroupHeartbeatResponse,
                version_min=version_min,
                timeout_s=limit_s,
            )
        except UnsupportedVersion:
            text = NO_PATTERNS if version_min and await self._has_version(0) else NO_PROTOCOL
            raise UnsupportedVersion(f"group {self._host.group_id}: {text}") from None

    async def _has_version(self, version: int) -> bool:
        cluster = self._host.cluster
        node_id = await cluster.coordinator(GROUP, self._host.group_id)
        return (await cluster.connection(node_id, COORDINATOR_LANE)).has(apis.CONSUMER_GROUP_HEARTBEAT, version)

    def _request(self, version: int) -> ConsumerGroupHeartbeatRequest:
        return self._member.heartbeat(version, self._wanted())

    def _pause(self, error: KafkaError) -> None:
        """Try again after a pause that grows."""
        pause_s = self._backoff.next_s()
        self._next_s = self._pause_end_s = self._loop.time() + pause_s
        log.info("heartbeat of group %s, the next one in %.1f s: %s", self._host.group_id, pause_s, error)

    def _fail(self, error: KafkaError) -> None:
        log.error("the consumer is out of group %s: %s", self._host.group_id, error)
        self.failure = error
        self._member.fail()
        self._host.wake()

    # --- answers

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        code = answer.error_code
        if code == errors.NONE:
            self._backoff.reset()
            self.answers += 1
            self._pause_end_s = self._loop.time() + answer.throttle_time_ms / 1000
            if answer.heartbeat_interval_ms > 0:
                self._interval_s = answer.heartbeat_interval_ms / 1000
                self._next_s = min(self._next_s, self._loop.time() + self._interval_s)
            self._member.answered(answer)
            if self._member.state is MemberState.RECONCILING:
                self._host.wake()
            return
        error = error_for(code, f"group {self._host.group_id}", answer.error_message)
        self._member.failed()
        if code in FENCED:
            log.warning("member %s: %s", self._member.member_id, error)
            self._pause(error)
            self._member.fenced()
            self._host.wake()
        elif code in MOVED:
            self._host.cluster.forget_coordinator(GROUP, self._host.group_id)
            self._pause(error)
        elif code in WAITING:
            self._pause(error)
        elif code == errors.TOPIC_AUTHORIZATION_FAILED:
            # Somebody may allow it, so heartbeats go on, as in Kafka.
            self.problem = error
            self._pause(error)
            self._host.wake()
        elif code == errors.UNSUPPORTED_VERSION:
            self._fail(UnsupportedVersion(f"group {self._host.group_id}: {NO_PROTOCOL}"))
        else:
            self._fail(error)

    # --- the end

    async def _leave_stale(self) -> None:
        log.warning(
            "group %s: no poll for %g s (max_poll_interval), so the member leaves until the next poll: poll more often,"
            " or get fewer records at a time",
            self._host.group_id,
            self._host.options.max_poll_interval_s,
        )
        request = self._member.leave()
        self._member.end(is_stale=True)
        self._host.wake()
        await self.leave(request, self._host.options.request_timeout_s)

    async def leave(self, request: ConsumerGroupHeartbeatRequest, limit_s: float) -> None:
        """Tell the coordinator, as far as it can be reached in time; otherwise the session times out."""
        if not self._member.is_known:
            return
        backoff = Backoff(self._host.options.retry_backoff_s, self._host.options.retry_backoff_max_s)
        try:
            async with asyncio.timeout(limit_s):
                for attempt in range(LEAVE_ATTEMPTS):
                    if attempt:
                        await asyncio.sleep(backoff.next_s())
                    if await self._leave_once(request, limit_s):
                        return
        except TimeoutError:
            pass
        log.warning("group %s: the coordinator did not confirm that the member left", self._host.group_id)

    async def _leave_once(self, request: ConsumerGroupHeartbeatRequest, limit_s: float) -> bool:
        try:
            answer = await self._ask(lambda _version: request, max(limit_s, 0.001))
        except KafkaError as error:
            log.debug("leaving group %s: %s", self._host.group_id, error)
            return not may_retry(error)
        if answer.error_code in MOVED:
            self._host.cluster.forget_coordinator(GROUP, self._host.group_id)
        return answer.error_code not in MOVED and answer.error_code not in WAITING
