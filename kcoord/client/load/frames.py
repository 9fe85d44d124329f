"""From messages to the parts that a lane sends, and from the answers of brokers to errors and patterns."""

from __future__ import annotations

from typing import Final, final

from kcoord.client.load.lane import Judge, Pattern
from kcoord.protocol import apis
from kcoord.protocol.errors import ERROR_NAMES
from kcoord.protocol.fetch import FetchResponse
from kcoord.protocol.offset_fetch import OffsetFetchResponse
from kcoord.protocol.produce import ProduceResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    Reader,
    write_i16_be,
    write_i32_be,
    write_nullable_string,
)

CLIENT_ID: Final = "kcoord-bench"
# Where the correlation id of a request begins, length prefix included, and where the rest of an answer begins.
ID_AT: Final = 8
ANSWER_AT: Final = 8
# A number that stands for the one that grows. No other bytes of a request are like that.
NUMBER: Final = 0x5A17_3CE9_42D8_6B0F
NUMBER_BYTES: Final = NUMBER.to_bytes(8, "big")
ALL_BITS: Final = 0x7FFF_FFFF_FFFF_FFFF

UNDECODABLE: Final = "UNDECODABLE_ANSWER"
NO_RECORDS: Final = "NO_RECORDS"
NO_OFFSET: Final = "NO_OFFSET"


def request_frame(api_key: int, version: int, request: Message) -> bytes:
    """A whole request frame with the correlation id 0."""
    writer = BytesWriter()
    write_i16_be(writer, api_key)
    write_i16_be(writer, version)
    write_i32_be(writer, 0)
    write_nullable_string(writer, CLIENT_ID)
    if apis.APIS[api_key].request_header_version(version) == 2:
        writer.append(0)
    apis.encode_request(writer, api_key, request, version)
    body = writer.getvalue()
    return len(body).to_bytes(4, "big") + body


def parts_of(frame: bytes) -> list[bytes]:
    """A request for a lane: what is before the correlation id, and the rest, cut where NUMBER stands."""
    return [frame[:ID_AT], *frame[ID_AT + 4 :].split(NUMBER_BYTES)]


def decode_answer(api_key: int, version: int, frame: bytes) -> Message:
    """The answer in a whole frame, length prefix included. Raises DecodeError."""
    reader = Reader(frame, ANSWER_AT)
    # The header of a flexible response ends with its tagged fields.
    if apis.APIS[api_key].response_header_version(version) == 1:
        reader.skip_tags()
    return apis.decode_response(api_key, reader, version)


def error_name(code: int) -> str:
    return ERROR_NAMES.get(code, f"error code {code}")


def error_codes(message: Message) -> list[int]:
    """All error codes of an answer, those of its parts included."""
    found: list[int] = []
    for name in message.FIELDS:
        value = getattr(message, name)
        if isinstance(value, int):
            if value and name.endswith("error_code"):
                found.append(value)
        elif isinstance(value, Message):
            found += error_codes(value)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Message):
                    found += error_codes(one)
    return found


def missing(message: Message) -> list[str]:
    """What an answer without an error code lacks: records, or offsets that are known to be committed."""
    if isinstance(message, FetchResponse):
        parts = [part for topic in message.responses for part in topic.partitions]
        return [] if parts and all(part.records for part in parts) else [NO_RECORDS]
    if isinstance(message, OffsetFetchResponse):
        topics = [topic for group in message.groups for topic in group.topics] or message.topics
        offsets = [part.committed_offset for topic in topics for part in topic.partitions]
        return [] if offsets and min(offsets) >= 0 else [NO_OFFSET]
    return []


@final
class AnswerJudge(Judge):
    """Judges the answers of one API in one version."""

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version

    def errors(self, frame: bytes) -> list[str]:
        """One name for each error code that is in the answer."""
        try:
            message = decode_answer(self.api_key, self.version, frame)
        except DecodeError:
            return [UNDECODABLE]
        codes = sorted(set(error_codes(message)))
        return [error_name(code) for code in codes] or missing(message)

    def pattern(self, frame: bytes) -> Pattern | None:
        message = decode_answer(self.api_key, self.version, frame)
        if isinstance(message, FetchResponse):
            records = message.responses[0].partitions[0].records or b""
            return Pattern(len(frame), [ANSWER_AT], [frame[ANSWER_AT : frame.index(records)]])
        if isinstance(message, ProduceResponse):
            return self._with_other_offsets(frame, message)
        return Pattern(len(frame), [ANSWER_AT], [frame[ANSWER_AT:]])

    def _with_other_offsets(self, frame: bytes, message: ProduceResponse) -> Pattern | None:
        """The pattern of an answer to Produce: it may have any base offset. None if it cannot be found."""
        writer = BytesWriter()
        apis.encode_response(writer, self.api_key, message, self.version)
        body = writer.getvalue()
        if not frame.endswith(body):
            return None
        for topic in message.responses:
            for part in topic.partition_responses:
                part.base_offset ^= ALL_BITS
        writer = BytesWriter()
        apis.encode_response(writer, self.api_key, message, self.version)
        other = frame[: -len(body)] + writer.getvalue()
        starts: list[int] = []
        wants: list[bytes] = []
        begin = ANSWER_AT
        for at in range(ANSWER_AT, len(frame) + 1):
            if at == len(frame) or frame[at] != other[at]:
                if at > begin:
                    starts.append(begin)
                    wants.append(frame[begin:at])
                begin = at + 1
        return Pattern(len(frame), starts, wants)
