"""What goes into the core and what comes out of it.

A handler looks at an event and at the state, and returns an Outcome: records to store, replies to give, timers to
arm, jobs to run. It changes no hard state; that is what `replay` does with the records, live and at start-up alike.
Soft state (who waits for a rebalance, session deadlines) may be changed by handlers, since losing it at any moment
must be harmless.

Times: `mono_ms` is a monotonic clock for timers and deadlines, `wall_ms` the Unix time that goes into records. Both
come in as arguments.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import mypyc_attr

from kcoord.core.groups.cause import Cause
from kcoord.wire.message import Message

# Logs are named by (topic, partition); the coordinator and metadata logs are topics like any other.
METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
# What happened to groups, as a topic like any other; no broker has it, and no server-side regex matches it.
GROUP_EVENTS_TOPIC: Final = "__group_events"
INTERNAL_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTION_TOPIC)

# Kinds of timers. A member's session is one for groups of both protocols.
TIMER_SESSION: Final = 1
TIMER_REBALANCE: Final = 2
TIMER_SYNC: Final = 3
TIMER_PENDING_MEMBER: Final = 4
TIMER_INITIAL_REBALANCE: Final = 5
TIMER_OFFSET_EXPIRY: Final = 6
TIMER_FETCH: Final = 7
TIMER_CONSUMER_REBALANCE: Final = 8
TIMER_CONSUMER_JOIN: Final = 9
TIMER_CONSUMER_SYNC: Final = 10
TIMER_TOPICS: Final = 11
TIMER_TOPIC_OFFSETS: Final = 12
CONSUMER_TIMERS: Final = (
    TIMER_CONSUMER_REBALANCE,
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_SYNC,
)

# Error messages repeat names that clients chose, and the formats hold 32,767 bytes: so many characters always fit.
MESSAGE_CHARS_MAX: Final = 8000

# Levels of facts for the server's log.
INFO: Final = 1
WARNING: Final = 2


@final
class LogId:
    """Names one partition log. Compare by topic and partition; the core hands out one object per log."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"


@final
class Now:
    """The two clocks, read once per turn by the server (or set by a test)."""

    def __init__(self, mono_ms: int, wall_ms: int) -> None:
        self.mono_ms = mono_ms
        self.wall_ms = wall_ms


@final
class Request:
    """A decoded request on its way into the core.

    `entropy` is 16 random bytes where the API makes up identifiers (JoinGroup, CreateTopics, Metadata with
    auto-creation, InitProducerId) and empty otherwise. `host` and `port` are what this connection's listener
    advertises to clients.
    """

    def __init__(
        self,
        request_id: int,
        connection_id: int,
        api_key: int,
        version: int,
        client_id: str,
        client_host: str,
        body: Message,
        entropy: bytes = b"",
        host: str = "",
        port: int = 0,
    ) -> None:
        self.request_id = request_id
        self.connection_id = connection_id
        self.api_key = api_key
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.body = body
        self.entropy = entropy
        self.host = host
        self.port = port


@final
class Timer:
    """A timer to arm. There is no cancelling: a handler checks the token (and the deadline) again when it fires."""

    def __init__(self, kind: int, group_id: str, member_id: str, token: int, deadline_ms: int) -> None:
        self.kind = kind
        self.group_id = group_id
        self.member_id = member_id
        self.token = token
        self.deadline_ms = deadline_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """Slow work that must not hold up the loop: `run` computes the result from the job's own fields and nothing else.

    The core makes jobs and never runs them; whoever drives it does, in whatever order they end, and comes back with
    JobDone. At most one job with a `key` is in flight: another one with that key is not taken, so a handler of
    JobDone looks whether there is something to do again. After `deadline_ms` (a duration, time in a queue included)
    JobDone says so with an error, and what the job still returns is dropped. A job does not survive a restart.
    """

    def __init__(self, key: str, deadline_ms: int) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        # Set when nobody waits for the result any more; work in many steps looks at it between them.
        self.is_abandoned = False

    def run(self) -> object:
        """The result. Whatever it raises becomes the error of JobDone. May be called in any thread."""
        raise TypeError(f"{type(self).__name__} does not say how to run")


@mypyc_attr(allow_interpreted_subclasses=True)
class StepJob(Job):
    """A job in steps of about a millisecond.

    Compiled code keeps the GIL until it returns, and so would keep the loop waiting. Whoever runs the job lets others
    have the GIL between two steps, and stops when the job is abandoned.
    """

    def step(self) -> bool:
        """Go on; whether that was the end."""
        raise TypeError(f"{type(self).__name__} does not say how to step")

    def run(self) -> object:
        while not self.step():
            if self.is_abandoned:
                break
        return None


@final
class Reply:
    """The answer to one request.

    An answer that shows state which may not be durable yet names the log and the end offset it depends on; answers
    that come with records wait for those by themselves.
    """

    def __init__(
        self, request_id: int, response: Message | None, wait_log: LogId | None = None, wait_offset: int = 0
    ) -> None:
        self.request_id = request_id
        self.response = response
        self.wait_log = wait_log
        self.wait_offset = wait_offset


@final
class CoordinatorRecord:
    """A typed record for a coordinator or metadata log; value None is a tombstone.

    In the metadata log the key is None and the value is the record. `cause` travels with the record, as a header.
    """

    def __init__(self, key: Message | None, value: Message | None, cause: Cause | None = None) -> None:
        self.key = key
        self.value = value
        self.cause = cause


@final
class Fact:
    """One line for the server's log: an event name in snake_case and its fields."""

    def __init__(self, level: int, event: str, fields: dict[str, object]) -> None:
        self.level = level
        self.event = event
        self.fields = fields


@final
class Outcome:
    """What one event led to. `records` all go to `log`, as one atomic batch."""

    def __init__(self) -> None:
        self.log: LogId | None = None
        self.records: list[CoordinatorRecord] = []
        self.replies: list[Reply] = []
        self.timers: list[Timer] = []
        self.jobs: list[Job] = []
        self.facts: list[Fact] = []
        # Events the engine handles right after this outcome was applied (a chain of safe steps).
        self.follow_ups: list[Event] = []
        # What is left of a request that takes more than a turn. Others get theirs in between.
        self.continuations: list[Continuation] = []

    def reply(self, request_id: int, response: Message | None) -> None:
        self.replies.append(Reply(request_id, response))

    def add(
        self, log: LogId, key: Message | None, value: Message | None, cause: Cause | None = None
    ) -> None:
        self.log = log
        self.records.append(CoordinatorRecord(key, value, cause))


class Event:
    """Something that happened; see the subclasses."""


class Continuation(Event):
    """The rest of a request. The engine handles it in the next turn, and the request's connection waits meanwhile."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


@final
class TimerFired(Event):
    def __init__(self, timer: Timer) -> None:
        self.timer = timer


@final
class Disconnected(Event):
    """A connection is gone: its parked requests are answered to nobody. Members live on until their timers."""

    def __init__(self, connection_id: int) -> None:
        self.connection_id = connection_id


@final
class Loaded(Event):
    """All logs were replayed; timers of what was found are armed and unfinished chains go on."""


@final
class TopicsDeleted(Event):
    """Topics were deleted, names by topic id: their committed offsets go next. With none, more of those before."""

    def __init__(self, topics: dict[bytes, str]) -> None:
        self.topics = topics


@final
class TopicsChanged(Event):
    """Topics of these names were created, deleted or given more partitions, and the registry says so already."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


@final
class JobDone(Event):
    """A job ended. `error` is None and `result` what `run` returned, or `error` says why there is no result."""

    def __init__(self, job: Job, result: object | None, error: str | None) -> None:
        self.job = job
        self.result = result
        self.error = error
