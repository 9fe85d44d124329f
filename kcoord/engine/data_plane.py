"""The APIs that read and write partition logs, and the partitions' directories."""

from __future__ import annotations

from typing import Final, cast, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import METADATA_TOPIC, Job, Now, Reply, Request, Timer
from kcoord.core.producers import ProducerPool
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.budget import TurnBudget
from kcoord.engine.delete_records import DeleteRecordsRoom
from kcoord.engine.fetch import FetchRoom
from kcoord.engine.leader_epochs import LeaderEpochsRoom
from kcoord.engine.list_offsets import ListOffsetsRoom, SearchJob
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.engine.produce import ProduceRoom
from kcoord.engine.produce_work import CheckJob
from kcoord.engine.session import OutputPool
from kcoord.engine.topic_follower import TopicFollower
from kcoord.log.directory import LogDirectory
from kcoord.log.journal import Journal
from kcoord.protocol import apis
from kcoord.protocol.delete_records import DeleteRecordsRequest
from kcoord.protocol.fetch import FetchRequest
from kcoord.protocol.list_offsets import ListOffsetsRequest
from kcoord.protocol.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kcoord.protocol.produce import ProduceRequest
from kcoord.wire.message import Message

DATA_PLANE_APIS: Final = frozenset(
    (apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.DELETE_RECORDS, apis.OFFSET_FOR_LEADER_EPOCH)
)


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
        self.list_offsets = ListOffsetsRoom(self.table, budget)
        self.delete_records = DeleteRecordsRoom(self.table, directory)
        self.leader_epochs = LeaderEpochsRoom(self.table)
        self.follower = TopicFollower(
            config, topics, directory, journal, self.table, self.fetch, self.producers
        )

    def handle(self, request: Request, now: Now) -> Message | None:
        """Answer a request, or park it (None): a fetch, a Produce whose records are checked in a thread, or what takes
        more than a turn."""
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

    def has_due(self) -> bool:
        """Whether a parked request can be answered, or goes on in a later turn."""
        return self.fetch.has_due() or self.list_offsets.has_due()

    def answer_next(self, now: Now) -> Reply | None:
        """The next answer of a parked request. None: it takes more turns. To be called when has_due()."""
        if self.fetch.has_due():
            return self.fetch.answer_next(now)
        return self.list_offsets.answer_next()

    def take_jobs(self) -> list[Job]:
        """Jobs that came up since this was last asked."""
        jobs = self.produce.take_jobs()
        if self.list_offsets.jobs:
            jobs = jobs + self.list_offsets.take_jobs()
        return jobs

    def job_done(self, job: Job, error: str | None) -> bool:
        """Whether the job is one of the data plane. Then its request goes on."""
        if isinstance(job, CheckJob):
            self.produce.job_done(job, error)
            return True
        if isinstance(job, SearchJob):
            self.list_offsets.job_done(job, error)
            return True
        return False

    def disconnected(self, connection_id: int) -> None:
        self.fetch.on_disconnect(connection_id)
        self.list_offsets.on_disconnect(connection_id)

    # --- topics ----------------------------------------------------------------------------------------------

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
        waiting = {removal.deleted.path for removal in self.follower.removals}
        for deleted in list(self.directory.deleted):
            if deleted.path not in waiting:
                self.directory.purge(deleted)
        self.directory.forget_missing()

    def note_append(self, partition: TopicPartition) -> None:
        self.table.note_append(partition)
