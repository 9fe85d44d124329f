"""`kcoord transactions` against two brokers that answer what a test wants: hanging transactions, old versions."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsResponse
from kcoord.protocol.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kcoord.protocol.describe_transactions import DescribeTransactionsResponse, TopicData
from kcoord.protocol.describe_transactions import TransactionState as Described
from kcoord.protocol.errors import COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, TRANSACTIONAL_ID_NOT_FOUND
from kcoord.protocol.find_coordinator import Coordinator, FindCoordinatorResponse
from kcoord.protocol.list_transactions import ListTransactionsResponse
from kcoord.protocol.list_transactions import TransactionState as Listed
from kcoord.protocol.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcoord.protocol.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader, write_i32_be

Answer = Callable[[Any, int], Message]
USED = (
    apis.METADATA, apis.FIND_COORDINATOR, apis.API_VERSIONS, apis.WRITE_TXN_MARKERS, apis.DESCRIBE_PRODUCERS,
    apis.DESCRIBE_TRANSACTIONS, apis.LIST_TRANSACTIONS,
)  # fmt: skip


class Broker:
    """Answers each request with what `answers` has for its API."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {apis.API_VERSIONS: lambda _body, _version: self.versions()}
        self.highest = {key: apis.APIS[key].max_version for key in USED}
        self.seen: list[tuple[int, int, Any]] = []
        # How long each byte of an answer takes.
        self.pause_s = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(0, [ApiVersion(key, 0, most) for key, most in self.highest.items()])

    def asked(self, api_key: int) -> list[Any]:
        return [body for key, _, body in self.seen if key == api_key]

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                one, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()
        except OSError:
            return

    def _serve(self, one: socket.socket) -> None:
        with suppress(OSError), one, one.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(head, "big"))
                key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
                client_id_bytes = int.from_bytes(frame[8:10], "big")
                reader = Reader(frame, 10 + client_id_bytes)
                if apis.APIS[key].request_header_version(version) == 2:
                    reader.skip_tags()
                body = apis.decode_request(key, reader, version)
                self.seen.append((key, version, body))
                writer = BytesWriter()
                write_i32_be(writer, int.from_bytes(frame[4:8], "big"))
                content = BytesWriter()
                apis.encode_response(content, key, self.answers[key](body, version), version)
                tags = b"\0" if apis.APIS[key].response_header_version(version) == 1 else b""
                answer = writer.getvalue() + tags + content.getvalue()
                self._send(one, len(answer).to_bytes(4, "big") + answer)

    def _send(self, one: socket.socket, data: bytes) -> None:
        if not self.pause_s:
            one.sendall(data)
            return
        for i in range(len(data)):
            one.sendall(data[i : i + 1])
            time.sleep(self.pause_s)


class Two:
    """Two brokers: the second one leads `t-0`, where `producers` have transactions open, and coordinates `known`."""

    def __init__(self) -> None:
        self.first, self.second = Broker(), Broker()
        self.partitions_of_known = [0]
        self.producers = [self.producer(7, 3, 100), self.producer(8, 1, 50), self.producer(9, 0, -1)]
        ids = [[Listed("other", 1, "Empty")], [Listed("known", 7, "Ongoing")]]
        for broker, listed in zip((self.first, self.second), ids, strict=True):
            answers = broker.answers
            answers[apis.METADATA] = lambda body, _version: self.metadata(body)
            answers[apis.FIND_COORDINATOR] = lambda body, version: self.coordinator(body, version)
            answers[apis.LIST_TRANSACTIONS] = lambda body, _version, listed=listed: self.listed(body, listed)  # type: ignore[misc]
        answers = self.second.answers
        answers[apis.DESCRIBE_PRODUCERS] = lambda _body, _version: DescribeProducersResponse(
            0, [TopicResponse("t", [PartitionResponse(0, 0, None, self.producers)])]
        )
        answers[apis.DESCRIBE_TRANSACTIONS] = lambda body, _version: self.described(body)
        answers[apis.WRITE_TXN_MARKERS] = lambda body, _version: WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    body.markers[0].producer_id,
                    [WritableTxnMarkerTopicResult("t", [WritableTxnMarkerPartitionResult(0, 0)])],
                )
            ]
        )

    def producer(self, producer_id: int, epoch: int, start: int) -> ProducerState:
        return ProducerState(producer_id, epoch, 5, 1_760_000_000_000, -1, start)

    def metadata(self, body: Any) -> MetadataResponse:
        ports = (self.first.port, self.second.port)
        brokers = [MetadataResponseBroker(i + 1, "127.0.0.1", port) for i, port in enumerate(ports)]
        topic = MetadataResponseTopic(0, "t", partitions=[MetadataResponsePartition(0, 0, 2)])
        return MetadataResponse(0, brokers, topics=[topic] if body.topics is None or body.topics else [])

    def coordinator(self, body: Any, version: int) -> FindCoordinatorResponse:
        assert body.key_type == 1
        if version < 4:
            return FindCoordinatorResponse(0, 0, None, 2, "127.0.0.1", self.second.port)
        found = [Coordinator(key, 2, "127.0.0.1", self.second.port) for key in body.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)

    def listed(self, body: Any, listed: list[Listed]) -> ListTransactionsResponse:
        wanted = body.producer_id_filters
        states = [one for one in listed if not wanted or one.producer_id in wanted]
        return ListTransactionsResponse(transaction_states=states)

    def described(self, body: Any) -> DescribeTransactionsResponse:
        (transactional_id,) = body.transactional_ids
        if transactional_id != "known":
            state = Described(TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
        else:
            topics = [TopicData("t", self.partitions_of_known)]
            state = Described(0, "known", "Ongoing", 1000, 1_760_000_000_000, 7, 3, topics)
        return DescribeTransactionsResponse(0, [state])


@contextmanager
def running() -> Iterator[Two]:
    two = Two()
    try:
        yield two
    finally:
        two.first.close()
        two.second.close()


@pytest.fixture
def two() -> Iterator[Two]:
    with running() as two:
        yield two


def run(two: Two, command: str, *arguments: str) -> Result:
    whole = ["transactions", command, "-b", f"127.0.0.1:{two.first.port}", *arguments]
    return CliRunner().invoke(main, whole, catch_exceptions=False)


def run_json(two: Two, command: str, *arguments: str, code: int = 0) -> Any:
    result = run(two, command, *arguments, "-o", "json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_list_asks_every_broker(two: Two) -> None:
    rows = run_json(two, "list")
    assert [(row["transactional_id"], row["coordinator"]) for row in rows] == [("known", 2), ("other", 1)]


def test_hanging_is_what_no_coordinator_knows(two: Two) -> None:
    rows = run_json(two, "list", "--hanging", code=1)
    assert [(row["producer_id"], row["start_offset"], row["transactional_id"]) for row in rows] == [(8, 50, None)]
    two.partitions_of_known = [1]
    rows = run_json(two, "list", "--hanging", code=1)
    assert [(row["producer_id"], row["transactional_id"]) for row in rows] == [(8, None), (7, "known")]
    two.producers = []
    assert run_json(two, "list", "--hanging") == []


def test_a_young_transaction_is_not_hanging(two: Two) -> None:
    two.producers[1].last_timestamp = time.time_ns() // 1_000_000
    assert run_json(two, "list", "--hanging") == []
    assert len(run_json(two, "list", "--hanging", "--max-duration", "0", code=1)) == 1


@pytest.mark.parametrize("which", [("--start-offset", "50"), ("--producer-id", "8", "--producer-epoch", "1")])
def test_abort_writes_a_marker_at_the_leader(two: Two, which: tuple[str, ...]) -> None:
    result = run(two, "abort", "--topic", "t", "--partition", "0", *which)
    assert result.exit_code == 0, result.output
    (body,) = two.second.asked(apis.WRITE_TXN_MARKERS)
    (marker,) = body.markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (8, 1, False)
    assert (marker.coordinator_epoch, marker.topics[0].partition_indexes) == (0, [0])
    assert not two.first.asked(apis.WRITE_TXN_MARKERS)


def test_abort_of_a_known_transaction_needs_force(two: Two) -> None:
    where = ("--topic", "t", "--partition", "0", "--start-offset", "100")
    refused = run(two, "abort", *where)
    assert refused.exit_code == 3 and "--force" in refused.output
    assert run(two, "abort", *where, "--force").exit_code == 0


def test_old_brokers_are_asked_in_old_versions(two: Two) -> None:
    for broker in (two.first, two.second):
        broker.highest.update({apis.LIST_TRANSACTIONS: 0, apis.FIND_COORDINATOR: 3, apis.METADATA: 8})
    assert run_json(two, "describe", "-i", "known")["coordinator"] == 2
    assert {version for key, version, _ in two.first.seen if key == apis.FIND_COORDINATOR} == {3}
    result = run(two, "list", "--pattern", "k.*")
    assert result.exit_code == 3 and "broker 1 is too old for --pattern" in result.output
    for broker in (two.first, two.second):
        broker.highest.pop(apis.LIST_TRANSACTIONS)
    result = run(two, "list")
    assert result.exit_code == 3 and "does not support ListTransactions" in result.output


@pytest.mark.parametrize("code", [COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR])
def test_a_coordinator_that_moves_is_asked_again(two: Two, code: int) -> None:
    answers = two.second.answers
    real = answers[apis.DESCRIBE_TRANSACTIONS]
    left = [DescribeTransactionsResponse(0, [Described(code, "known")]) for _ in range(2)]
    answers[apis.DESCRIBE_TRANSACTIONS] = lambda body, version: left.pop() if left else real(body, version)
    assert run_json(two, "describe", "-i", "known")["state"] == "Ongoing"
    answers[apis.DESCRIBE_TRANSACTIONS] = lambda _body, _version: DescribeTransactionsResponse(
        0, [Described(code, "known")]
    )
    began = time.monotonic()
    result = run(two, "describe", "-i", "known", "--timeout", "0.5")
    assert result.exit_code == 3 and "transactional id known: " in result.output
    assert time.monotonic() - began < 10


def test_a_broker_that_sends_a_byte_at_a_time_does_not_hold_the_command(two: Two) -> None:
    two.first.pause_s = 0.2
    began = time.monotonic()
    result = run(two, "list", "--timeout", "0.6")
    assert result.exit_code == 3 and "timed out" in result.output
    assert time.monotonic() - began < 10


def test_another_address_is_tried(two: Two) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    whole = ["transactions", "list", "-b", f"127.0.0.1:{port},127.0.0.1:{two.first.port}"]
    result = CliRunner().invoke(main, whole, catch_exceptions=False)
    assert result.exit_code == 0, result.output
