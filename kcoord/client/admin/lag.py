"""The lag of groups, in records and in time.

- The records before the start of a log are gone: they count for no lag, however old the committed offset is.
- A partition without a committed offset has no lag: None, which sums leave out. So has one whose topic is gone.
- The lag in time is the age of the first record that was not read; 0 without lag.
- Groups without members have a lag like all others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from kcoord.client.admin.admin import Admin
from kcoord.client.admin.results import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    GroupDescription,
    ListedOffset,
    MemberDescription,
)
from kcoord.client.errors import KafkaError
from kcoord.client.partition import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """`committed` is None without a committed offset, `start` and `end` if the partition does not exist."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset | None
    start: int | None
    end: int | None
    lag: int | None
    lag_ms: int | None
    member: MemberDescription | None


def records_behind(committed: int, start: int, end: int) -> int:
    """The records that are left to read."""
    return max(end - max(committed, start), 0)


def _number(result: ListedOffset | KafkaError | None) -> int | None:
    return result.offset if isinstance(result, ListedOffset) else None


async def group_lags(
    admin: Admin,
    groups: Iterable[GroupDescription],
    *,
    assigned_only: bool = False,
    read_committed: bool = False,
    with_time: bool = True,
) -> list[PartitionLag]:
    """The partitions with a committed offset or an owner, by group and partition.

    `assigned_only` leaves out the partitions without an owner. With `read_committed`, logs end at the last stable
    offset. Raises the error of a group whose offsets cannot be read.
    """
    described = {group.group_id: group for group in groups}
    committed = await admin.list_groups_offsets(dict.fromkeys(described))
    wanted: list[tuple[str, TopicPartition, CommittedOffset | None, MemberDescription | None]] = []
    for group_id, offsets in committed.items():
        if isinstance(offsets, KafkaError):
            raise offsets
        owners = {one: member for member in described[group_id].members for one in member.assignment}
        for partition in sorted(set(owners) if assigned_only else {*owners, *offsets}):
            found = offsets.get(partition)
            if isinstance(found, KafkaError):
                raise found
            wanted.append((group_id, partition, found, owners.get(partition)))
    partitions = {one[1] for one in wanted}
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    rows = []
    for group_id, partition, offset, member in wanted:
        start, end = _number(starts[partition]), _number(ends[partition])
        lag = None if offset is None or start is None or end is None else records_behind(offset.offset, start, end)
        lag_ms = 0 if lag == 0 else None
        rows.append(PartitionLag(group_id, partition, offset, start, end, lag, lag_ms, member))
    return await _with_times(admin, rows) if with_time else rows


async def _with_times(admin: Admin, rows: list[PartitionLag]) -> list[PartitionLag]:
    """Groups that stand at different offsets of one partition are asked for in turns."""
    waiting = [number for number, row in enumerate(rows) if row.lag]
    while waiting:
        asked: dict[TopicPartition, int] = {}
        now: list[int] = []
        for number in waiting:
            row = rows[number]
            position = _position(row)
            if asked.setdefault(row.partition, position) == position:
                now.append(number)
        times = await admin.first_timestamps(asked)
        now_ms = time.time_ns() // 1_000_000
        for number in now:
            row = rows[number]
            first = times[row.partition]
            if isinstance(first, int) and first >= 0:
                age_ms = max(now_ms - first, 0)
                rows[number] = PartitionLag(
                    row.group_id, row.partition, row.committed, row.start, row.end, row.lag, age_ms, row.member
                )
        done = set(now)
        waiting = [number for number in waiting if number not in done]
    return rows


def _position(row: PartitionLag) -> int:
    return max(row.committed.offset if row.committed else 0, row.start or 0)
