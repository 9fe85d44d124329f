"""Requests and answers as they pass: decoded for people, and unchanged but for the addresses of brokers.

A frame that cannot be decoded is passed on as it is. So is an answer whose encoding by this codec would differ from the
broker's in anything but the addresses, such as one with tagged fields that are newer than the codec.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, final

from kcoord.protocol import apis
from kcoord.protocol.errors import ERROR_NAMES, UNSUPPORTED_VERSION
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, DecodeError, EncodeError, Reader

# Fields with the brokers' addresses: Metadata and DescribeCluster, FindCoordinator, and Produce and Fetch (KIP-951).
ADDRESS_LISTS: Final = ("brokers", "coordinators", "node_endpoints")
NO_ACKS: Final = 0

# From a broker's address to the one that clients get instead.
Redirect = Callable[[str, int], Awaitable[tuple[str, int]]]


@final
class Request:
    """A request. `message` is None if it cannot be decoded; `problem` says why."""

    def __init__(self, frame: bytes, now_s: float, wall_ms: int) -> None:
        self.now_s = now_s
        self.wall_ms = wall_ms
        self.size = len(frame)
        self.api_key = int.from_bytes(frame[:2], "big", signed=True)
        self.version = int.from_bytes(frame[2:4], "big", signed=True)
        self.correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        self.client_id = ""
        self.message: Message | None = None
        self.problem = ""
        api = apis.APIS.get(self.api_key)
        self.name = f"API {self.api_key}" if api is None else api.name
        try:
            self._decode(frame, api)
        except DecodeError as error:
            self.problem = str(error)

    def _decode(self, frame: bytes, api: apis.Api | None) -> None:
        reader = Reader(frame, 8)
        self.client_id = reader.nullable_string() or ""
        if api is None:
            self.problem = "an API that kcoord does not know"
            return
        if not api.min_version <= self.version <= api.max_version:
            self.problem = f"kcoord knows the versions {api.min_version} to {api.max_version}"
            return
        if api.request_header_version(self.version) == 2:
            reader.skip_tags()
        self.message = apis.decode_request(self.api_key, reader, self.version)

    @property
    def has_answer(self) -> bool:
        """Whether the broker answers: not to a Produce with acks=0."""
        return self.api_key != apis.PRODUCE or getattr(self.message, "acks", 1) != NO_ACKS


@final
class Answer:
    """The answer to a request. `message` is None if it cannot be decoded; `problem` says why."""

    def __init__(self, request: Request, frame: bytes, now_s: float, wall_ms: int) -> None:
        self.request = request
        self.wall_ms = wall_ms
        self.latency_ms = (now_s - request.now_s) * 1000
        self.size = len(frame)
        self.frame = frame
        self.message: Message | None = None
        self.problem = request.problem
        self.version = request.version
        self._body = 4
        # ApiVersions may be asked for in a version that is too new; brokers answer in the first one (KIP-511).
        if request.message is not None or (request.api_key == apis.API_VERSIONS and self._is_unsupported()):
            try:
                self._decode()
            except DecodeError as error:
                self.problem = str(error)

    def _is_unsupported(self) -> bool:
        return self.frame[4:6] == UNSUPPORTED_VERSION.to_bytes(2, "big")

    def _decode(self) -> None:
        key = self.request.api_key
        if key == apis.API_VERSIONS and self._is_unsupported():
            self.version = 0
        reader = Reader(self.frame, 4)
        if apis.APIS[key].response_header_version(self.version) == 1:
            reader.skip_tags()
        self._body = int(reader.pos)
        self.message = apis.decode_response(key, reader, self.version)

    def errors(self) -> list[str]:
        """The names of its error codes, each once."""
        return [] if self.message is None else list(dict.fromkeys(_error_names(self.message)))

    async def redirected(self, redirect: Redirect) -> bytes:
        """The frame with the addresses that `redirect` returns; `problem` is set if they stay as they are."""
        places = _addresses(self.message)
        if not places:
            return self.frame
        if self._encoded() != self.frame[self._body :]:
            self.problem = "not redirected, because it has fields that kcoord does not know"
            return self.frame
        for place in places:
            place.host, place.port = await redirect(place.host, place.port)
        return self.frame[: self._body] + self._encoded()

    def _encoded(self) -> bytes:
        assert self.message is not None
        writer = BytesWriter()
        try:
            apis.encode_response(writer, self.request.api_key, self.message, self.version)
        except EncodeError:
            return b""
        return writer.getvalue()


def _addresses(message: Message | None) -> list[Any]:
    """The parts of an answer with `host` and `port` of a broker."""
    if message is None:
        return []
    places: list[Any] = [message] if "host" in message.FIELDS else []
    for name in ADDRESS_LISTS:
        places += getattr(message, name, None) or []
    # FindCoordinator without a coordinator has neither.
    return [place for place in places if getattr(place, "host", "") and place.port > 0]


def _error_names(value: object) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _error_names(item)]
    if not isinstance(value, Message):
        return []
    found: list[str] = []
    for field in value.FIELDS:
        item = getattr(value, field)
        if field == "error_code" and item:
            found.append(ERROR_NAMES.get(item, str(item)))
        elif isinstance(item, (list, Message)):
            found += _error_names(item)
    return found
