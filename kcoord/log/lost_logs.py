"""Finds lost logs: logs with durable records whose directories are missing. A data directory with one is refused.

The metadata log determines which durable marks still matter: the mark of a deleted topic does not. A lost metadata log
is always an error. Without it every topic would count as deleted, and the next start would remove their logs.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.log.cluster_image import ClusterImage, read_cluster_image
from kcoord.log.directory import DELETED_NAME
from kcoord.log.errors import LogDamaged
from kcoord.log.inspect import DataDirectory

METADATA_LOG: Final = ("__cluster_metadata", 0)


@final
class LostLog:
    """A lost log, and the offset up to which it was synced."""

    def __init__(self, topic: str, partition: int, mark: int) -> None:
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.mark = mark

    @property
    def reason(self) -> str:
        return f"its directory is missing, {self.mark} offsets were synced"

    def as_damage(self, root: str) -> LogDamaged:
        return LogDamaged(os.path.join(root, self.name), 0, 0, self.reason)

    @property
    def is_metadata(self) -> bool:
        return (self.topic, self.partition) == METADATA_LOG


def lost_logs(directory: DataDirectory) -> list[LostLog]:
    """The lost logs in order of their names; only the metadata log if it is among them.

    None are reported if the metadata log is damaged, because it may be incomplete. Raises OSError.
    """
    there = {(files.topic, files.partition) for files in directory.partitions}
    gone = [LostLog(*key, mark) for key, mark in sorted(directory.marks.items()) if mark and key not in there]
    for lost in gone:
        if lost.is_metadata:
            return [lost]
    if not gone:
        return []
    try:
        image = read_cluster_image(directory.root)
    except LogDamaged:
        return []
    if image is None:
        return []
    return [lost for lost in gone if is_missed(directory.root, image, lost)]


def is_missed(root: str, image: ClusterImage, lost: LostLog) -> bool:
    """Whether a log with a mark but no directory should exist according to the metadata. Raises OSError."""
    topic = image.by_name().get(lost.topic)
    if topic is None or lost.partition not in topic.leader_epochs:
        return False
    for name in os.listdir(root):
        # A directory renamed for deletion is restored if its topic still exists.
        match = DELETED_NAME.fullmatch(name)
        if match is not None and (match.group(1), int(match.group(2))) == (lost.topic, lost.partition):
            if bytes.fromhex(match.group(3)) == topic.topic_id:
                return False
    return True
