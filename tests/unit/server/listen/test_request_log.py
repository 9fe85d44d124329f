"""The lines about connections and requests at level debug."""

from __future__ import annotations

import asyncio
import random

import pytest

from kcoord.core.outcome import DEBUG, Fact
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, encode_api_versions_request
from kcoord.protocol.produce import ProduceRequest, encode_produce_request
from kcoord.server.listen.request_log import PENDING_MAX, REQUEST_HEAD_BYTES, RequestLog
from kcoord.server.logs import LINES_PER_TURN_MAX, ServerLog
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter
from tests.unit.server.pump_rig import FRAME, EchoEngine, Rig, exchange, running, until_left


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def header(api_key: int, version: int, correlation_id: int, client_id: str, is_flexible: bool = False) -> bytes:
    head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big")
    return head + len(client_id).to_bytes(2, "big") + client_id.encode() + (b"\0" if is_flexible else b"")


def body(encode: object, message: Message, version: int) -> bytes:
    writer = BytesWriter()
    encode(writer, message, version)  # type: ignore[operator]
    return writer.getvalue()


def versions_request(correlation_id: int) -> bytes:
    data = body(encode_api_versions_request, ApiVersionsRequest("apache-kafka-java", "4.1.0"), 3)
    return framed(header(apis.API_VERSIONS, 3, correlation_id, "app", True) + data)


def produce_request(correlation_id: int, acks: int, version: int) -> bytes:
    data = body(encode_produce_request, ProduceRequest(None, acks, 1000, []), version)
    return framed(header(apis.PRODUCE, version, correlation_id, "app", version >= 9) + data)


def response(correlation_id: int, size: int = 100) -> bytes:
    return framed(correlation_id.to_bytes(4, "big") + bytes(size - 4))


def made() -> tuple[RequestLog, list[Fact]]:
    facts: list[Fact] = []
    return RequestLog(facts, 7, "10.0.0.1:5000", 1000), facts


def test_a_request_has_one_line_with_its_response() -> None:
    log, facts = made()
    request = versions_request(3)
    log.received(request, 1010)
    log.sent([response(3, 90)], 1035)
    log.ended("", 2000)
    assert {fact.level for fact in facts} == {DEBUG}
    assert [fact.event for fact in facts] == ["connection_opened", "client_software", "request", "connection_ended"]
    assert facts[1].fields["software"] == "apache-kafka-java 4.1.0"
    assert facts[2].fields == {
        "client": "10.0.0.1:5000", "connection": 7, "api": "ApiVersions", "version": 3, "correlation_id": 3,
        "client_id": "app", "request_bytes": len(request) - 4, "response_bytes": 90, "duration_ms": 25,
    }  # fmt: skip
    assert facts[3].fields == {
        "client": "10.0.0.1:5000", "connection": 7, "client_id": "app", "software": "apache-kafka-java 4.1.0",
        "requests": 1, "received_bytes": len(request), "sent_bytes": 94, "duration_ms": 1000,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_streams_may_be_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    large = framed(header(apis.FETCH, 4, 2, "app") + bytes(5 * REQUEST_HEAD_BYTES))
    stream = versions_request(1) + large + versions_request(3)
    answers = response(1) + response(2, 9000) + response(3)
    log, facts = made()
    for data, take in ((stream, log.received), (answers, lambda piece, now_ms: log.sent([piece], now_ms))):
        while data:
            size = rng.choice((1, 2, 3, 5, 700))
            take(data[:size], 1000)
            data = data[size:]
    lines = [fact.fields for fact in facts if fact.event == "request"]
    assert [(line["api"], line["correlation_id"], line["response_bytes"]) for line in lines] == [
        ("ApiVersions", 1, 100), ("Fetch", 2, 9000), ("ApiVersions", 3, 100)
    ]  # fmt: skip


@pytest.mark.parametrize("version", [3, 9])
def test_a_produce_without_acks_has_no_response(version: int) -> None:
    log, facts = made()
    log.received(produce_request(1, 0, version) + produce_request(2, -1, version), 1000)
    log.sent([response(2)], 1001)
    lines = [fact.fields for fact in facts if fact.event == "request"]
    assert [(line["correlation_id"], line.get("no_response")) for line in lines] == [(1, "acks=0"), (2, None)]


def test_requests_without_a_response_are_reported_at_the_end() -> None:
    log, facts = made()
    log.received(versions_request(1), 1000)
    log.ended("unknown api key 99", 1001)
    log.ended("", 1002)
    assert [fact.event for fact in facts[-2:]] == ["request", "connection_ended"]
    assert facts[-2].fields["no_response"] == "the connection ended"
    assert facts[-1].fields["reason"] == "unknown api key 99"


def test_garbage_is_ignored() -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 50,
        framed(b"short"),
        framed(b"\0\x12\0\3" + b"\xff" * 30),
        b"\0" * 9,
    ):
        log, facts = made()
        log.received(data, 1000)
        log.received(data, 1000)
        log.ended("", 1001)
        assert facts[-1].event == "connection_ended"


def test_memory_is_bounded() -> None:
    log, facts = made()
    log.received(versions_request(1) * (PENDING_MAX + 5), 1000)
    assert len([fact for fact in facts if fact.event == "request"]) == 5


async def _serve(log: ServerLog) -> Rig:
    engine = EchoEngine()
    async with running(engine) as rig:
        rig.pump.log = log
        streams = await rig.connect()
        await exchange(streams, FRAME * 300, 300 * len(FRAME))
        streams[1].close()
        await until_left(rig, 0)
        await asyncio.sleep(0.05)
    return rig


@pytest.mark.both_event_loops
async def test_a_server_at_debug_logs_what_connections_do() -> None:
    log = ServerLog(None, level="debug")
    await _serve(log)
    events = [line["event"] for line in log.recent]
    assert events[0] == "connection_opened" and "connection_ended" in events
    assert events.count("request") <= LINES_PER_TURN_MAX + 1
    (left_out,) = (line for line in log.recent if line["event"] == "lines_left_out")
    assert left_out["of"] == "request" and left_out["level"] == "debug"


async def test_a_server_at_info_does_not_look_at_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("kcoord.server.listen.request_log.RequestLog.__init__")
    rig = await _serve(ServerLog(None))
    assert rig.pump.debug_facts == [] and not rig.failures
    assert [line["event"] for line in rig.log.recent] == []
