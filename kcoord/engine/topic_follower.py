"""Partitions follow the records that create and delete topics.

The records of a request are one batch: after a crash all or none of its topics exist. Opening and deleting partitions
costs more than the records, so a turn handles a limited number of partitions, and other requests are served in between.
Answers about new topics wait for it (see Engine), so the client that created a topic can use it at once. Other clients
may see a topic in Metadata whose partitions are not served yet. Produce and Fetch then answer
UNKNOWN_TOPIC_OR_PARTITION, which clients retry, as with a broker whose metadata is older than its controller's.

1. Create: the partition gets a log in memory. Its files come with the first write, so this touches no disk.
2. Settings: changes for a topic, or for all topics, are applied to its partitions.
3. Delete: the topic is not served any more once the record is replayed. Its directories are renamed at once, and
removed only once the record is durable: a crash before that keeps the topic. Large ones are removed in a thread.

None of this has to survive a crash. At start-up all topics of the log are served before the first connection, and
directories without a topic are removed.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import TIMER_TOPICS, WARNING, Fact, Job, Now, Reply, Timer
from kcoord.core.producers import PartitionProducers, ProducerPool
from kcoord.core.topics.registry import Topic, TopicRegistry
from kcoord.engine.fetch import FetchHandler
from kcoord.engine.partitions import PartitionTable
from kcoord.engine.producer_state import load_producers
from kcoord.log.directory import DeletedLog, LogDirectory
from kcoord.log.journal import Journal
from kcoord.log.log_config import PREALLOCATED_BYTES, LogConfig
from kcoord.log.partition_log import PartitionLog

# The work of one turn. A unit is a partition that is opened, or deleted before it was ever written: about 20 µs.
TURN_STEPS: Final = 500
# The cost of renaming a directory, or of removing one with the few files of a small log, in these units.
RENAME_STEPS: Final = 4
REMOVE_STEPS: Final = 16
# Partitions that get new settings per unit.
PARTITIONS_PER_STEP: Final = 64
# Larger logs are removed in a thread: the file system takes long for them.
REMOVE_BYTES_MAX: Final = 16 << 20
# Nothing waits for the job, so a slow disk may take its time.
REMOVE_DEADLINE_MS: Final = 600_000


# Kinds of spans.
SERVE: Final = 1
END: Final = 2
SETTINGS: Final = 3


@final
class Removal:
    """A deleted log whose files are removed once commit `seq` is durable."""

    def __init__(self, seq: int, deleted: DeletedLog, size_bytes: int) -> None:
        self.seq = seq
        self.deleted = deleted
        self.size_bytes = size_bytes


@final
class RemoveLog(Job):
    """Removes the files of a large log that was deleted."""

    def __init__(self, directory: LogDirectory, deleted: DeletedLog) -> None:
        super().__init__(f"remove {deleted.path}", REMOVE_DEADLINE_MS)
        self.directory = directory
        self.path = deleted.path

    def run(self) -> object:
        self.directory.storage.remove_tree(self.path)
        return None

    def facts(self, error: str | None) -> list[Fact]:
        """The facts for the server's log. If something is left, the next start removes it."""
        if error is None:
            return []
        fields: dict[str, object] = {"path": self.path, "reason": error}
        return [Fact(WARNING, "deleted_log_not_removed", fields)]


@final
class Span:
    """Work from `next` up to `end`, which commit `seq` caused.

    SERVE and END: partitions of a topic. SETTINGS: topics with changed settings, by their index in `names`.
    """

    def __init__(self, kind: int, topic: str, topic_id: bytes, first: int, end: int, seq: int) -> None:
        self.kind = kind
        self.topic = topic
        self.topic_id = topic_id
        self.next = first
        self.end = end
        self.seq = seq
        self.names: list[str] = []


@final
class Held:
    """Answers that are sent once `mark` of the queued partitions are done. They wait for commit `wait_seq` as well."""

    def __init__(self, mark: int, replies: list[Reply], wait_seq: int) -> None:
        self.mark = mark
        self.replies = replies
        self.wait_seq = wait_seq


@final
class TopicFollower:
    def __init__(
        self,
        config: CoreConfig,
        topics: TopicRegistry,
        directory: LogDirectory,
        journal: Journal,
        table: PartitionTable,
        fetch: FetchHandler,
        producers: ProducerPool,
    ) -> None:
        self.config = config
        self.topics = topics
        self.directory = directory
        self.journal = journal
        self.table = table
        self.fetch = fetch
        self.producers = producers
        self.remove_bytes_max = REMOVE_BYTES_MAX
        self.removals: deque[Removal] = deque()
        self.jobs: list[Job] = []
        self.held: deque[Held] = deque()
        self.has_timer = False
        self._spans: deque[Span] = deque()
        # Topics with a queued SERVE span, and the number of such spans: later partitions must wait for them.
        self._queued: dict[bytes, int] = {}
        # How many partitions were ever queued, and how many of those are done.
        self.queued = 0
        self.done = 0
        # The units that are left in this turn.
        self.steps_left = TURN_STEPS

    # --- turns

    def begin_turn(self) -> None:
        self.steps_left = TURN_STEPS

    def has_work(self, durable_seq: int) -> bool:
        """Whether there is work for the next turn."""
        return bool(self._spans) or (bool(self.removals) and self.removals[0].seq <= durable_seq)

    def take_timer(self, durable_seq: int, now: Now) -> Timer | None:
        """A timer for the next turn, if there is work for it and no timer is armed."""
        if self.has_timer or not self.has_work(durable_seq):
            return None
        self.has_timer = True
        return Timer(TIMER_TOPICS, "", "", 0, now.mono_ms)

    def follow(self, seq: int) -> None:
        """Take over the changes by the records of commit `seq`, and apply as many as this turn allows.

        Raises OSError.
        """
        topics = self.topics
        if topics.deleted:
            deleted = topics.deleted
            topics.deleted = []
            for gone in deleted:
                served = self.table.topic(gone.topic)
                if served is not None and served.topic_id == gone.topic_id:
                    self.fetch.note_deleted(self.table.drop_topic(gone.topic))
                self._add(Span(END, gone.topic, gone.topic_id, 0, gone.partition_count, seq))
        if topics.created:
            created = topics.created
            topics.created = []
            for made in created:
                self._add(Span(SERVE, made.topic, made.topic_id, made.first, made.end, seq))
        if topics.reconfigured:
            changed = topics.reconfigured
            topics.reconfigured = []
            if "" in changed:
                # The defaults of the broker changed.
                changed = list(topics.topics)
            span = Span(SETTINGS, "", b"", 0, 0, seq)
            span.names = list(dict.fromkeys(changed))
            span.end = len(span.names)
            self._add(span)

    def work(self, durable_seq: int) -> None:
        """Continue with queued work, as much as this turn allows. Raises OSError."""
        while self._spans and self.steps_left > 0:
            span = self._spans[0]
            first = span.next
            self._run(span)
            self.done += span.next - first
            if span.next == span.end:
                self._spans.popleft()
                if span.kind == SERVE:
                    self._forget_queued(span.topic_id)
        while self.removals and self.steps_left > 0 and self.removals[0].seq <= durable_seq:
            self._remove(self.removals.popleft())

    def work_all(self) -> None:
        """Do all work at once, at start-up, when no client waits. Raises OSError."""
        while self._spans:
            self.begin_turn()
            self.work(-1)

    def hold(self, replies: list[Reply], wait_seq: int) -> None:
        """Keep answers until everything that is queued now is done."""
        self.held.append(Held(self.queued, replies, wait_seq))

    def take_held(self) -> list[Held]:
        """The answers that can be sent now."""
        ready: list[Held] = []
        while self.held and self.held[0].mark <= self.done:
            ready.append(self.held.popleft())
        return ready

    def take_jobs(self) -> list[Job]:
        jobs = self.jobs
        if jobs:
            self.jobs = []
        return jobs

    # --- steps

    def _add(self, span: Span) -> None:
        """Do what is possible at once, and queue the rest.

        Topics do not depend on each other, so a small one need not wait for a large one. The server's own topics are
        needed at once.
        """
        if span.kind != SERVE or span.topic_id not in self._queued:
            topic = self.topics.by_id(span.topic_id) if span.kind == SERVE else None
            if topic is not None and topic.is_internal:
                self.steps_left = max(self.steps_left, span.end - span.next)
            self._run(span)
        if span.next < span.end:
            self._spans.append(span)
            self.queued += span.end - span.next
            if span.kind == SERVE:
                self._queued[span.topic_id] = self._queued.get(span.topic_id, 0) + 1

    def _forget_queued(self, topic_id: bytes) -> None:
        count = self._queued[topic_id] - 1
        if count:
            self._queued[topic_id] = count
        else:
            del self._queued[topic_id]

    def _run(self, span: Span) -> None:
        if span.kind == SERVE:
            self._serve_span(span)
        elif span.kind == END:
            self._end(span)
        else:
            while span.next < span.end and self.steps_left > 0:
                self._refresh(span.names[span.next])
                span.next += 1

    def _serve_span(self, span: Span) -> None:
        topic = self.topics.get(span.topic)
        if topic is None or topic.topic_id != span.topic_id:
            # The topic was deleted meanwhile.
            span.next = span.end
            return
        config = self.log_config(topic)
        while span.next < span.end and self.steps_left > 0:
            self.steps_left -= 1
            self._serve(topic, span.next, config, span.seq)
            span.next += 1

    def _serve(self, topic: Topic, partition: int, config: LogConfig, seq: int) -> None:
        name = topic.name
        log = self.directory.get(name, partition)
        if log is not None and log.topic_id != topic.topic_id:
            self.directory.check_identity(log)
            # This log is left from a deleted topic of the same name.
            self._delete(log, seq)
            log = None
        if log is None:
            # The server's own logs are written from the start, so they need files.
            log = self.directory.create_log(name, partition, topic.topic_id, config, topic.is_internal)
        log.config = config
        if log.has_files:
            producers = load_producers(self.config, log, self.table.facts, self.producers)
        else:
            producers = PartitionProducers(self.config.producer_id_expiration_ms, self.producers)
        log.producer_state = producers.snapshot
        self.table.add_partition(topic, log, producers)

    def _end(self, span: Span) -> None:
        while span.next < span.end and self.steps_left > 0:
            self.steps_left -= 1
            log = self.directory.get(span.topic, span.next)
            if log is not None and log.topic_id == span.topic_id:
                self._delete(log, span.seq)
            span.next += 1

    def _delete(self, log: PartitionLog, seq: int) -> None:
        size_bytes = log.size_bytes
        deleted = self.journal.delete_log(log.topic, log.partition)
        if deleted is not None:
            self.steps_left -= RENAME_STEPS
            self.removals.append(Removal(seq, deleted, size_bytes))

    def _remove(self, removal: Removal) -> None:
        self.steps_left -= REMOVE_STEPS
        if removal.size_bytes <= self.remove_bytes_max:
            self.directory.purge(removal.deleted)
        elif self.directory.forget_deleted(removal.deleted):
            self.jobs.append(RemoveLog(self.directory, removal.deleted))

    # --- settings

    def log_config(self, topic: Topic) -> LogConfig:
        """The settings of the topic's log files."""
        own = self.directory.config
        return LogConfig(
            int(self.topics.config_value(topic, "segment.bytes")),
            int(self.topics.config_value(topic, "segment.ms")),
            int(self.topics.config_value(topic, "index.interval.bytes")),
            own.tail_bytes_max,
            own.decompressed_bytes_max,
            PREALLOCATED_BYTES if self.topics.config_value(topic, "preallocate").strip().lower() == "true" else 0,
        )

    def _refresh(self, name: str) -> None:
        """Apply the topic's changed settings."""
        self.steps_left -= 1
        topic = self.topics.get(name)
        if topic is None:
            return
        self.table.refresh_settings(topic)
        config = self.log_config(topic)
        self.steps_left -= topic.partition_count // PARTITIONS_PER_STEP
        for partition in range(topic.partition_count):
            log = self.directory.get(name, partition)
            if log is not None:
                log.config = config
