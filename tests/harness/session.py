"""Raw, scripted conversations with a broker, recorded in a form that two brokers can be compared by.

A `Session` opens any number of named connections and speaks in the JSON form of Kafka's JsonConverters (see
schema_json). Requests may be partial: missing fields get their defaults. Every call is recorded as a step; what differs
from run to run (ids, ports, times) is replaced by a symbol such as `<id of orders>` or `<member-1>`.

Steps look like this:

    {"step": "text that says what is tried", "api": "OffsetFetch", "version": 2, "request": {...}, "response": {...}}

and instead of "response" one of `"closed": true` (the broker closed the connection) or `"silent": true` (it did not
answer within the time the script gave it, and the connection stayed open).
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.harness import schema_json

ANSWER_DEADLINE_S = 60.0
CLIENT_ID = "script"


class Codec(Protocol):
    """Encodes request bodies and decodes response bodies."""

    def encode(self, name: str, version: int, value: Any) -> bytes: ...

    def decode(self, name: str, version: int, body: bytes) -> Any: ...


class KcoordCodec:
    """kcoord's own generated codec."""

    def encode(self, name: str, version: int, value: Any) -> bytes:
        from kcoord.wire.primitives import BytesWriter

        w = BytesWriter()
        encode = getattr(schema_json.module_of(name), f"encode_{schema_json.snake_case(name)}")
        encode(w, schema_json.build(name, version, value), version)
        return w.getvalue()

    def decode(self, name: str, version: int, body: bytes) -> Any:
        from kcoord.wire.primitives import Reader

        r = Reader(body)
        decode = getattr(schema_json.module_of(name), f"decode_{schema_json.snake_case(name)}")
        message = decode(r, version)
        if r.end - r.pos:
            raise ValueError(f"{r.end - r.pos} bytes left over after {name} v{version}")
        return schema_json.render(name, version, message)


def member_order(member: dict[str, Any]) -> tuple[str, str]:
    """Members come in the order of a hash map; listing them by id makes runs comparable."""
    return member.get("memberId", ""), member.get("groupInstanceId") or ""


def partition_order(partition: dict[str, Any]) -> int:
    index: int = partition["index"]
    return index


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class Silent(Exception):
    """No answer came in time."""


def request_frame(api_key: int, version: int, correlation: int, body: bytes, flexible: bool) -> bytes:
    client = CLIENT_ID.encode()
    header = struct.pack(">hhih", api_key, version, correlation, len(client)) + client + (b"\x00" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


class Connection:
    """One TCP connection with blocking reads."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=ANSWER_DEADLINE_S)
        self._correlation = 0

    def send(self, api_key: int, version: int, body: bytes, flexible: bool) -> int:
        self._correlation += 1
        try:
            self._socket.sendall(request_frame(api_key, version, self._correlation, body, flexible))
        except OSError as e:
            raise Closed(str(e)) from e
        return self._correlation

    def receive(self, deadline_s: float = ANSWER_DEADLINE_S) -> tuple[int, bytes]:
        """Correlation id and the rest of the next response."""
        end = time.monotonic() + deadline_s
        size = struct.unpack(">i", self._exactly(4, end))[0]
        frame = self._exactly(size, end)
        return struct.unpack(">i", frame[:4])[0], frame[4:]

    def _exactly(self, count: int, end: float) -> bytes:
        chunks = b""
        while len(chunks) < count:
            self._socket.settimeout(max(end - time.monotonic(), 0.001))
            try:
                chunk = self._socket.recv(count - len(chunks))
            except TimeoutError as e:
                raise Silent(f"{len(chunks)} of {count} bytes came") from e
            except OSError as e:
                raise Closed(str(e)) from e
            if not chunk:
                raise Closed("end of stream")
            chunks += chunk
        return chunks

    def is_readable(self) -> bool:
        """Whether something came, be it the end of the connection."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        self._socket.close()


class Pending:
    """A request that was sent; `answer()` waits for its response."""

    def __init__(self, session: Session, on: str, step: dict[str, Any]) -> None:
        self._session = session
        self._on = on
        self.record = step

    def answer(self, deadline_s: float = ANSWER_DEADLINE_S) -> Any:
        """The response as JSON; None when the connection was closed or nothing came."""
        return self._session.finish(self._on, self.record, deadline_s)


class Session:
    """A recorded conversation."""

    def __init__(self, host: str, port: int, codec: Codec) -> None:
        self.host = host
        self.port = port
        self._codec = codec
        self._connections: dict[str, Connection] = {}
        self._steps: list[dict[str, Any]] = []
        self._symbols: dict[str, str] = {}
        self._members = 0
        self.topic_ids: dict[str, str] = {}

    # ---- talking

    def connection(self, on: str) -> Connection:
        if on not in self._connections:
            self._connections[on] = Connection(self.host, self.port)
        return self._connections[on]

    def send(self, step: str, api: str, version: int, request: dict[str, Any], on: str = "a") -> Pending:
        schema = schema_json.schemas()[f"{api}Request"]
        full = schema_json.fill(f"{api}Request", version, request)
        record = {"step": step, "api": api, "version": version, "request": full}
        self._steps.append(record)
        body = self._codec.encode(f"{api}Request", version, full)
        assert schema.api_key is not None
        self._try_send(record, on, schema.api_key, version, body, version in schema.flexible)
        return Pending(self, on, record)

    def call(self, step: str, api: str, version: int, request: dict[str, Any], on: str = "a") -> Any:
        """Sends one request and waits for its answer."""
        return self.send(step, api, version, request, on).answer()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What is asked in here does not appear among the steps (waiting by asking again)."""
        recorded = len(self._steps)
        yield
        del self._steps[recorded:]

    def last_step(self) -> dict[str, Any]:
        return self._steps[-1]

    def one_way(self, step: str, api: str, version: int, request: dict[str, Any], on: str = "a") -> None:
        """Sends a request that must not be answered (Produce with acks=0)."""
        pending = self.send(step, api, version, request, on)
        pending.answer(deadline_s=0.3)

    def raw(self, step: str, api_key: int, version: int, body: bytes, flexible: bool, on: str) -> bytes | None:
        """Sends bytes under a header that no schema knows; the answer is recorded in hex."""
        record: dict[str, Any] = {"step": step, "api_key": api_key, "version": version, "request_hex": body.hex()}
        self._steps.append(record)
        self._try_send(record, on, api_key, version, body, flexible)
        if "closed" in record:
            return None
        try:
            _, answer = self.connection(on).receive()
        except Closed:
            self._drop(on, record, "closed")
            return None
        record["response_hex"] = answer.hex()
        return answer

    def _try_send(self, record: dict[str, Any], on: str, key: int, version: int, body: bytes, flexible: bool) -> None:
        try:
            self.connection(on).send(key, version, body, flexible)
        except Closed:
            self._drop(on, record, "closed")

    def _drop(self, on: str, record: dict[str, Any], why: str) -> None:
        record[why] = True
        self.hang_up(on)

    def hang_up(self, on: str) -> None:
        """Closes the named connection; its next use opens a new one."""
        connection = self._connections.pop(on, None)
        if connection is not None:
            connection.close()

    def finish(self, on: str, record: dict[str, Any], deadline_s: float) -> Any:
        if "closed" in record:
            return None
        schema = schema_json.schemas()[f"{record['api']}Response"]
        version = record["version"]
        try:
            _, body = self.connection(on).receive(deadline_s)
        except Closed:
            self._drop(on, record, "closed")
            return None
        except Silent:
            record["silent"] = True
            return None
        if version in schema.flexible and record["api"] != "ApiVersions":
            if body[:1] != b"\x00":
                raise ValueError(f"tagged fields in the response header of {record['api']}")
            body = body[1:]
        response = self._codec.decode(f"{record['api']}Response", version, body)
        record["response"] = response
        self._learn(record["api"], record["request"], response)
        return response

    # ---- recording

    def symbol(self, value: str, name: str) -> None:
        """From now on `value` is written as `<name>` in the record."""
        if value and value not in self._symbols:
            self._symbols[value] = f"<{name}>"

    def _learn(self, api: str, request: Any, response: Any) -> None:
        if api == "JoinGroup":
            member = response["memberId"]
            if member and member != request["memberId"] and member not in self._symbols:
                self._members += 1
                self.symbol(member, f"member-{self._members}")
        if api in ("CreateTopics", "Metadata"):
            for topic in response["topics"]:
                topic_id = topic.get("topicId", schema_json.ZERO_UUID)
                if topic.get("name") and topic_id != schema_json.ZERO_UUID and not topic["errorCode"]:
                    self.topic_ids[topic["name"]] = topic_id
                    self.symbol(topic_id, f"id of {topic['name']}")

    def steps(self) -> list[dict[str, Any]]:
        """The recorded steps with everything that differs from run to run replaced by symbols."""
        steps: list[dict[str, Any]] = [self._normal("", step) for step in self._steps]
        return steps

    def _normal(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self._normal(k, v) for k, v in value.items()}
        if isinstance(value, list):
            items = [self._normal(key, item) for item in value]
            if key == "members":
                return sorted(items, key=member_order)
            return sorted(items, key=partition_order) if key == "partitionResponses" else items
        if isinstance(value, str):
            return self._normal_text(key, value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._normal_number(key, value)
        return value

    def _normal_text(self, key: str, value: str) -> str:
        if key == "host" and value:
            return "<host>"
        if key == "clusterId" and value:
            return "<cluster id>"
        for raw, symbol in self._symbols.items():
            value = value.replace(raw, symbol)
        return re.sub(r"-?\b(1[789]\d{11}|92233702\d{11})\b", "<now>", value)

    def _normal_number(self, key: str, value: int) -> int | str:
        if key == "port" and value > 0:
            return "<port>"
        if key in ("producerId", "v3AndBelowProducerId", "producerIdFilters") and value >= 0:
            return "<producer id>"
        if key == "finalizedFeaturesEpoch" and value >= 0:
            return "<epoch>"
        if key == "sessionId" and value > 0:
            return "<session id>"
        if (
            key in ("timestamp", "logAppendTimeMs", "lastTimestamp", "transactionStartTimeMs")
            and value > 1_700_000_000_000
        ):
            return "<now>"
        return value

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
