"""The messages that classic consumers embed in JoinGroup and SyncGroup, as far as a coordinator reads them.

Both messages begin with a version (int16). Later versions only append fields, so a message of an unknown later version
is read and written as the newest known one (KIP-429, KIP-792, KIP-881).
"""

from __future__ import annotations

from typing import Final

from kcoord.protocol.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    decode_consumer_protocol_assignment,
    encode_consumer_protocol_assignment,
)
from kcoord.protocol.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    decode_consumer_protocol_subscription,
)
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader, write_int16

VERSION_MAX: Final = 3


def version_of(data: bytes) -> int:
    """The version to answer with. Raises DecodeError."""
    return _version(Reader(data))


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Raises DecodeError."""
    reader = Reader(data)
    return decode_consumer_protocol_subscription(reader, _version(reader))


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Raises DecodeError."""
    reader = Reader(data)
    return decode_consumer_protocol_assignment(reader, _version(reader))


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int) -> bytes:
    writer = BytesWriter()
    write_int16(writer, version)
    encode_consumer_protocol_assignment(writer, assignment, version)
    return writer.getvalue()


def _version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise DecodeError(f"unsupported version {version} of a consumer's embedded protocol")
    return version if version <= VERSION_MAX else VERSION_MAX
