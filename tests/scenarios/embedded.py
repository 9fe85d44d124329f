"""What members of the classic protocol tell each other inside JoinGroup and SyncGroup, as a script writes and reads it.

Partitions are written `t/0+t/1+u/0`. Printed: a subscription as its topics, then its version where that is not 0 and
what else it says; an assignment as its partitions and its version. Bytes that are neither stay bytes.
"""

from __future__ import annotations

from kcoord.protocol.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    decode_consumer_protocol_assignment,
    encode_consumer_protocol_assignment,
)
from kcoord.protocol.records.consumer_protocol_assignment import TopicPartition as AssignedTopic
from kcoord.protocol.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    decode_consumer_protocol_subscription,
    encode_consumer_protocol_subscription,
)
from kcoord.protocol.records.consumer_protocol_subscription import TopicPartition as OwnedTopic
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader, write_int16

VERSION_MAX = 3


def partitions(text: str) -> dict[str, list[int]]:
    """`t/0+t/1+u/0` by topic, in order of appearance."""
    by_topic: dict[str, list[int]] = {}
    for part in text.split("+"):
        name, _, index = part.rpartition("/")
        if name:
            by_topic.setdefault(name, []).append(int(index))
    return by_topic


def subscription(
    topics: list[str], version: int = 0, owned: str = "", generation: int = -1, rack: str | None = None
) -> bytes:
    owned_topics = [OwnedTopic(name, indexes) for name, indexes in partitions(owned).items()]
    message = ConsumerProtocolSubscription(topics, None, owned_topics, generation, rack)
    writer = BytesWriter()
    write_int16(writer, version)
    encode_consumer_protocol_subscription(writer, message, version)
    return writer.getvalue()


def assignment(text: str, version: int = VERSION_MAX, user_data: bytes | None = None) -> bytes:
    topics = [AssignedTopic(name, indexes) for name, indexes in partitions(text).items()]
    writer = BytesWriter()
    write_int16(writer, version)
    encode_consumer_protocol_assignment(writer, ConsumerProtocolAssignment(topics, user_data), version)
    return writer.getvalue()


def embedded_subscription(data: bytes) -> str | None:
    try:
        reader = Reader(data)
        version = reader.int16()
        if not 0 <= version <= VERSION_MAX:
            return None
        message = decode_consumer_protocol_subscription(reader, version)
    except DecodeError:
        return None
    if reader.end - reader.pos:
        return None
    parts = [",".join(message.topics)]
    if version:
        parts.append(f"v{version}")
    owned = [f"{t.topic}/{p}" for t in message.owned_partitions for p in t.partitions]
    if owned:
        parts.append("owned=" + "+".join(owned))
    if message.generation_id != -1:
        parts.append(f"generation={message.generation_id}")
    if message.rack_id is not None:
        parts.append(f"rack={message.rack_id}")
    if message.user_data is not None:
        parts.append(f"user_data={message.user_data.hex()}")
    return " ".join(parts)


def embedded_assignment(data: bytes) -> str | None:
    try:
        reader = Reader(data)
        version = reader.int16()
        if not 0 <= version <= VERSION_MAX:
            return None
        message = decode_consumer_protocol_assignment(reader, version)
    except DecodeError:
        return None
    if reader.end - reader.pos:
        return None
    assigned = [f"{t.topic}/{p}" for t in message.assigned_partitions for p in t.partitions]
    parts = ["+".join(assigned) or "nothing", f"v{version}"]
    if message.user_data is not None:
        parts.append(f"user_data={message.user_data.hex()}")
    return " ".join(parts)
