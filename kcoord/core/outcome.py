"""Input and output of the core.

A handler reads an event and the state, and returns an Outcome: records to store, replies to send, timers to arm, jobs
to run. It changes no hard state: only `replay` does, with those records, in the same way live and at start-up. Handlers
may change soft state (parked requests, session deadlines), since losing it at any moment must be harmless.

Times: `mono_ms` is a monotonic clock for timers and deadlines, `wall_ms` the Unix time for records. Both are arguments.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import mypyc_attr

from kcoord.core.cause import Cause
from kcoord.wire.message import Message

# Logs are named by (topic, partition). The coordinator and metadata logs are topics like any other.
METADATA_TOPIC: Final = "__cluster_metadata"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
# The topic with the events of groups. A broker has no such topic, and no server-side regex matches it.
GROUP_EVENTS_TOPIC: Final = "__group_events"
INTERNAL_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTION_TOPIC)

# Kinds of timers. Groups of both protocols share the session timer of a member.
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
TIMER_TRANSACTION: Final = 13
TIMER_TRANSACTIONAL_IDS: Final = 14
TIMER_HELD_COMMIT: Final = 15
CONSUMER_TIMERS: Final = (
    TIMER_CONSUMER_REBALANCE,
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_SYNC,
)

# A verdict beside the error codes: the request is held for a moment.
HELD: Final = -2

# Error messages repeat names that clients chose, and a string has at most 32,767 bytes: this many characters always
# fit.
MESSAGE_CHARS_MAX: Final = 8000

# Levels of facts for the server's log.
DEBUG: Final = 0
INFO: Final = 1
WARNING: Final = 2
ERROR: Final = 3

# Kinds of facts: the party at fault, if it is an error. docs/server-log.md lists the events of each.
BUG: Final = "bug"  # an internal error of kcoord
PEER: Final = "peer"  # a request that violates the protocol
LIMIT: Final = "limit"  # a valid request that exceeds a setting or a bound


@final
class LogId:
    """Names one partition log. Compare by topic and partition: the core creates one object per log."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"


@final
class Now:
    """The two clocks, read once per turn by the server or set by a test."""

    def __init__(self, mono_ms: int, wall_ms: int) -> None:
        self.mono_ms = mono_ms
        self.wall_ms = wall_ms


@final
class Request:
    """A decoded request for the core.

    `entropy` is 16 random bytes for APIs that create identifiers (JoinGroup, CreateTopics, Metadata with auto-creation,
    InitProducerId), and empty for all others. `host` and `port` are the advertised address of the listener that the
    request came from.
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
    """A timer to arm. Timers are never cancelled: when it fires, the handler checks the token and the deadline."""

    def __init__(self, kind: int, group_id: str, member_id: str, token: int, deadline_ms: int) -> None:
        self.kind = kind
        self.group_id = group_id
        self.member_id = member_id
        self.token = token
        self.deadline_ms = deadline_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """Slow work that must not block the event loop: `run` computes the result from the job's own fields alone.

    The core creates jobs and never runs them. The server runs them in threads, in any order, and returns a JobDone
    event for each. At most one job per `key` is in flight: a second one is discarded, so a handler of JobDone checks
    whether there is more to do. After `deadline_ms` (a duration that includes the time in the queue) JobDone comes with
    an error, and a later result of the job is discarded. Jobs do not survive a restart.
    """

    def __init__(self, key: str, deadline_ms: int) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        # Set when the result is not needed any more. Long jobs check it between their steps.
        self.is_abandoned = False
        # The kind of job, and the client that waits for it: kinds take turns, and so do clients. Connection 0 is no
        # client's.
        self.kind = ""
        self.client_host = ""
        self.connection_id = 0
        # Whether the job is still needed if the connection is closed before the job begins.
        self.outlives_connection = True

    def run(self) -> object:
        """Compute the result. Any exception becomes the error of JobDone. May be called in any thread."""
        raise TypeError(f"{type(self).__name__} does not implement run()")


@mypyc_attr(allow_interpreted_subclasses=True)
class StepJob(Job):
    """A job in steps of a millisecond at most.

    Compiled code holds the GIL until it returns, and the event loop would wait for it. The runner releases the GIL
    between steps, and stops when the job is abandoned.
    """

    def step(self) -> bool:
        """Run one step. Returns whether it was the last one."""
        raise TypeError(f"{type(self).__name__} does not implement step()")

    def run(self) -> object:
        while not self.step():
            if self.is_abandoned:
                break
        return None


@final
class Reply:
    """The answer to one request.

    An answer that shows state which may not be durable yet names the log and end offset that it waits for. An answer of
    an outcome with records waits for those records anyway.
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
    """A typed record for a coordinator log or the metadata log. A value of None is a tombstone.

    In the metadata log the key is None and the value is the record. `cause` becomes a header of the record.
    """

    def __init__(self, key: Message | None, value: Message | None, cause: Cause | None = None) -> None:
        self.key = key
        self.value = value
        self.cause = cause


@final
class Fact:
    """One line for the server's log: an event name in snake_case and its fields.

    `kind` is BUG, PEER or LIMIT where something was refused or failed, and empty where it just happened.
    """

    def __init__(self, level: int, event: str, fields: dict[str, object], kind: str = "") -> None:
        self.level = level
        self.kind = kind
        self.event = event
        self.fields = fields


@final
class Marker:
    """A transaction marker for one partition: the control batch that commits or aborts what a producer wrote there."""

    def __init__(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.is_commit = is_commit
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version


@final
class TransactionalProducer:
    """The producer of records that belong to a transaction: they get a batch of their own, with its id and epoch."""

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class MadeGroup:
    """A group that a handler made: a ClassicGroup or a ConsumerGroup, whose modules import this one."""


@final
class Consequences:
    """What an outcome has besides records and replies; see `Outcome`."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.jobs: list[Job] = []
        self.facts: list[Fact] = []
        self.follow_ups: list[Event] = []
        self.continuations: list[Continuation] = []


@final
class Outcome:
    """The result of one event. All `records` go to `log` as one atomic batch."""

    def __init__(self) -> None:
        self.log: LogId | None = None
        self.records: list[CoordinatorRecord] = []
        # The group that the records make, soft part included, where the handler has made it already. Whoever applies
        # the outcome passes it to the replay of each record, which puts this very object in place. A replay without
        # it, as at start-up, makes a group with the same hard state.
        self.made: MadeGroup | None = None
        # Whether the records may wait for the next commit: no answer waits for them, and a crash may lose them.
        self.may_wait = False
        # The transaction that the records belong to. None, and so replayed at once, for nearly all records.
        self.producer: TransactionalProducer | None = None
        # Markers to append after the records, in the same commit. Those of partitions that are gone are left out.
        self.markers: list[Marker] | None = None
        # Events that the engine handles once the commit with the records and markers is durable. A crash before that
        # must be harmless: at start-up the core goes on with what its records say.
        self.once_durable: list[Event] | None = None
        self.replies: list[Reply] = []
        # None until one of the properties below is read: most requests have none of them.
        self.consequences: Consequences | None = None

    def _more(self) -> Consequences:
        more = self.consequences
        if more is None:
            more = self.consequences = Consequences()
        return more

    @property
    def timers(self) -> list[Timer]:
        return self._more().timers

    @property
    def jobs(self) -> list[Job]:
        return self._more().jobs

    @property
    def facts(self) -> list[Fact]:
        return self._more().facts

    @property
    def follow_ups(self) -> list[Event]:
        """Events that the engine handles right after this outcome was applied. A crash between the two must be
        harmless.
        """
        return self._more().follow_ups

    @property
    def continuations(self) -> list[Continuation]:
        """The rest of requests that take more than one turn. Other requests are served in between."""
        return self._more().continuations

    def reply(self, request_id: int, response: Message | None) -> None:
        self.replies.append(Reply(request_id, response))

    def add(self, log: LogId, key: Message | None, value: Message | None, cause: Cause | None = None) -> None:
        self.log = log
        self.records.append(CoordinatorRecord(key, value, cause))


class Event:
    """An event that the core handles; see the subclasses."""


class Continuation(Event):
    """The rest of a request. The engine handles it in the next turn; the connection waits meanwhile."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


@final
class TimerFired(Event):
    def __init__(self, timer: Timer) -> None:
        self.timer = timer


@final
class Disconnected(Event):
    """A connection is closed: the answers to its parked requests are dropped. Members stay until their timers fire."""

    def __init__(self, connection_id: int) -> None:
        self.connection_id = connection_id


@final
class TopicsDeleted(Event):
    """Topics were deleted, which is durable (names by topic id): delete their committed offsets. If empty, continue
    with earlier ones. `is_repeated`: a restart repeats the deletion, which may have been complete.
    """

    def __init__(self, topics: dict[bytes, str], is_repeated: bool = False) -> None:
        self.topics = topics
        self.is_repeated = is_repeated


@final
class TopicsChanged(Event):
    """Topics of these names were created, deleted or extended. The registry is up to date already."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


@final
class JobDone(Event):
    """A job is done. Either `error` is None and `result` is what `run` returned, or `error` has the reason."""

    def __init__(self, job: Job, result: object | None, error: str | None) -> None:
        self.job = job
        self.result = result
        self.error = error
