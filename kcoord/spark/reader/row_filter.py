"""Which rows are wanted, as plain data: the driver makes it, Spark pickles it, readers and decoders ask it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kcoord.core.outcome import METADATA_TOPIC
from kcoord.spark.reader.slices import INT64_MAX, LogPartition, Slice

Values = frozenset[Any]


@dataclass(frozen=True)
class RowFilter:
    """Conditions on rows; None is no condition. Offsets and times (ms) of records have a lower bound, inclusive, and an
    upper one, exclusive.

    `has_producer` is whether a producer with an id wrote the batch.
    """

    logs: Values | None = None
    log_topics: Values | None = None
    log_partitions: Values | None = None
    groups: Values | None = None
    topics: Values | None = None
    partitions: Values | None = None
    transactional_ids: Values | None = None
    kinds: Values | None = None
    roles: Values | None = None
    record_types: Values | None = None
    record_names: Values | None = None
    has_producer: bool | None = None
    from_offset: int = 0
    to_offset: int = INT64_MAX
    from_ms: int = -INT64_MAX
    to_ms: int = INT64_MAX

    @property
    def narrows_commits(self) -> bool:
        """Whether `wants_commit` may return False."""
        return self.groups is not None or self.topics is not None or self.partitions is not None

    def wants_commit(self, group: str, topic: str, partition: int) -> bool:
        return (
            (self.groups is None or group in self.groups)
            and (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
        )

    @property
    def narrows_records(self) -> bool:
        """Whether `records` leaves out any record within the bounds of offset and time."""
        filters = (self.record_types, self.record_names, self.groups, self.transactional_ids)
        return filters != (None, None, None, None)

    def wants_partition(self, partition: LogPartition | Slice) -> bool:
        return (
            (self.logs is None or partition.log in self.logs)
            and (self.log_topics is None or partition.topic in self.log_topics)
            and (self.log_partitions is None or partition.partition in self.log_partitions)
        )

    def narrow(self, part: Slice) -> Slice:
        if part.topic == METADATA_TOPIC:
            # Its first records name the topics that later ones are about.
            return part
        return replace(
            part,
            from_offset=max(part.from_offset, self.from_offset),
            to_offset=min(part.to_offset, self.to_offset),
            from_ms=max(part.from_ms, self.from_ms),
            to_ms=min(part.to_ms, self.to_ms),
        )


EVERYTHING = RowFilter()
