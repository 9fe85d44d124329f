"""One committed offset, as it is kept in memory."""

from __future__ import annotations

from typing import final


@final
class StoredOffset:
    """One committed offset. There are many of these: they have plain numbers, and share strings and ids.

    `expire_timestamp_ms` is -1 unless the commit had a retention time (OffsetCommit up to v4, record value v1).
    `topic_id` is zero if the record had none. `record_offset` is the offset of the record in the log. `is_current`: it
    is the committed offset of its partition, so whoever remembers it need not look it up again.
    """

    __slots__ = (
        "committed_offset",
        "leader_epoch",
        "metadata",
        "commit_timestamp_ms",
        "expire_timestamp_ms",
        "topic_id",
        "record_offset",
        "is_current",
    )

    def __init__(
        self,
        committed_offset: int,
        leader_epoch: int,
        metadata: str,
        commit_timestamp_ms: int,
        expire_timestamp_ms: int,
        topic_id: bytes,
        record_offset: int,
    ) -> None:
        self.committed_offset = committed_offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_timestamp_ms = commit_timestamp_ms
        self.expire_timestamp_ms = expire_timestamp_ms
        self.topic_id = topic_id
        self.record_offset = record_offset
        self.is_current = False

    def replace(
        self,
        committed_offset: int,
        leader_epoch: int,
        metadata: str,
        commit_timestamp_ms: int,
        topic_id: bytes,
        record_offset: int,
    ) -> None:
        """Replay a later record for the same partition, one without an expiry time, in place."""
        self.committed_offset = committed_offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_timestamp_ms = commit_timestamp_ms
        self.expire_timestamp_ms = -1
        self.topic_id = topic_id
        self.record_offset = record_offset

    def retire(self) -> None:
        """Another offset is committed for the partition, or none. What is still remembered of this one is small."""
        self.is_current = False
        self.metadata = ""

    def digest_text(self) -> str:
        """All fields as text, for the digest of the hard state."""
        return (
            f"{self.committed_offset} {self.leader_epoch} {self.metadata!r} {self.commit_timestamp_ms} "
            f"{self.expire_timestamp_ms} {self.topic_id.hex()} {self.record_offset}"
        )
