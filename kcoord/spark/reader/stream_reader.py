"""`spark.readStream.format("kcoord")`: follows the logs of running servers, and of stopped ones as they are copied.

An offset of the stream is, for each data directory, topic and partition, the next offset of the log. Spark cannot take
back what it has read, so a stream reads only what is durable, and ends before the oldest open transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kcoord.core.outcome import METADATA_TOPIC
from kcoord.log.directory import HIGH_WATERMARKS, RECOVERY_POINTS
from kcoord.spark.reader.batch_reader import TaskPartition
from kcoord.spark.reader.filters import asked_for
from kcoord.spark.reader.following import Follower
from kcoord.spark.reader.options import EARLIEST, ReadOptions
from kcoord.spark.reader.planner import Planner
from kcoord.spark.reader.roots import emptied_in, open_logs
from kcoord.spark.reader.segments import SegmentChanged
from kcoord.spark.reader.slices import INT64_MAX, LogPartition, Slice
from kcoord.spark.reader.tasks import ADVICE, CorruptLog, Task, emptied_reason, read_task

if TYPE_CHECKING:
    import pyarrow as pa

# Data directory to topic to partition to offset.
Offsets = dict[str, dict[str, dict[str, int]]]
Place = tuple[str, str, int]


class KcoordStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of one table."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        # Where a query with Trigger.AvailableNow ends.
        self.target: dict[Place, int] | None = None
        # The ends of the logs at the last `latestOffset`; Spark asks for them again to report them.
        self.seen: dict[Place, int] | None = None
        # The transactions found so far, and the listing for the last offsets.
        self._follower = Follower()
        self._listed: _Now | None = None

    def initialOffset(self) -> dict[str, Any]:
        found = self._now()
        from_latest = self.options.starting_offsets != EARLIEST
        found.planner.check_offsets(
            "startingOffsets", self.options.starting_by_partition, list(found.partitions.values())
        )
        offsets: dict[Place, int] = {}
        for place, end in found.ends().items():
            partition = found.partitions[place]
            is_given = (
                (partition.topic, partition.partition) in self.options.starting_by_partition
                or (partition.topic, partition.partition) in self.options.starting_ms_by_partition
                or self.options.starting_ms > -INT64_MAX
            )
            offsets[place] = end
            if is_given or not from_latest:
                start = found.planner.settled(partition, found.planner.start_of)
                offsets[place] = end if start is None else min(start, end)
        return nested(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._now().ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        now = self._listed = self._now()
        before = flat(start)
        known = self.target
        if known is None:
            known = self.seen = now.ends()
        ends = dict(known)
        begins: dict[Place, int] = {}
        for place, end in ends.items():
            partition = now.partitions.get(place)
            lowest = now.planner.log_start(partition) if partition is not None else 0
            begin = before.get(place, lowest)
            if partition is not None and begin > end and self.target is None:
                now.planner.lost(f"{_name(place)} ends at {end}, before offset {begin} where the stream is")
            begins[place] = begin
            ends[place] = max(end, begin)
        for place, begin in before.items():
            if place not in ends:
                # Removed, or not there yet: the stream keeps its position, and `partitions` reports the loss.
                begins[place] = ends[place] = begin
        if isinstance(limit, ReadMaxRows):
            ends = share(begins, ends, limit.max_rows)
        return nested(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return nested(self.seen if self.seen is not None else self._now().ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # The listing from which Spark got `end` has all of it.
        now, self._listed = self._listed or self._now(), None
        now.look()
        before = flat(start)
        tasks: list[InputPartition] = []
        for place, upto in flat(end).items():
            partition = now.partitions.get(place)
            begin = before.get(place)
            if begin is not None and begin >= upto:
                continue
            if partition is None:
                now.planner.lost(f"{_name(place)} is gone, with what was to be read below offset {upto}")
                continue
            log_start = now.planner.log_start(partition)
            if begin is None:
                begin = log_start
            if begin < log_start:
                now.planner.lost(f"{_name(place)} begins at {log_start}, offset {begin} is gone")
                begin = log_start
            names = now.metadata.get(partition.log) if self.options.table.NEEDS_TOPIC_NAMES else None
            for part in now.slices(place, begin, upto):
                tasks.append(TaskPartition(Task(part, names)))
            self._follower.forget(partition, begin)
        return tasks

    def _now(self) -> _Now:
        return _Now(self.options, self._follower)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition is not None:
            yield from read_task(partition.task, self.options)


class _Now:
    """The logs at one moment."""

    def __init__(self, options: ReadOptions, follower: Follower) -> None:
        self.options = options
        self.follower = follower
        filesystem, roots, everything = open_logs(options)
        self.filesystem = filesystem
        self.planner = Planner(filesystem, options, follower)
        wanted = asked_for(options)
        self.partitions: dict[Place, LogPartition] = {
            (one.log, one.topic, one.partition): one
            for one in everything
            if options.wants(one) and wanted.wants_partition(one)
        }
        emptied = emptied_in(self.planner, roots, everything)
        self._emptied = [one for one in emptied if wanted.wants_partition(one)]
        follower.keep({one.path for one in self.partitions.values()})
        self.metadata = {one.log: one for one in everything if one.topic == METADATA_TOPIC}
        self._ends: dict[Place, int] | None = None
        # Where logs end below their durable marks.
        self._cut: dict[Place, int] = {}

    def ends(self) -> dict[Place, int]:
        return dict(self.look())

    def look(self) -> dict[Place, int]:
        """The end of each partition for the stream, determined once. Raises CorruptLog, DataLoss and OSError."""
        if self._ends is None:
            if self._emptied and self.options.fails_on_corrupt:
                part = self._emptied[0]
                raise CorruptLog(f"{part.segment.path}: {emptied_reason(part)}. {ADVICE}")
            self._ends = {}
            for place, partition in self.partitions.items():
                end = self.planner.settled(partition, self._end_of)
                if end is not None:
                    self._ends[place] = end
            self.partitions = {place: self.partitions[place] for place in self._ends}
        return self._ends

    def slices(self, place: Place, begin: int, upto: int) -> list[Slice]:
        """Slices between two offsets; one that reaches the end of a truncated log reports the missing records."""
        asked_end = INT64_MAX if upto >= self._cut.get(place, INT64_MAX) else upto
        most = self.options.bytes_per_partition

        def planned(partition: LogPartition) -> list[Slice]:
            return self.planner.between(partition, begin, upto, most, asked_end)

        return self.planner.settled(self.partitions[place], planned) or []

    def _end_of(self, partition: LogPartition) -> int:
        """The highest offset for the stream: all below it is durable, and no transaction is open there.

        The durable end is a broker's high watermark, or else the mark of a running kcoord. Without any mark, and with
        `until=written`, it is the end of the files. Raises SegmentChanged.
        """
        transactions = self.follower.transactions_of(self.filesystem, partition)
        self._check_end(partition, transactions.end_offset)
        end = min(transactions.end_offset, self._mark(partition))
        if self.options.is_committed_only:
            end = min(end, transactions.stable_end)
        return max(end, partition.segments[0].base_offset)

    def _check_end(self, partition: LogPartition, end: int) -> None:
        """A log that ends below its durable mark has lost records: raises CorruptLog, or notes it.

        The mark may be newer than the listing, so the directory is listed once more before that counts.
        """
        place = (partition.log, partition.topic, partition.partition)
        synced_to = self.planner.synced_to(partition)
        if end >= synced_to:
            self._cut.pop(place, None)
            return
        reason = f"the log ends at {end}, but was synced up to {synced_to}"
        if place not in self._cut:
            self._cut[place] = end
            raise SegmentChanged(partition.path, reason)
        self._cut[place] = end
        if self.options.fails_on_corrupt:
            raise CorruptLog(f"{partition.path}: {reason}. {ADVICE}")

    def _mark(self, partition: LogPartition) -> int:
        if not self.options.is_durable_only:
            return INT64_MAX
        key = (partition.topic, partition.partition)
        for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
            marks = self.planner.checkpoint(partition, name)
            if marks:
                return marks.get(key, 0)
        # Without a file there is no mark; an empty one means that nothing is durable yet.
        return INT64_MAX if marks is None else 0


def nested(offsets: dict[Place, int]) -> Offsets:
    found: Offsets = {}
    for (log, topic, partition), offset in sorted(offsets.items()):
        found.setdefault(log, {}).setdefault(topic, {})[str(partition)] = offset
    return found


def flat(offsets: Offsets) -> dict[Place, int]:
    return {
        (log, topic, int(partition)): int(offset)
        for log, topics in offsets.items()
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def share(begins: dict[Place, int], ends: dict[Place, int], most: int) -> dict[Place, int]:
    """`most` offsets, shared in proportion to what each partition has; none that has something gets nothing."""
    waiting = {place: ends[place] - begins[place] for place in ends if ends[place] > begins[place]}
    total = sum(waiting.values())
    if total <= most:
        return ends
    shared = dict(begins)
    left = most
    for place, count in sorted(waiting.items(), key=lambda item: item[1]):
        part = min(count, max(1, most * count // total), left)
        shared[place] = begins[place] + part
        left -= part
    for place, _ in sorted(waiting.items(), key=lambda item: -item[1]):
        more = min(left, ends[place] - shared[place])
        shared[place] += more
        left -= more
    return shared


def _name(place: Place) -> str:
    log, topic, partition = place
    return f"{topic}-{partition} in {log}"
