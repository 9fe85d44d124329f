"""What members of a classic group tell each other through the coordinator: subscriptions and assignments, in bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kcoord.client.consumer.assignors.base import MemberSubscription
from kcoord.client.errors import CorruptRecord
from kcoord.client.metadata import TopicPartition
from kcoord.client.partition import by_topic
from kcoord.protocol.records import consumer_protocol_assignment as assignment
from kcoord.protocol.records import consumer_protocol_subscription as subscription
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader, write_i16_be

# The versions that are written: owned partitions, their generation, and the rack.
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 3
# Newer versions are read as this one: they only add fields at the end.
VERSION_MAX: Final = 3


def encode_subscription(
    topics: Iterable[str],
    owned: Collection[TopicPartition],
    generation: int,
    rack: str | None,
    user_data: bytes | None,
) -> bytes:
    message = subscription.ConsumerProtocolSubscription(
        sorted(topics),
        user_data,
        [subscription.TopicPartition(name, numbers) for name, numbers in by_topic(owned).items()],
        generation,
        rack or None,
    )
    writer = BytesWriter()
    write_i16_be(writer, SUBSCRIPTION_VERSION)
    subscription.encode_consumer_protocol_subscription(writer, message, SUBSCRIPTION_VERSION)
    return writer.getvalue()


def decode_subscription(data: bytes, member_id: str, instance_id: str | None) -> MemberSubscription:
    """Raises CorruptRecord, which names the member."""
    try:
        reader = Reader(data)
        version = _version(reader)
        found = subscription.decode_consumer_protocol_subscription(reader, version)
    except DecodeError as error:
        raise CorruptRecord(f"the subscription of member {member_id}: {error}") from error
    owned = [TopicPartition(one.topic, number) for one in found.owned_partitions for number in one.partitions]
    return MemberSubscription(
        member_id,
        frozenset(found.topics),
        tuple(owned),
        found.generation_id,
        None if found.user_data is None else bytes(found.user_data),
        instance_id,
        found.rack_id,
    )


def encode_assignment(partitions: Collection[TopicPartition]) -> bytes:
    message = assignment.ConsumerProtocolAssignment(
        [assignment.TopicPartition(name, numbers) for name, numbers in by_topic(partitions).items()]
    )
    writer = BytesWriter()
    write_i16_be(writer, ASSIGNMENT_VERSION)
    assignment.encode_consumer_protocol_assignment(writer, message, ASSIGNMENT_VERSION)
    return writer.getvalue()


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Raises CorruptRecord."""
    try:
        reader = Reader(data)
        version = _version(reader)
        found = assignment.decode_consumer_protocol_assignment(reader, version)
    except DecodeError as error:
        raise CorruptRecord(f"the assignment of the group's leader: {error}") from error
    return [TopicPartition(one.topic, number) for one in found.assigned_partitions for number in one.partitions]


def _version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise DecodeError(f"version {version}")
    return min(version, VERSION_MAX)
