"""What one connection does, as facts for the server's log at level debug.

It reads the bytes of a connection beside the engine: the heads of requests as they arrive, and those of responses as
they are written. So the engine needs no code for it, and a server that does not log at debug does no work for it.
Answers come in the order of the requests. A Produce with acks=0 gets none; its line comes with the request.

Bodies are skipped and never kept. Input that is no request ends the reading: the engine closes such a connection.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.outcome import DEBUG, Fact
from kcoord.protocol import apis
from kcoord.protocol.api_versions import decode_api_versions_request
from kcoord.wire.frame import REQUEST_BYTES_MIN, SIZE_BYTES
from kcoord.wire.primitives import DecodeError, Reader

# Enough for the header of a request with a client id of usual length, and for the body of ApiVersions.
REQUEST_HEAD_BYTES: Final = 512
# Only the correlation id.
RESPONSE_HEAD_BYTES: Final = 4
# Requests of one connection without a response. A session keeps fewer (BACKLOG_FRAMES_MAX); beyond it the oldest go.
PENDING_MAX: Final = 10_000


@final
class FrameHeads:
    """Cuts a stream into frames, and keeps only the first bytes of each."""

    def __init__(self, head_bytes: int) -> None:
        self.head_bytes = head_bytes
        self.is_broken = False
        self._head = b""
        # Bytes of the frame that are missing; -1 while its size is being read.
        self._missing = -1
        self._size = 0

    def feed(self, data: bytes, frames: list[tuple[int, bytes]]) -> None:
        """Append the size and the head of every frame that `data` completes."""
        at = 0
        end = len(data)
        while at < end and not self.is_broken:
            if self._missing < 0:
                taken = data[at : at + SIZE_BYTES - len(self._head)]
                at += len(taken)
                self._head += taken
                if len(self._head) < SIZE_BYTES:
                    return
                self._size = self._missing = int.from_bytes(self._head, "big", signed=True)
                self._head = b""
                if self._size <= 0:
                    self.is_broken = True
                    return
                continue
            size = min(self._missing, end - at)
            if len(self._head) < self.head_bytes:
                self._head += data[at : at + min(size, self.head_bytes - len(self._head))]
            at += size
            self._missing -= size
            if self._missing == 0:
                frames.append((self._size, self._head))
                self._head = b""
                self._missing = -1


@final
class PendingLine:
    """A request that was read and not answered yet."""

    def __init__(
        self, api: str, version: int, correlation_id: int, client_id: str, size_bytes: int, at_ms: int
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.size_bytes = size_bytes
        self.at_ms = at_ms


@final
class RequestLog:
    """Appends the facts of one connection to `facts`, which the pump logs at the end of each turn."""

    def __init__(self, facts: list[Fact], connection_id: int, client: str, now_ms: int) -> None:
        self.facts = facts
        self.connection_id = connection_id
        self.client = client
        self.client_id = ""
        self.software = ""
        self.began_ms = now_ms
        self.requests = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.is_ended = False
        self._requests = FrameHeads(REQUEST_HEAD_BYTES)
        self._responses = FrameHeads(RESPONSE_HEAD_BYTES)
        self._pending: deque[PendingLine] = deque()
        self._note("connection_opened", {})

    def _note(self, event: str, fields: dict[str, object]) -> None:
        known: dict[str, object] = {"client": self.client, "connection": self.connection_id}
        self.facts.append(Fact(DEBUG, event, known | fields))

    def received(self, data: bytes, now_ms: int) -> None:
        self.received_bytes += len(data)
        frames: list[tuple[int, bytes]] = []
        self._requests.feed(data, frames)
        for size, head in frames:
            self._add(size, head, now_ms)

    def _add(self, size: int, head: bytes, now_ms: int) -> None:
        if len(head) < REQUEST_BYTES_MIN:
            self._requests.is_broken = True
            return
        self.requests += 1
        reader = Reader(head)
        api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        api = apis.APIS.get(api_key)
        is_answered = True
        try:
            self.client_id = reader.nullable_string() or ""
            if api is not None and version >= api.flexible_version:
                reader.skip_tags()
            if api_key == apis.API_VERSIONS:
                self._name_software(reader, version)
            elif api is not None and api_key == apis.PRODUCE:
                if version >= api.flexible_version:
                    reader.compact_nullable_string()
                else:
                    reader.nullable_string()
                is_answered = reader.int16() != 0
        except DecodeError:
            pass  # the head is too short or damaged: what was read so far is enough for a line
        name = f"api {api_key}" if api is None else api.name
        line = PendingLine(name, version, correlation_id, self.client_id, size, now_ms)
        if not is_answered:
            self._end_request(line, "acks=0", None, None)
            return
        self._pending.append(line)
        if len(self._pending) > PENDING_MAX:
            self._end_request(self._pending.popleft(), "unknown", None, None)

    def _name_software(self, reader: Reader, version: int) -> None:
        """Clients since Kafka 2.4 say which software they are (KIP-511)."""
        body = decode_api_versions_request(reader, version)
        software = f"{body.client_software_name} {body.client_software_version}".strip()
        if software and software != self.software:
            self.software = software
            self._note("client_software", {"software": software, "client_id": self.client_id})

    def sent(self, pieces: list[bytes], now_ms: int) -> None:
        frames: list[tuple[int, bytes]] = []
        for piece in pieces:
            self.sent_bytes += len(piece)
            self._responses.feed(piece, frames)
        for size, head in frames:
            correlation_id = int.from_bytes(head, "big", signed=True)
            while self._pending:
                line = self._pending.popleft()
                if line.correlation_id == correlation_id:
                    self._end_request(line, "", size, now_ms - line.at_ms)
                    break
                self._end_request(line, "none", None, None)

    def _end_request(
        self, line: PendingLine, without: str, response_bytes: int | None, duration_ms: int | None
    ) -> None:
        """The line of one request; `without` is the reason why there is no response."""
        fields: dict[str, object] = {
            "api": line.api,
            "version": line.version,
            "correlation_id": line.correlation_id,
            "client_id": line.client_id,
            "request_bytes": line.size_bytes,
        }
        if without:
            fields["no_response"] = without
        else:
            fields["response_bytes"] = response_bytes
            fields["duration_ms"] = duration_ms
        self._note("request", fields)

    def ended(self, reason: str, now_ms: int) -> None:
        """The connection is closed; `reason` is empty if the client closed it."""
        if self.is_ended:
            return
        self.is_ended = True
        while self._pending:
            self._end_request(self._pending.popleft(), "the connection ended", None, None)
        fields: dict[str, object] = {
            "client_id": self.client_id,
            "software": self.software,
            "requests": self.requests,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "duration_ms": now_ms - self.began_ms,
        }
        if reason:
            fields["reason"] = reason
        self._note("connection_ended", fields)
