"""DescribeLogDirs: the data directory, the size of each partition in it, and the space on its volume (KIP-827).

There is one directory, and it is online: the server ends when it cannot write there. No replica moves to another
directory, so no log is a future one (KIP-113), and no directory is cordoned (KIP-1066). The offset lag is that of a
replica of the leader itself, which Kafka answers with 0.
"""

from __future__ import annotations

from kcoord.engine.data_plane import DataPlane
from kcoord.engine.partitions import ServedTopic
from kcoord.protocol.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle_describe_log_dirs(plane: DataPlane, body: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Null topics ask for all partitions. Partitions that do not exist are left out, and topics without any.

    As on a broker, a partition that is asked for more than once is listed once. Sizes of the volume are -1 where logs
    are in memory.
    """
    result = DescribeLogDirsResult(
        log_dir=plane.volume.path,
        total_bytes=plane.volume.total_bytes,
        usable_bytes=plane.volume.usable_bytes,
    )
    if body.topics is None:
        for served in plane.table.by_name.values():
            _add_topic(result, served, list(range(len(served.partitions))))
        return DescribeLogDirsResponse(results=[result])
    # A dict and not a set: the answer is in the order of the request.
    wanted: dict[str, dict[int, None]] = {}
    for topic in body.topics:
        indexes = wanted.setdefault(topic.topic, {})
        for index in topic.partitions:
            indexes[index] = None
    for name, indexes in wanted.items():
        asked = plane.table.topic(name)
        if asked is not None:
            _add_topic(result, asked, list(indexes))
    return DescribeLogDirsResponse(results=[result])


def _add_topic(result: DescribeLogDirsResult, served: ServedTopic, indexes: list[int]) -> None:
    partitions: list[DescribeLogDirsPartition] = []
    for index in indexes:
        if 0 <= index < len(served.partitions):
            partitions.append(DescribeLogDirsPartition(index, served.partitions[index].log.size_bytes, 0, False))
    if partitions:
        result.topics.append(DescribeLogDirsTopic(served.name, partitions))
