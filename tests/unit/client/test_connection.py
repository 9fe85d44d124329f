"""One connection: versions, answers in order, deadlines, and peers that misbehave."""

from __future__ import annotations

import asyncio

import pytest

from kcoord.client.connection import Connection, ConnectionOptions
from kcoord.client.errors import ConnectionLost, InvalidConfiguration, RequestTimedOut, UnsupportedVersion
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.errors import UNSUPPORTED_VERSION
from kcoord.protocol.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from kcoord.testing.fixture import KcoordServer
from kcoord.wire.primitives import Reader
from tests.unit.client.peers import answer_frame, peer, versions_answer

SHORT = ConnectionOptions(request_timeout_s=0.3)
LONG = ConnectionOptions(request_timeout_s=20)
VERSION = 12


async def test_requests_of_one_connection_are_answered_in_order(kcoord: KcoordServer) -> None:
    connection = await Connection.open(kcoord.host, kcoord.port, LONG)
    version = connection.version(apis.METADATA)
    asks = [connection.ask(apis.METADATA, version, MetadataRequest(None), MetadataResponse) for _ in range(50)]
    answers = await asyncio.gather(*asks)
    assert [[broker.port for broker in answer.brokers] for answer in answers] == [[kcoord.port]] * 50
    assert connection.in_flight == 0
    await connection.close()


async def test_versions_are_the_newest_that_both_sides_have(kcoord: KcoordServer) -> None:
    connection = await Connection.open(kcoord.host, kcoord.port, LONG)
    assert connection.version(apis.METADATA) == apis.APIS[apis.METADATA].max_version
    assert connection.version(apis.METADATA, version_max=4) == 4
    assert connection.has(apis.METADATA, 4)
    assert not connection.has(apis.METADATA, 99)
    with pytest.raises(UnsupportedVersion, match="Metadata"):
        connection.version(apis.METADATA, version_min=99)
    await connection.close()


async def test_an_old_broker_answers_in_the_first_version() -> None:
    asked: list[int] = []

    async def old(key: int, version: int, correlation_id: int, body: Reader) -> bytes:
        asked.append(version)
        code = UNSUPPORTED_VERSION if version else 0
        answer = ApiVersionsResponse(code, [ApiVersion(apis.METADATA, 0, 5)])
        return answer_frame(key, 0, correlation_id, answer)

    async with peer(old) as (host, port):
        connection = await Connection.open(host, port, LONG)
        assert asked == [3, 0]
        assert connection.version(apis.METADATA) == 5
        await connection.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("x" * 40_000, "Metadata cannot be sent"), ("a\udcff", r"'a\\udcff' cannot be sent: it is not UTF-8")],
)
async def test_a_name_that_cannot_be_sent(kcoord: KcoordServer, name: str, reason: str) -> None:
    """The user's mistake is reported, and other requests are not affected."""
    connection = await Connection.open(kcoord.host, kcoord.port, LONG)
    version = connection.version(apis.METADATA)
    with pytest.raises(InvalidConfiguration, match=reason):
        await connection.ask(
            apis.METADATA, version, MetadataRequest([MetadataRequestTopic(name=name)]), MetadataResponse
        )
    await connection.ask(apis.METADATA, version, MetadataRequest(None), MetadataResponse)
    assert connection.in_flight == 0
    await connection.close()


@pytest.mark.parametrize("count", [2**31, 2**40])
async def test_a_number_that_cannot_be_sent(kcoord: KcoordServer, count: int) -> None:
    connection = await Connection.open(kcoord.host, kcoord.port, LONG)
    request = CreateTopicsRequest([CreatableTopic("t", count, 1)])
    with pytest.raises(InvalidConfiguration, match="CreateTopics cannot be sent"):
        await connection.ask(apis.CREATE_TOPICS, 5, request, CreateTopicsResponse)
    await connection.close()


@pytest.mark.parametrize("host", ["..", "a" * 70, "a\udcff", "a\0b"])
async def test_a_host_that_cannot_be_one(host: str) -> None:
    with pytest.raises(InvalidConfiguration, match="is not the name of a host"):
        await Connection.open(host, 9092, SHORT)


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await Connection.open("127.0.0.1", port, SHORT)


async def test_a_peer_that_says_nothing() -> None:
    async def silent(key: int, version: int, correlation_id: int, body: Reader) -> None:
        return None

    async with peer(silent) as (host, port):
        with pytest.raises(ConnectionLost, match="not connected in"):
            await Connection.open(host, port, SHORT)


async def test_a_request_without_an_answer_ends_the_connection_at_its_deadline() -> None:
    async def mute(key: int, version: int, correlation_id: int, body: Reader) -> bytes | None:
        return versions_answer(version, correlation_id) if key == apis.API_VERSIONS else None

    async with peer(mute) as (host, port):
        connection = await Connection.open(host, port, LONG)
        ask = connection.ask(apis.METADATA, VERSION, MetadataRequest(), MetadataResponse, timeout_s=0.2)
        other = connection.ask(apis.METADATA, VERSION, MetadataRequest(), MetadataResponse)
        first, second = await asyncio.gather(ask, other, return_exceptions=True)
        assert isinstance(first, RequestTimedOut)
        assert "Metadata" in str(first)
        assert isinstance(second, ConnectionLost)
        assert connection.is_closed
        with pytest.raises(ConnectionLost):
            await connection.ask(apis.METADATA, VERSION, MetadataRequest(), MetadataResponse)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\x7f\xff\xff\xff", "an answer of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "an answer of -1 bytes"),
        (b"\x00\x00\x00\x03abc", "an answer of 3 bytes"),
        (b"\x00\x00\x00\x08\x00\x00\x03\xe7\x00\x00\x00\x00", "belongs to no request"),
        (b"", "closed the connection"),
    ],
)
async def test_answers_that_are_none(answer: bytes, reason: str) -> None:
    async def odd(key: int, version: int, correlation_id: int, body: Reader) -> bytes:
        if key == apis.API_VERSIONS:
            return versions_answer(version, correlation_id)
        if not answer:
            raise ConnectionError
        return answer

    async with peer(odd) as (host, port):
        connection = await Connection.open(host, port, LONG)
        with pytest.raises(ConnectionLost, match=reason):
            await connection.ask(apis.METADATA, VERSION, MetadataRequest(), MetadataResponse)
        assert connection.is_closed


async def test_a_body_that_is_cut_short() -> None:
    async def cut(key: int, version: int, correlation_id: int, body: Reader) -> bytes:
        if key == apis.API_VERSIONS:
            return versions_answer(version, correlation_id)
        return b"\x00\x00\x00\x06" + correlation_id.to_bytes(4, "big") + b"\x00\x01"

    async with peer(cut) as (host, port):
        connection = await Connection.open(host, port, LONG)
        with pytest.raises(ConnectionLost, match="Metadata"):
            await connection.ask(apis.METADATA, VERSION, MetadataRequest(), MetadataResponse)


@pytest.mark.parametrize("size", [1, 3, 7, 1000, 70_000, 10_000_000])
@pytest.mark.parametrize("count", [60, 5000])
async def test_answers_arrive_in_pieces(size: int, count: int) -> None:
    """Small and large answers, in pieces of every size: none gets lost between one space and the next."""
    brokers = [MetadataResponseBroker(number, f"host-{number}", 9092) for number in range(count)]

    async with peer(lambda *args: _whole(brokers, *args)) as (host, port):
        connection = Connection("x", LONG)
        real = await Connection.open(host, port, LONG)
        connection._transport, connection.versions = real._transport, real.versions
        futures = [connection.submit(apis.METADATA, VERSION, MetadataRequest()) for _ in range(3)]
        data = b"".join(
            answer_frame(apis.METADATA, VERSION, number, MetadataResponse(0, brokers)) for number in (1, 2, 3)
        )
        sent = 0
        while sent < len(data):
            space = connection.get_buffer(-1)
            piece = data[sent : sent + min(size, len(space))]
            space[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            sent += len(piece)
        assert [future.result() for future in futures] == [MetadataResponse(0, brokers)] * 3
        await real.close()


async def _whole(
    brokers: list[MetadataResponseBroker], key: int, version: int, correlation_id: int, body: Reader
) -> bytes:
    if key == apis.API_VERSIONS:
        return versions_answer(version, correlation_id)
    return answer_frame(key, version, correlation_id, MetadataResponse(0, brokers))


async def test_closing_fails_what_waits(kcoord: KcoordServer) -> None:
    connection = await Connection.open(kcoord.host, kcoord.port, LONG)
    future = connection.submit(apis.API_VERSIONS, 0, ApiVersionsRequest())
    await connection.close()
    with pytest.raises(ConnectionLost, match="the client closed"):
        await future
