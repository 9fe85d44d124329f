"""The small text files in the directory of a partition, in Kafka's formats."""

from __future__ import annotations

import base64

from kcoord.wire.primitives import ZERO_UUID


def encode_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """Kafka's leader epoch checkpoint: version, number of entries, then `epoch first-offset` lines."""
    lines = ["0", str(len(epochs))]
    lines += [f"{epoch} {start}" for epoch, start in epochs]
    return ("\n".join(lines) + "\n").encode()


def encode_partition_metadata(topic_id: bytes) -> bytes:
    text = base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")
    return f"version: 0\ntopic_id: {text}".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """The topic id; the zero id if the file has none (a crash may leave it empty)."""
    for line in data.decode("ascii", "replace").split("\n"):
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            try:
                topic_id = base64.urlsafe_b64decode(value.strip() + "==")
            except ValueError:
                return ZERO_UUID
            return topic_id if len(topic_id) == 16 else ZERO_UUID
    return ZERO_UUID
