"""The APIs that read and write partition logs, and the partitions' directories."""

from __future__ import annotations

from typing import Final, cast, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import METADATA_TOPIC, WARNING, Fact, Now, Reply, Request, Timer
from kcoord.core.producers import NO_EPOCH, PartitionProducers, ProducerPool, decode_snapshot
from kcoord.core.topics import Topic, TopicRegistry
from kcoord.engine.batch_walk import BatchWalk
from kcoord.engine.budget import TurnBudget
from kcoord.engine.delete_records import DeleteRecordsRoom
from kcoord.engine.fetch import FetchRoom
from kcoord.engine.leader_epochs import LeaderEpochsRoom
from kcoord.engine.list_offsets import ListOffsetsRoom
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.engine.produce import ProduceRoom
from kcoord.engine.session import OutputPool
from kcoord.log.directory import DeletedLog, LogDirectory
from kcoord.log.journal import Journal
from kcoord.log.partition_log import LogConfig, PartitionLog
from kcoord.protocol import apis
from kcoord.protocol.delete_records import DeleteRecordsRequest
from kcoord.protocol.fetch import FetchRequest
from kcoord.protocol.list_offsets import ListOffsetsRequest
from kcoord.protocol.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kcoord.protocol.produce import ProduceRequest
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError, read_i32_be
from kcoord.wire.record_batch import BatchHeader, decode_records

DATA_PLANE_APIS: Final = frozenset(
    (apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.DELETE_RECORDS, apis.OFFSET_FOR_LEADER_EPOCH)
)
# A transaction marker's value, and what its batch may become if it is compressed.
MARKER_BYTES: Final = 6
MARKER_BYTES_MAX: Final = 4096
# How far before a producer snapshot batches are looked at for repeats: what clients may have had in flight.
REPEATS_BYTES: Final = 1024 * 1024


@final
class Removal:
    """A deleted log whose files go once the commit `seq` is durable."""

    def __init__(self, seq: int, deleted: DeletedLog) -> None:
        self.seq = seq
        self.deleted = deleted


@final
class DataPlane:
    def __init__(
        self,
        config: CoreConfig,
        topics: TopicRegistry,
        directory: LogDirectory,
        journal: Journal,
        session_seed: int,
        budget: TurnBudget,
        pool: OutputPool,
    ) -> None:
        self.config = config
        self.topics = topics
        self.directory = directory
        self.journal = journal
        self.table = PartitionTable(topics, config.decompressed_bytes_max)
        self.producers = ProducerPool(config.producers_max, config.producers_per_partition_max)
        self.produce = ProduceRoom(config, self.table, journal, budget)
        self.fetch = FetchRoom(config, self.table, session_seed, budget, pool)
        self.list_offsets = ListOffsetsRoom(self.table)
        self.delete_records = DeleteRecordsRoom(self.table, directory)
        self.leader_epochs = LeaderEpochsRoom(self.table)
        self.removals: list[Removal] = []

    def handle(self, request: Request, now: Now) -> Message | None:
        """Answer a request, or park it (None): a fetch, or a Produce whose records are checked in a thread."""
        key = request.api_key
        body = request.body
        if key == apis.PRODUCE:
            return self.produce.handle_produce(request, cast(ProduceRequest, body), now)
        if key == apis.FETCH:
            return self.fetch.handle_fetch(request, cast(FetchRequest, body), now)
        if key == apis.LIST_OFFSETS:
            return self.list_offsets.handle_list_offsets(request, cast(ListOffsetsRequest, body), now)
        if key == apis.DELETE_RECORDS:
            return self.delete_records.handle_delete_records(request, cast(DeleteRecordsRequest, body), now)
        epochs = cast(OffsetForLeaderEpochRequest, body)
        return self.leader_epochs.handle_offset_for_leader_epoch(request, epochs, now)

    def take_timers(self) -> list[Timer]:
        return self.fetch.take_timers()

    def on_timer(self, timer: Timer, now: Now) -> list[Reply]:
        return self.fetch.on_timer(timer, now)

    def is_waiting(self, timer: Timer) -> bool:
        """Whether a fetch still waits for this timer at most."""
        return timer.token in self.fetch.parked

    def disconnected(self, connection_id: int) -> None:
        self.fetch.on_disconnect(connection_id)

    # --- topics ----------------------------------------------------------------------------------------------

    def follow_topics(self, seq: int, now: Now) -> list[Reply]:
        """Make directories follow the records replayed so far; deleted ones go once commit `seq` is durable.

        Returns the answers of fetches that waited for what is gone.
        """
        topics = self.topics
        replies: list[Reply] = []
        if topics.deleted:
            deleted = topics.deleted
            topics.deleted = []
            for gone in deleted:
                served = self.table.topic(gone.topic)
                if served is not None and served.topic_id == gone.topic_id:
                    dropped = self.table.drop_topic(gone.topic)
                    replies.extend(self.fetch.on_topic_deleted(dropped, now))
                for partition in range(gone.partition_count):
                    log = self.directory.get(gone.topic, partition)
                    if log is not None and log.topic_id == gone.topic_id:
                        self.removals.append(Removal(seq, self.journal.delete_log(gone.topic, partition)))
        if topics.created:
            created = topics.created
            topics.created = []
            for made in created:
                self._serve(made.topic, made.topic_id, made.partition)
        if topics.reconfigured:
            changed = topics.reconfigured
            topics.reconfigured = []
            self._refresh(changed)
        return replies

    def _serve(self, name: str, topic_id: bytes, partition: int) -> None:
        topic = self.topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            return
        log = self.directory.get(name, partition)
        if log is not None and log.topic_id != topic_id:
            self.directory.check_identity(log)
            # Left over from a topic of that name that was deleted since.
            self.removals.append(Removal(0, self.journal.delete_log(name, partition)))
            log = None
        if log is None:
            log = self.directory.create_log(name, partition, topic_id)
        log.config = self._log_config(topic)
        producers = load_producers(self.config, log, self.table.facts, self.producers)
        log.producer_state = producers.snapshot
        self.table.add_partition(topic, log, producers)

    def _log_config(self, topic: Topic) -> LogConfig:
        """The topic's settings of its log files."""
        own = self.directory.config
        return LogConfig(
            int(self.topics.config_value(topic, "segment.bytes")),
            int(self.topics.config_value(topic, "segment.ms")),
            int(self.topics.config_value(topic, "index.interval.bytes")),
            own.tail_bytes_max,
            own.decompressed_bytes_max,
        )

    def _refresh(self, names: list[str]) -> None:
        """Settings changed: of these topics, or of all where a name is empty."""
        if "" in names:
            names = self.topics.sorted_names()
            self.table.refresh_all_settings()
        for name in names:
            topic = self.topics.get(name)
            if topic is None:
                continue
            self.table.refresh_settings(topic)
            for partition in range(topic.partition_count):
                log = self.directory.get(name, partition)
                if log is not None:
                    log.config = self._log_config(topic)

    def drop_leftovers(self) -> None:
        """At start-up, when directories follow the records: what no record speaks of goes.

        A directory may be ahead of the log by a topic whose creation did not become durable, and behind it by one
        whose files were not removed yet. What was replayed is durable: opening a log syncs its end.
        """
        for log in list(self.directory):
            if log.topic == METADATA_TOPIC:
                continue
            topic = self.topics.get(log.topic)
            if topic is None or topic.topic_id != log.topic_id or log.partition >= topic.partition_count:
                self.journal.delete_log(log.topic, log.partition)
        waiting = [removal.deleted for removal in self.removals]
        for deleted in list(self.directory.deleted):
            if deleted not in waiting:
                self.directory.purge(deleted)
        self.directory.forget_missing()

    def remove_deleted(self, durable_seq: int) -> None:
        """Remove the files of logs whose deletion is durable."""
        rest: list[Removal] = []
        for removal in self.removals:
            if removal.seq <= durable_seq:
                self.directory.purge(removal.deleted)
            else:
                rest.append(removal)
        self.removals = rest

    def note_append(self, partition: TopicPartition) -> None:
        self.table.note_append(partition)


def load_producers(
    config: CoreConfig, log: PartitionLog, facts: list[Fact], pool: ProducerPool | None = None
) -> PartitionProducers:
    """Producer state: the newest snapshot that can be read, and what the log has behind it.

    Snapshots that cannot be read are removed and said in `facts`: the log has everything.
    """
    producers = PartitionProducers(config.producer_id_expiration_ms, pool)
    start = log.log_start_offset
    for offset in log.snapshots.offsets():
        try:
            entries = decode_snapshot(log.snapshots.read(offset))
        except (DecodeError, OSError) as error:
            fields: dict[str, object] = {"log": log.name, "offset": offset, "reason": str(error)}
            facts.append(Fact(WARNING, "producer_snapshot_damaged", fields))
            log.snapshots.remove(offset)
            continue
        producers.restore(entries)
        if entries:
            # A snapshot has only each producer's last batch. A broker that starts from it takes a repeat of an
            # older one, as after a stop with several in flight, for an error.
            recent = PartitionProducers(config.producer_id_expiration_ms)
            _rebuild(recent, log, max(log.offset_before(offset, REPEATS_BYTES), start), offset)
            producers.add_repeats(recent)
        start = max(start, offset)
        break
    _rebuild(producers, log, start, log.end_offset)
    return producers


def _rebuild(producers: PartitionProducers, log: PartitionLog, start: int, end: int) -> None:
    for extent in log.extents(start, end):
        walk = BatchWalk(log.storage, extent)
        try:
            while True:
                header = walk.advance()
                if header is None or header.base_offset >= end:
                    break
                if header.last_offset >= start:
                    rebuild_batch(producers, walk.buf, header)
        finally:
            walk.close()


def rebuild_batch(producers: PartitionProducers, buf: bytes, header: BatchHeader) -> None:
    """Let `producers` know of a batch of the log; `header` was parsed from `buf`."""
    if header.producer_id < 0:
        return
    if not header.is_control:
        producers.rebuild(header)
        return
    epoch = NO_EPOCH
    try:
        records = decode_records(buf, header.pos, header, MARKER_BYTES_MAX)
    except (DecodeError, DecompressionError):
        records = []
    for record in records:
        if record.value is not None and len(record.value) >= MARKER_BYTES:
            # Version, coordinator epoch.
            epoch = int(read_i32_be(record.value, 2))
    producers.rebuild(header, epoch)
