"""Fields of our own in released messages: their bytes, and that a message without them is as released."""

from __future__ import annotations

import pytest

from kcoord.protocol.init_producer_id import (
    AssignedTopic,
    GroupAssignment,
    InitProducerIdRequest,
    decode_init_producer_id_request,
    encode_init_producer_id_request,
)
from kcoord.wire.primitives import BytesWriter, EncodeError, Reader

# Transactional id, timeout, producer id and epoch.
RELEASED = "03 7878 0000ea60 ffffffffffffffff ffff "
# The tag 10,000 and its size; then: not null, group, generation, member, no instance, one topic with two partitions.
ASSIGNMENT = "904e 18 01 0267 00000007 026d 00 02 0274 03 00000000 00000002 00 00"


def encoded(request: InitProducerIdRequest, version: int) -> bytes:
    w = BytesWriter()
    encode_init_producer_id_request(w, request, version)
    return w.getvalue()


def test_the_group_assignment_of_a_producer() -> None:
    plain = InitProducerIdRequest("xx", 60_000)
    assert encoded(plain, 5) == bytes.fromhex(RELEASED + "00")
    assignment = GroupAssignment("g", 7, "m", None, [AssignedTopic("t", [0, 2])])
    request = InitProducerIdRequest("xx", 60_000, -1, -1, assignment)
    assert encoded(request, 5) == bytes.fromhex(RELEASED + "01" + ASSIGNMENT)
    for version in range(2, 6):
        assert decode_init_producer_id_request(Reader(encoded(request, version)), version) == request


@pytest.mark.parametrize("version", [0, 1])
def test_earlier_versions_have_no_tags(version: int) -> None:
    request = InitProducerIdRequest("xx", 60_000, -1, -1, GroupAssignment("g", 7, "m"))
    with pytest.raises(EncodeError):
        encoded(request, version)
