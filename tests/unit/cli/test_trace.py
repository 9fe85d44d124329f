"""`kcoord trace` between a client and scripted brokers."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from click.testing import CliRunner

from kcoord.cli.main import main
from kcoord.cli.trace.frames import redirected
from kcoord.cli.trace.printer import COLUMNS, Printer
from kcoord.cli.trace.proxy import Proxy
from kcoord.client.admin.admin import Admin
from kcoord.client.errors import KafkaError
from kcoord.protocol import apis
from kcoord.protocol.errors import GROUP_ID_NOT_FOUND
from kcoord.protocol.find_coordinator import FindCoordinatorResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.list_groups import ListedGroup, ListGroupsResponse
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from kcoord.protocol.produce import ProduceRequest
from kcoord.server.exchange import Answer, Request
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter
from tests.unit.client.brokers import Brokers, two_brokers
from tests.unit.client.peers import answer_frame

LIMIT_S = 20.0


def printer(
    output: str = "json",
    *names: str,
    client_id: str = "",
    errors_only: bool = False,
    full: bool = False,
    limit: int = 0,
) -> Printer:
    clients = frozenset({client_id}) if client_id else frozenset[str]()
    return Printer(output, frozenset(names), clients, errors_only, False, limit)


@asynccontextmanager
async def traced(ports: list[int], shown: Printer) -> AsyncIterator[Proxy]:
    proxy = Proxy("127.0.0.1", 0, [("127.0.0.1", port) for port in ports], shown)
    await proxy.start()
    serving = asyncio.create_task(proxy.serve())
    try:
        yield proxy
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def list_groups(brokers: Brokers, shown: Printer, client_id: str = "test") -> Proxy:
    def groups(node_id: int, version: int, request: Message) -> Message:
        if node_id == 2:
            return ListGroupsResponse(0, GROUP_ID_NOT_FOUND)
        return ListGroupsResponse(groups=[ListedGroup("billing", "consumer", "Stable", "classic")])

    brokers.handlers[apis.LIST_GROUPS] = groups
    async with (
        traced([brokers.ports[1]], shown) as proxy,
        Admin(f"127.0.0.1:{proxy.port}", client_id=client_id) as admin,
    ):
        with suppress(Exception):
            await admin.list_groups()
    return proxy


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_clients_stay_whichever_broker_they_ask(capsys: pytest.CaptureFixture[str]) -> None:
    async with two_brokers() as brokers:
        proxy = await list_groups(brokers, printer())
        addresses = {f"127.0.0.1:{port}" for port in brokers.ports.values()}
        own = proxy.ports[("127.0.0.1", brokers.ports[2])]
    found = lines(capsys)
    asked = [one for one in found if one["api"] == "ListGroups"]
    assert {one["broker"] for one in asked} == addresses
    assert own not in brokers.ports.values()
    by_number = {(one["connection"], one["correlation_id"], one["direction"]): one for one in found}
    assert len(by_number) == len(found)
    for (connection, number, direction), one in by_number.items():
        other = by_number[connection, number, "answer" if direction == "request" else "request"]
        assert (one["api"], one["version"], one["client_id"]) == (other["api"], other["version"], "test")
        assert (one["latency_ms"] is None) == (direction == "request")
    answers = {one["broker"]: one for one in asked if one["direction"] == "answer"}
    first, second = (answers[f"127.0.0.1:{brokers.ports[node]}"] for node in (1, 2))
    assert first["fields"]["groups"][0]["group_id"] == "billing"
    assert (first["errors"], second["errors"]) == ([], ["GROUP_ID_NOT_FOUND"])
    metadata = next(one for one in found if one["api"] == "Metadata" and one["direction"] == "answer")
    assert {one["port"] for one in metadata["fields"]["brokers"]} == {proxy.port, own}


async def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    async with two_brokers() as brokers:
        await list_groups(brokers, printer("json", "ListGroups"))
        assert [one["api"] for one in lines(capsys)] == ["ListGroups"] * 4
        await list_groups(brokers, printer(client_id="other"))
        assert lines(capsys) == []
        await list_groups(brokers, printer(errors_only=True))
        pair = lines(capsys)
        assert [one["direction"] for one in pair] == ["request", "answer"]
        assert [one["errors"] for one in pair] == [[], ["GROUP_ID_NOT_FOUND"]]


async def test_table_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    async with two_brokers() as brokers:
        await list_groups(brokers, printer("table", "ListGroups"))
        text = capsys.readouterr().out
        assert "> ListGroups v5" in text
        assert "groups=[{group_id=billing protocol_type=consumer group_state=Stable group_type=classic}]" in text
        assert "GROUP_ID_NOT_FOUND  error=GROUP_ID_NOT_FOUND" in text
        await list_groups(brokers, printer("csv", "ListGroups"))
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert (tuple(head), len(rows)) == (COLUMNS, 4)
    assert [row[head.index("errors")] for row in rows].count("GROUP_ID_NOT_FOUND") == 1


async def test_the_limit_ends_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    async with two_brokers() as brokers:
        proxy = Proxy("127.0.0.1", 0, [("127.0.0.1", brokers.ports[1])], printer(limit=3))
        await proxy.start()
        serving = asyncio.create_task(proxy.serve())
        with suppress(KafkaError):
            async with Admin(f"127.0.0.1:{proxy.port}", default_api_timeout=1) as admin:
                await admin.list_topics()
        await asyncio.wait_for(serving, LIMIT_S)
    assert len(lines(capsys)) == 3


# --- single frames, to a server that records what it gets and answers as it is told


@asynccontextmanager
async def recorder(answers: list[bytes]) -> AsyncIterator[tuple[int, bytearray]]:
    """Sends the next of `answers` for whatever arrives."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                received.extend(data)
                if answers:
                    writer.write(answers.pop(0))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], received
    finally:
        server.close()


def request_frame(key: int, version: int, message: Message | None, correlation_id: int = 7) -> bytes:
    writer = BytesWriter()
    writer.write(key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big"))
    writer.write(b"\0\2me")
    if message is not None:
        if apis.APIS[key].request_header_version(version) == 2:
            writer.append(0)
        apis.encode_request(writer, key, message, version)
    data = writer.getvalue()
    return len(data).to_bytes(4, "big") + data


async def passed(sent: list[bytes], answers: list[bytes], shown: Printer) -> tuple[bytes, bytes]:
    """What arrives at the server, and what comes back."""
    expected = sum(map(len, answers))
    async with recorder(list(answers)) as (port, received), traced([port], shown) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        back = b""
        async with asyncio.timeout(LIMIT_S):
            for one in sent:
                before = len(received)
                writer.write(one)
                while len(received) < before + len(one):
                    await asyncio.sleep(0.001)
            while len(back) < expected:
                chunk = await reader.read(65536)
                assert chunk, f"{len(back)} of {expected} bytes"
                back += chunk
        writer.close()
        return bytes(received), back


HEARTBEAT = request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("billing", 3, "member"))
BEAT = answer_frame(apis.HEARTBEAT, 4, 7, HeartbeatResponse())
UNKNOWN = request_frame(9999, 3, None)
TOO_NEW = request_frame(apis.HEARTBEAT, 99, None)
NO_ANSWER = request_frame(apis.PRODUCE, 9, ProduceRequest(acks=0), 6)
OTHER = (9).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"other"


@pytest.mark.parametrize(
    ("sent", "answers", "problem"),
    [
        ([HEARTBEAT], [BEAT], None),
        ([UNKNOWN], [OTHER], "an API that kcoord does not know"),
        ([TOO_NEW], [OTHER], "kcoord knows the versions 0 to 4"),
        ([NO_ANSWER, HEARTBEAT], [b"", BEAT], None),
        ([HEARTBEAT], [OTHER], ""),
        ([HEARTBEAT[:-3] + b"\xff\xff\xff"], [BEAT], ""),
    ],
    ids=["known", "api", "version", "acks 0", "answer", "request"],
)
async def test_frames_pass_unchanged(
    capsys: pytest.CaptureFixture[str], sent: list[bytes], answers: list[bytes], problem: str | None
) -> None:
    assert await passed(sent, answers, printer()) == (b"".join(sent), b"".join(answers))
    last = lines(capsys)[-1]
    assert (last["direction"], last["client_id"], last["correlation_id"]) == ("answer", "me", 7)
    assert last["problem"] is None if problem is None else problem in last["problem"]
    assert (last["fields"] is None) == (problem is not None)


@pytest.mark.parametrize(
    ("sent", "answers", "message"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n", b"more"], [b"HTTP/1.1 400 no\r\n", b"rest"], "no Kafka requests"),
        ([b"\x16\x03\x01\x02\x00\x01"], [b"\x15\x03"], "no Kafka requests"),
        ([HEARTBEAT, HEARTBEAT], [answer_frame(apis.HEARTBEAT, 4, 8, HeartbeatResponse()), BEAT], "to no request"),
    ],
    ids=["http", "tls", "another answer"],
)
async def test_what_is_no_kafka_passes_unseen(
    capsys: pytest.CaptureFixture[str], sent: list[bytes], answers: list[bytes], message: str
) -> None:
    assert await passed(sent, answers, printer()) == (b"".join(sent), b"".join(answers))
    assert message in capsys.readouterr().err


def answered(key: int, version: int, request: Message, response: Message, tag: bytes = b"") -> Answer:
    data = answer_frame(key, version, 7, response)[4:]
    if tag:
        assert data[-1] == 0
        data = data[:-1] + b"\1" + tag
    return Answer(Request(request_frame(key, version, request)[4:], 0.0, 0), data, 0.1, 0)


async def elsewhere(host: str, port: int) -> tuple[str, int]:
    return "elsewhere", port + 1


METADATA = MetadataResponse(brokers=[MetadataResponseBroker(1, "b1", 9092), MetadataResponseBroker(2, "b2", 9093)])


@pytest.mark.parametrize("version", range(apis.APIS[apis.METADATA].max_version + 1))
async def test_addresses_are_replaced_in_every_version(version: int) -> None:
    answer = answered(apis.METADATA, version, MetadataRequest(), METADATA)
    data = await redirected(answer, elsewhere)
    again = Answer(answer.request, data, 0.1, 0)
    assert isinstance(again.message, MetadataResponse)
    assert [(one.host, one.port) for one in again.message.brokers] == [("elsewhere", 9093), ("elsewhere", 9094)]
    METADATA.brokers[0].host, METADATA.brokers[1].host = "b1", "b2"


async def test_an_answer_with_unknown_fields_stays_as_it_is() -> None:
    answer = answered(apis.METADATA, 13, MetadataRequest(), METADATA, tag=b"\x7f\1x")
    assert await redirected(answer, elsewhere) == answer.frame
    assert answer.problem == "not redirected, because it has fields that kcoord does not know"


async def test_no_coordinator_has_no_address() -> None:
    request = apis.codec_of(apis.FIND_COORDINATOR).request_type()
    answer = answered(apis.FIND_COORDINATOR, 3, request, FindCoordinatorResponse(error_code=15, node_id=-1, port=-1))
    assert await redirected(answer, elsewhere) == answer.frame
    assert answer.errors() == ["COORDINATOR_NOT_AVAILABLE"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--api", "joingrup"], "'joingrup' is not an API; did you mean 'JoinGroup'?"),
        (["--listen", "nowhere"], "is not an address"),
        (["-n", "-1"], "-1 is not in the range"),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["trace", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
