"""The data directory that an older kcoord wrote, with records of format 1 (tests/golden/make_format_1.py)."""

from __future__ import annotations

import tarfile
from pathlib import Path

from kcoord.log.reader import StoredBatch, read_batches
from kcoord.log.serde import decode_record
from kcoord.protocol.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)

ARCHIVE = Path(__file__).resolve().parents[1] / "golden" / "format_1.tar.gz"
GROUP = "shop"
# All but the last one, whose id was made by the server, speak the protocol of KIP-848.
STATIC, REGEX, CLASSIC = "static-member", "regex-member", "NurBP1UyI6Y4QUYNO2qh5g"
INSTANCE = "till-1"
CLASSIC_SESSION_MS = 45_000
# Where the log of `__consumer_offsets` ends, and its state checkpoint.
END = 16
CHECKPOINT_END = 9


def unpack(path: Path) -> Path:
    """The directory, in a new folder `path`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path, filter="data")
    return path


def classic_by_kafka(path: Path) -> dict[str, ClassicMemberMetadata | None]:
    """What a broker reads of the classic protocol, by member, from the logs of `__consumer_offsets`."""
    found: dict[str, ClassicMemberMetadata | None] = {}
    for folder in sorted(path.glob("__consumer_offsets-*")):
        for item in read_batches(str(folder)):
            assert isinstance(item, StoredBatch)
            for record in item.records(1 << 20):
                assert record.key is not None
                key, value = decode_record(record.key, record.value)
                if isinstance(key, ConsumerGroupMemberMetadataKey):
                    assert isinstance(value, ConsumerGroupMemberMetadataValue)
                    found[key.member_id] = value.classic_member_metadata
    return found
