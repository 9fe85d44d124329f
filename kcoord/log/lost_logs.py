"""Logs of which records were durable and whose directories are gone: opening the data directory refuses them.

The metadata log says which marks still matter: that of a topic that was deleted says nothing. A lost metadata log is
another matter. Without it every topic would count as deleted, and the next start would remove what is left of them.
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
    """One that is gone, and up to which offset it was synced."""

    def __init__(self, topic: str, partition: int, mark: int) -> None:
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.mark = mark

    @property
    def reason(self) -> str:
        return f"its directory is gone, {self.mark} offsets were synced"

    def as_damage(self, root: str) -> LogDamaged:
        return LogDamaged(os.path.join(root, self.name), 0, 0, self.reason)

    @property
    def is_metadata(self) -> bool:
        return (self.topic, self.partition) == METADATA_LOG


def lost_logs(directory: DataDirectory) -> list[LostLog]:
    """The logs that are gone, in order of their names; the metadata log alone where it is among them.

    None where the metadata log is damaged: what it says then is not all. Raises OSError.
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
    """Whether there should be a log that has a mark and no directory, by the cluster's metadata. Raises OSError."""
    topic = image.by_name().get(lost.topic)
    if topic is None or lost.partition not in topic.leader_epochs:
        return False
    for name in os.listdir(root):
        # What was renamed to be deleted comes back where its topic is still there.
        match = DELETED_NAME.fullmatch(name)
        if match is not None and (match.group(1), int(match.group(2))) == (lost.topic, lost.partition):
            if bytes.fromhex(match.group(3)) == topic.topic_id:
                return False
    return True
