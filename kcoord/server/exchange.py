"""Requests and answers as frames that pass, decoded when somebody looks at them.

`kcoord trace` prints them, and the test double lists them and matches its rules with them.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from typing import Final, final

from kcoord.protocol import apis
from kcoord.protocol.errors import ERROR_NAMES, UNSUPPORTED_VERSION
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, DecodeError, EncodeError, Reader

NO_ACKS: Final = 0
CORRELATION_BYTES: Final = 4
# API key, version, correlation id.
HEAD_BYTES: Final = 8


class Frame(ABC):
    """A frame without its size field, whose body is decoded when somebody asks for it."""

    def __init__(self, frame: bytes, wall_ms: int) -> None:
        self.frame = frame
        self.size = len(frame)
        self.wall_ms = wall_ms
        self._message: Message | None = None
        self._problem = ""
        self._is_read = False

    @property
    def message(self) -> Message | None:
        """The body; None if it cannot be decoded."""
        self._read()
        return self._message

    @property
    def problem(self) -> str:
        """Why there is no message, or an empty string."""
        self._read()
        return self._problem

    @problem.setter
    def problem(self, text: str) -> None:
        self._problem = text

    def _read(self) -> None:
        if self._is_read:
            return
        self._is_read = True
        try:
            self._decode()
        except DecodeError as error:
            self._problem = str(error)

    @abstractmethod
    def _decode(self) -> None:
        """Set the message, or the problem. Raises DecodeError."""


@final
class Request(Frame):
    """A request. `now_s` is the time of any one clock, `wall_ms` that of the day."""

    def __init__(self, frame: bytes, now_s: float, wall_ms: int) -> None:
        super().__init__(frame, wall_ms)
        self.now_s = now_s
        self.api_key = int.from_bytes(frame[:2], "big", signed=True)
        self.version = int.from_bytes(frame[2:4], "big", signed=True)
        self.correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        api = apis.APIS.get(self.api_key)
        self.name = f"API {self.api_key}" if api is None else api.name
        # Where the body begins, once it was read.
        self.head = HEAD_BYTES
        self._client_id = ""

    @property
    def client_id(self) -> str:
        self._read()
        return self._client_id

    @property
    def has_answer(self) -> bool:
        """Whether the broker answers: not to a Produce with acks=0."""
        return self.api_key != apis.PRODUCE or getattr(self.message, "acks", 1) != NO_ACKS

    def _decode(self) -> None:
        api = apis.APIS.get(self.api_key)
        reader = Reader(self.frame, HEAD_BYTES)
        self._client_id = reader.nullable_string() or ""
        if api is None:
            self._problem = "an API that kcoord does not know"
            return
        if not api.min_version <= self.version <= api.max_version:
            self._problem = f"kcoord knows the versions {api.min_version} to {api.max_version}"
            return
        if api.request_header_version(self.version) == 2:
            reader.skip_tags()
        self.head = int(reader.pos)
        self._message = apis.decode_request(self.api_key, reader, self.version)

    def encoded(self) -> bytes:
        """The frame with the message as it is now. Raises EncodeError, and ValueError if there is no message."""
        if self.message is None:
            raise ValueError(self.problem)
        writer = BytesWriter()
        apis.encode_request(writer, self.api_key, self.message, self.version)
        return self.frame[: self.head] + writer.getvalue()


@final
class Answer(Frame):
    """The answer to a request."""

    def __init__(self, request: Request, frame: bytes, now_s: float, wall_ms: int) -> None:
        super().__init__(frame, wall_ms)
        self.request = request
        self.latency_ms = (now_s - request.now_s) * 1000
        # ApiVersions may be asked for in a version that is too new; brokers answer in the first one (KIP-511).
        self._is_old = request.api_key == apis.API_VERSIONS and frame[4:6] == UNSUPPORTED_VERSION.to_bytes(2, "big")
        self.version = 0 if self._is_old else request.version
        self.head = CORRELATION_BYTES

    def _decode(self) -> None:
        self._problem = self.request.problem
        if self.request.message is None and not self._is_old:
            return
        reader = Reader(self.frame, CORRELATION_BYTES)
        if apis.APIS[self.request.api_key].response_header_version(self.version) == 1:
            reader.skip_tags()
        self.head = int(reader.pos)
        self._message = apis.decode_response(self.request.api_key, reader, self.version)

    def errors(self) -> list[str]:
        """The names of its error codes, each once."""
        return [] if self.message is None else list(dict.fromkeys(_error_names(self.message)))

    def is_canonical(self) -> bool:
        """Whether encoding the message gives the same bytes: it has no fields that this codec does not know."""
        return self.message is not None and self.encoded() == self.frame

    def encoded(self) -> bytes:
        """The frame with the message as it is now; empty if it cannot be encoded."""
        if self.message is None:
            return b""
        writer = BytesWriter()
        try:
            apis.encode_response(writer, self.request.api_key, self.message, self.version)
        except EncodeError:
            return b""
        return self.frame[: self.head] + writer.getvalue()


def _error_names(value: object) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _error_names(item)]
    if not isinstance(value, Message):
        return []
    found: list[str] = []
    for field in value.FIELDS:
        item = getattr(value, field)
        if field.endswith("error_code") and item:
            found.append(ERROR_NAMES.get(item, str(item)))
        elif isinstance(item, (list, Message)):
            found += _error_names(item)
    return found


def plain(value: object) -> object:
    """A message or a value as data for JSON; bytes as base64."""
    if isinstance(value, Message):
        return {name: plain(getattr(value, name)) for name in value.FIELDS}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    return value
