"""Records and texts that are kept beside a message end up where they would be if they were copied into it."""

from __future__ import annotations

from typing import final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.protocol import apis
from kcoord.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData, encode_fetch_response
from kcoord.protocol.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    encode_offset_fetch_response,
)
from kcoord.wire.file_range import FileRange, FileRanges
from kcoord.wire.primitives import (
    SPLICE_BYTES_MIN,
    SPLICE_TEXT_BYTES_MIN,
    STRING_BYTES_MAX,
    BytesWriter,
    EncodeError,
    Splices,
)

NAMES = {version: "" if version >= 13 else "topic" for version in range(4, 19)}
records = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.integers(SPLICE_BYTES_MIN - 1, SPLICE_BYTES_MIN + 1).map(lambda size: b"r" * size),
)


@given(st.sampled_from(sorted(NAMES)), st.lists(st.lists(records, max_size=4), max_size=3), st.binary(max_size=9))
def test_pieces_are_the_copied_message(version: int, topics: list[list[bytes | None]], before: bytes) -> None:
    message = FetchResponse()
    for values in topics:
        partitions = [PartitionData(i, 0, 7, 7, 0, records=value) for i, value in enumerate(values)]
        message.responses.append(FetchableTopicResponse(NAMES[version], partitions=partitions))
    copied = BytesWriter()
    copied.write(before)
    apis.encode_response(copied, apis.FETCH, message, version)
    spliced, splices = BytesWriter(), Splices()
    spliced.write(before)
    encode_fetch_response(spliced, message, version, splices)
    assert b"".join(pieces_of(splices, spliced)) == copied.getvalue()
    assert len(spliced) + splices.bytes == len(copied)
    assert len(splices.values) == sum(
        value is not None and len(value) >= SPLICE_BYTES_MIN for values in topics for value in values
    )


texts = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.integers(SPLICE_TEXT_BYTES_MIN - 1, SPLICE_TEXT_BYTES_MIN + 1).map(lambda size: "\u00e9" * size),
)


def pieces_of(splices: Splices, writer: BytesWriter) -> list[bytes]:
    return [piece for piece in splices.pieces(writer.getvalue()) if isinstance(piece, bytes)]


@given(st.integers(1, 10), st.lists(st.lists(texts, max_size=4), max_size=3))
def test_pieces_are_the_copied_texts(version: int, topics: list[list[str | None]]) -> None:
    message = OffsetFetchResponse()
    group = OffsetFetchResponseGroup("g")
    for values in topics:
        if version < 8:
            partitions = [OffsetFetchResponsePartition(i, 7, -1, value) for i, value in enumerate(values)]
            message.topics.append(OffsetFetchResponseTopic("t", partitions))
        else:
            others = [OffsetFetchResponsePartitions(i, 7, -1, value) for i, value in enumerate(values)]
            group.topics.append(OffsetFetchResponseTopics("t" if version < 10 else "", partitions=others))
    if version >= 8:
        message.groups.append(group)
    copied, spliced, splices = BytesWriter(), BytesWriter(), Splices()
    apis.encode_response(copied, apis.OFFSET_FETCH, message, version)
    encode_offset_fetch_response(spliced, message, version, splices)
    assert b"".join(pieces_of(splices, spliced)) == copied.getvalue()
    assert len(splices.values) == sum(
        value is not None and len(value) >= SPLICE_TEXT_BYTES_MIN for values in topics for value in values
    )


@final
class Memory:
    """A file for ranges."""

    fd = -1

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read_at(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]


@given(st.sampled_from([4, 11, 12, 17]), st.lists(st.booleans(), max_size=5), st.booleans())
def test_records_in_files_are_their_bytes(version: int, in_file: list[bool], takes_files: bool) -> None:
    """Whether the sender takes parts of files or not, the message is the same as with the records themselves."""
    content = bytes(range(256)) * 1000
    ranges = FileRanges()
    message, other = FetchResponse(), FetchResponse()
    for number, is_range in enumerate(in_file):
        one = FileRange(Memory(content), 1000 * number, 70_000 + number)
        records = one.read()
        value = ranges.add(one) if is_range else records
        assert ranges.size_of(value) == len(records)
        for response, has in ((message, value), (other, records)):
            partitions = [PartitionData(number, 0, 7, 7, 0, records=has)]
            response.responses.append(FetchableTopicResponse(NAMES.get(version, ""), partitions=partitions))
    expected, spliced, splices = BytesWriter(), BytesWriter(), Splices(ranges, takes_files)
    apis.encode_response(expected, apis.FETCH, other, version)
    encode_fetch_response(spliced, message, version, splices)
    pieces = splices.pieces(spliced.getvalue())
    assert [piece for piece in pieces if isinstance(piece, FileRange)] == (
        [one for one in splices.values if isinstance(one, FileRange)] if takes_files else []
    )
    assert sum(isinstance(one, FileRange) for one in splices.values) == (sum(in_file) if takes_files else 0)
    assert sum(len(piece) for piece in pieces) == len(spliced) + splices.bytes == len(expected)
    whole = [piece.read() if isinstance(piece, FileRange) else piece for piece in pieces]
    assert b"".join(whole) == expected.getvalue()


def test_a_token_is_valid_for_one_message() -> None:
    ranges = FileRanges()
    token = ranges.add(FileRange(Memory(b"12345"), 1, 3))
    assert Splices(ranges).range_of(token) is not None
    assert Splices().range_of(token) is None
    ranges.clear()
    assert Splices(ranges).range_of(token) is None
    assert ranges.size_of(token) == len(token)


def test_a_file_that_ends_too_soon_is_an_error() -> None:
    splices = Splices(FileRanges())
    with pytest.raises(OSError, match="the file ends 1 bytes before its records"):
        splices.add_range(0, FileRange(Memory(b"12345"), 3, 3))


@pytest.mark.parametrize("version", [5, 6])
def test_a_spliced_text_has_the_same_limit(version: int) -> None:
    for size in (STRING_BYTES_MAX, STRING_BYTES_MAX + 1):
        partition = OffsetFetchResponsePartition(0, 7, -1, "m" * size)
        message = OffsetFetchResponse(0, [OffsetFetchResponseTopic("t", [partition])])
        if size > STRING_BYTES_MAX:
            with pytest.raises(EncodeError, match="string of 32768 bytes"):
                encode_offset_fetch_response(BytesWriter(), message, version, Splices())
        else:
            encode_offset_fetch_response(BytesWriter(), message, version, Splices())


def test_what_is_cut_takes_its_records_along() -> None:
    splices = Splices()
    splices.add(10, b"first")
    splices.add(30, b"second")
    splices.add(40, b"third")
    splices.cut(20)
    assert (splices.positions, splices.values, splices.bytes) == ([10], [b"first"], 5)
