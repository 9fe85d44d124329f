"""One connection of the load generator, without a socket."""

from __future__ import annotations

import pytest

from kcoord.client.load.frames import (
    NO_OFFSET,
    NO_RECORDS,
    NUMBER,
    UNDECODABLE,
    AnswerJudge,
    error_codes,
    parts_of,
    request_frame,
)
from kcoord.client.load.lane import Lane, WrongAnswer
from kcoord.protocol import apis, errors
from kcoord.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kcoord.protocol.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader


def answer(api_key: int, version: int, correlation_id: int, message: Message) -> bytes:
    writer = BytesWriter()
    writer.write(correlation_id.to_bytes(4, "big"))
    if apis.APIS[api_key].response_header_version(version) == 1:
        writer.append(0)
    apis.encode_response(writer, api_key, message, version)
    body = writer.getvalue()
    return len(body).to_bytes(4, "big") + body


def heartbeat_lane(in_flight: int) -> Lane:
    parts = parts_of(request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m")))
    return Lane(parts, 0, in_flight, AnswerJudge(apis.HEARTBEAT, 4))


def beat(correlation_id: int, code: int = 0) -> bytes:
    return answer(apis.HEARTBEAT, 4, correlation_id, HeartbeatResponse(0, code))


def requests(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def ids(data: bytes) -> list[int]:
    return [int.from_bytes(one[8:12], "big") for one in requests(data)]


def test_the_next_request_is_sent_for_each_answer() -> None:
    lane = heartbeat_lane(3)
    assert ids(lane.begin(1000)) == [0, 1, 2]
    assert ids(lane.received(beat(0) + beat(1), 3000)) == [3, 4]
    assert lane.waiting == 3
    assert lane.histogram.total == 2
    lane.received(beat(2) + beat(3), 5000)
    assert sum(count for _, count in lane.histogram.pairs()) == 4
    assert lane.errors == {}


def test_latency_is_from_sending_to_the_answer() -> None:
    lane = heartbeat_lane(2)
    lane.begin(0)
    lane.received(beat(0), 1_000_000)
    lane.received(beat(1), 5_000_000)
    lane.received(beat(2), 9_000_000)
    assert [lane.histogram.percentile(share) for share in (0.3, 0.6, 1.0)] == pytest.approx([1, 5, 8], rel=0.01)


def test_answers_in_pieces() -> None:
    lane = heartbeat_lane(4)
    lane.begin(0)
    data = b"".join(beat(number) for number in range(4))
    sent = b"".join(lane.received(data[at : at + 1], 1) for at in range(len(data)))
    assert ids(sent) == [4, 5, 6, 7]
    assert lane.histogram.total == 4


def test_a_lane_that_stops_sends_nothing_and_counts_the_rest() -> None:
    lane = heartbeat_lane(2)
    lane.begin(0)
    lane.stopping = True
    assert lane.received(beat(0) + beat(1), 1) == b""
    assert (lane.waiting, lane.histogram.total) == (0, 2)
    assert ids(lane.begin(2)) == [2, 3]


def test_errors_are_counted_by_name_and_are_no_latencies() -> None:
    lane = heartbeat_lane(1)
    lane.begin(0)
    lane.received(beat(0), 1)
    lane.received(beat(1, errors.NOT_COORDINATOR), 2)
    lane.received(beat(2, errors.NOT_COORDINATOR), 3)
    lane.received(beat(3), 4)
    assert lane.errors == {"NOT_COORDINATOR": 2}
    assert lane.histogram.total == 2


def test_a_damaged_answer_is_an_error() -> None:
    lane = heartbeat_lane(1)
    lane.begin(0)
    lane.received(b"\0\0\0\5" + bytes(4) + b"\x05", 1)
    assert lane.errors == {UNDECODABLE: 1}


@pytest.mark.parametrize("data", [beat(1), b"\xff" * 8, b"\0\0\0\2" + bytes(8)], ids=["id", "size", "short"])
def test_answers_to_nothing_end_the_connection(data: bytes) -> None:
    lane = heartbeat_lane(1)
    lane.begin(0)
    with pytest.raises(WrongAnswer):
        lane.received(data, 1)


def test_committed_offsets_grow() -> None:
    partitions = [OffsetCommitRequestPartition(number, NUMBER) for number in range(3)]
    request = OffsetCommitRequest("g", 1, "m", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
    lane = Lane(parts_of(request_frame(apis.OFFSET_COMMIT, 9, request)), 7, 2, AnswerJudge(apis.OFFSET_COMMIT, 9))
    found = []
    for frame in requests(lane.begin(0)):
        reader = Reader(frame, 8 + 4)
        reader.nullable_string()
        reader.skip_tags()
        decoded = apis.decode_request(apis.OFFSET_COMMIT, reader, 9)
        assert isinstance(decoded, OffsetCommitRequest)
        found.append([one.committed_offset for one in decoded.topics[0].partitions])
    assert found == [[7, 7, 7], [8, 8, 8]]


def test_one_refused_partition_of_a_commit_is_an_error() -> None:
    partitions = [OffsetCommitResponsePartition(0), OffsetCommitResponsePartition(1, errors.ILLEGAL_GENERATION)]
    response = OffsetCommitResponse(0, [OffsetCommitResponseTopic("t", partitions=partitions)])
    assert error_codes(response) == [errors.ILLEGAL_GENERATION]
    frame = answer(apis.OFFSET_COMMIT, 9, 0, response)
    assert AnswerJudge(apis.OFFSET_COMMIT, 9).errors(frame) == ["ILLEGAL_GENERATION"]


def produced(correlation_id: int, offset: int, code: int = 0) -> bytes:
    part = PartitionProduceResponse(0, code, offset)
    return answer(
        apis.PRODUCE, 11, correlation_id, ProduceResponse([TopicProduceResponse("t", partition_responses=[part])])
    )


def test_answers_to_produce_may_have_any_offset() -> None:
    judge = AnswerJudge(apis.PRODUCE, 11)
    pattern = judge.pattern(produced(0, 5))
    assert pattern is not None
    assert pattern.fits(produced(9, 123_456_789_012), 0)
    assert not pattern.fits(produced(9, 5, errors.NOT_LEADER_OR_FOLLOWER), 0)


def fetched(correlation_id: int, records: bytes, code: int = 0) -> bytes:
    part = PartitionData(0, code, 100, records=records)
    return answer(
        apis.FETCH, 12, correlation_id, FetchResponse(responses=[FetchableTopicResponse("t", partitions=[part])])
    )


def test_large_answers_are_checked_before_they_are_complete() -> None:
    lane = Lane([b"request", b"rest"], 0, 1, AnswerJudge(apis.FETCH, 12))
    lane.begin(0)
    records = bytes(range(256)) * 400
    lane.received(fetched(0, records), 1)
    data = fetched(1, records)
    for at in range(0, len(data) - 1000, 1000):
        assert lane.received(data[at : at + 1000], 2) == b""
        assert len(lane.pending) <= 1000
    assert lane.histogram.total == 1
    lane.received(data[len(data) // 1000 * 1000 - (1000 if len(data) % 1000 == 0 else 0) :], 2)
    assert lane.histogram.total == 2
    lane.received(fetched(2, b""), 3)
    lane.received(fetched(3, records, errors.OFFSET_OUT_OF_RANGE), 4)
    assert lane.errors == {NO_RECORDS: 1, "OFFSET_OUT_OF_RANGE": 1}


def test_an_offset_that_is_not_committed_is_an_error() -> None:
    parts = [OffsetFetchResponsePartitions(0, 5), OffsetFetchResponsePartitions(1, -1)]
    groups = [OffsetFetchResponseGroup("g", [OffsetFetchResponseTopics("t", partitions=parts)])]
    frame = answer(apis.OFFSET_FETCH, 8, 0, OffsetFetchResponse(groups=groups))
    assert AnswerJudge(apis.OFFSET_FETCH, 8).errors(frame) == [NO_OFFSET]
