"""The APIs that read and write partition logs, and the partitions' directories.

Requests go to their handlers by `handle_data` (dispatch.py), which is generated from schemas/.
"""

from __future__ import annotations

from typing import final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import METADATA_TOPIC, Job, Now, Reply, Timer
from kcoord.core.producers import ProducerPool
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.budget import TurnBudget
from kcoord.engine.delete_records import DeleteRecordsHandler
from kcoord.engine.fetch import FetchHandler
from kcoord.engine.leader_epochs import LeaderEpochsHandler
from kcoord.engine.list_offsets import ListOffsetsHandler, SearchJob
from kcoord.engine.markers import MarkerWriter
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.engine.produce import ProduceHandler
from kcoord.engine.produce_work import CheckJob
from kcoord.engine.producer_states import DescribeProducersHandler
from kcoord.engine.session import OutputPool
from kcoord.engine.topic_follower import TopicFollower
from kcoord.engine.volume import LogVolume
from kcoord.engine.write_markers import WriteMarkersHandler
from kcoord.log.directory import LogDirectory
from kcoord.log.journal import Journal
from kcoord.wire.file_range import FileRanges


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
        ranges: FileRanges | None = None,
    ) -> None:
        self.topics = topics
        self.directory = directory
        self.journal = journal
        self.volume = LogVolume()
        self.table = PartitionTable(topics, config.decompressed_bytes_max)
        self.producers = ProducerPool(config.producers_max, config.producers_per_partition_max)
        self.produce = ProduceHandler(config, self.table, journal, budget)
        self.markers = MarkerWriter(self.table, journal)
        self.fetch = FetchHandler(config, self.table, session_seed, budget, pool, ranges)
        self.list_offsets = ListOffsetsHandler(self.table, budget)
        self.delete_records = DeleteRecordsHandler(self.table, directory)
        self.write_markers = WriteMarkersHandler(self.markers)
        self.producer_states = DescribeProducersHandler(self.table, budget)
        self.leader_epochs = LeaderEpochsHandler(self.table)
        self.follower = TopicFollower(config, topics, directory, journal, self.table, self.fetch, self.producers)

    def take_timers(self) -> list[Timer]:
        return self.fetch.take_timers()

    def on_timer(self, timer: Timer, now: Now) -> list[Reply]:
        return self.fetch.on_timer(timer, now)

    def is_waiting(self, timer: Timer) -> bool:
        """Whether a fetch still waits for this timer at most."""
        return timer.token in self.fetch.parked

    def has_due(self) -> bool:
        """Whether a parked request can be answered or continued."""
        return self.fetch.has_due() or self.list_offsets.has_due() or self.producer_states.has_due()

    def answer_next(self, now: Now) -> Reply | None:
        """The next answer of a parked request. None: it takes more turns. To be called when has_due()."""
        if self.fetch.has_due():
            return self.fetch.answer_next(now)
        if self.list_offsets.has_due():
            return self.list_offsets.answer_next(now)
        return self.producer_states.answer_next()

    def take_jobs(self) -> list[Job]:
        """Return the jobs created since the last call."""
        jobs = self.produce.take_jobs()
        if self.list_offsets.jobs:
            jobs = jobs + self.list_offsets.take_jobs()
        return jobs

    def job_done(self, job: Job, error: str | None, now: Now) -> bool:
        """Return whether the job belongs to the data plane. If so, its request continues."""
        if isinstance(job, CheckJob):
            self.produce.job_done(job, error)
            return True
        if isinstance(job, SearchJob):
            self.list_offsets.job_done(job, error, now)
            return True
        return False

    def disconnected(self, connection_id: int, now: Now) -> None:
        self.fetch.on_disconnect(connection_id)
        self.list_offsets.on_disconnect(connection_id, now)
        self.producer_states.on_disconnect(connection_id)

    # --- topics ----------------------------------------------------------------------------------------------

    def drop_leftovers(self) -> None:
        """Remove directories without records, at start-up.

        There may be directories of a topic whose creation did not become durable, and of a deleted topic whose files
        were not removed yet. The replayed records are durable, because opening a log syncs its end.
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
