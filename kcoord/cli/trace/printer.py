"""The lines of `kcoord trace`: as text, CSV or JSON."""

from __future__ import annotations

import sys
from typing import Any, Final, final

import click

from kcoord.cli.output import csv_text, format_time, json_line, printable
from kcoord.protocol.errors import ERROR_NAMES
from kcoord.protocol.metadata import MetadataResponse
from kcoord.server.exchange import Answer, Request
from kcoord.wire.message import Message

# How much of the fields a line has without --full.
BRIEF_MAX: Final = 160
# Longer bytes, such as records, are printed as their size without --full.
BYTES_SHOWN_MAX: Final = 64
UUID_BYTES: Final = 16
# Topic ids that are remembered.
TOPICS_MAX: Final = 100_000
NO_UUID: Final = bytes(UUID_BYTES)
# Fields whose 0 says nothing, and endings of those whose -1 does not.
NOTHING_IF_0: Final = ("error_code", "throttle_time_ms")
NOTHING_IF_MINUS_1: Final = ("_epoch", "_id", "_timestamp", "_time_ms")
# Authorized operations that were not asked for.
NOT_ASKED: Final = -(2**31)
COLUMNS: Final = (
    "time", "connection", "client_id", "broker", "direction", "api", "version", "correlation_id", "size_bytes",
    "latency_ms", "errors", "problem", "fields",
)  # fmt: skip


@final
class Printer:
    """Prints what the filters let through. `is_full` is set when `limit` lines were printed (0: no limit)."""

    def __init__(
        self, output: str, apis: frozenset[str], client_ids: frozenset[str], errors_only: bool, full: bool, limit: int
    ) -> None:
        self.output = output
        self.apis = apis
        self.client_ids = client_ids
        self.errors_only = errors_only
        self.full = full
        self.left = limit or sys.maxsize
        # Topic names by id, from Metadata.
        self._names: dict[bytes, str] = {}
        if output == "csv":
            click.echo(csv_text([list(COLUMNS)]), nl=False)

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    def _wants(self, request: Request) -> bool:
        return (not self.apis or request.name in self.apis) and (
            not self.client_ids or request.client_id in self.client_ids
        )

    def request(self, connection: int, broker: str, request: Request) -> None:
        if self._wants(request) and (not self.errors_only or (request.problem and request.message is None)):
            self._print(connection, broker, request, None)

    def answer(self, connection: int, broker: str, answer: Answer) -> None:
        if isinstance(answer.message, MetadataResponse) and len(self._names) < TOPICS_MAX:
            self._names.update((one.topic_id, one.name or "") for one in answer.message.topics if one.name)
        if not self._wants(answer.request):
            return
        if not self.errors_only:
            self._print(connection, broker, answer.request, answer)
        elif answer.errors() or (answer.problem and answer.request.message is not None):
            self._print(connection, broker, answer.request, None)
            self._print(connection, broker, answer.request, answer)

    def _print(self, connection: int, broker: str, request: Request, answer: Answer | None) -> None:
        if self.is_full:
            return
        self.left -= 1
        if self.output == "table":
            click.echo(self._line(connection, broker, request, answer))
        else:
            document = self._document(connection, broker, request, answer)
            if self.output == "json":
                click.echo(json_line(document))
            else:
                row = {**document, "errors": " ".join(document["errors"]), "fields": self._brief(request, answer)}
                click.echo(csv_text([[row[name] for name in COLUMNS]]), nl=False)
        sys.stdout.flush()

    def _brief(self, request: Request, answer: Answer | None) -> str:
        message = request.message if answer is None else answer.message
        text = "" if message is None else self._fields(message)
        return text if self.full or len(text) <= BRIEF_MAX else text[: BRIEF_MAX - 3] + "..."

    def _line(self, connection: int, broker: str, request: Request, answer: Answer | None) -> str:
        wall_ms = request.wall_ms if answer is None else answer.wall_ms
        version = request.version if answer is None else answer.version
        head = f"{format_time(wall_ms)[11:-1]}  #{connection:<3} {request.client_id or '-':<16}  {broker:<21}"
        head += f"  {'>' if answer is None else '<'} {request.name} v{version}"
        parts = [f"{head:<76}", f"{request.correlation_id:>6}"]
        if answer is not None:
            parts.append(f"{answer.latency_ms:.1f} ms")
        errors = [] if answer is None else answer.errors()
        if errors:
            parts.append(click.style(" ".join(errors), fg="red"))
        problem = request.problem if answer is None else answer.problem
        if problem:
            size = request.size if answer is None else answer.size
            parts.append(click.style(f"({size} bytes: {problem})", fg="yellow"))
        fields = printable(self._brief(request, answer))
        return "  ".join([*parts, fields] if fields else parts)

    def _document(self, connection: int, broker: str, request: Request, answer: Answer | None) -> dict[str, Any]:
        side = request if answer is None else answer
        return {
            "time": format_time(side.wall_ms),
            "connection": connection,
            "client_id": request.client_id,
            "broker": broker,
            "direction": "request" if answer is None else "answer",
            "api": request.name,
            "version": side.version,
            "correlation_id": request.correlation_id,
            "size_bytes": side.size,
            "latency_ms": None if answer is None else round(answer.latency_ms, 3),
            "errors": [] if answer is None else answer.errors(),
            "problem": side.problem or None,
            "fields": None if side.message is None else self._plain(side.message, ""),
        }

    # --- fields

    def _fields(self, message: Message) -> str:
        """The fields that say something, as `name=value`."""
        parts: list[str] = []
        for name in message.FIELDS:
            value = getattr(message, name)
            if _says_nothing(value, name):
                continue
            if name == "error_code":
                parts.append(f"error={ERROR_NAMES.get(value, value)}")
            else:
                parts.append(f"{name}={self._value(value, name)}")
        return " ".join(parts)

    def _value(self, value: Any, name: str) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(self._value(one, name) for one in value) + "]"
        if isinstance(value, Message):
            return "{" + self._fields(value) + "}"
        if isinstance(value, bytes):
            plain = self._plain(value, name)
            return plain if isinstance(plain, str) else f"<{len(value)} bytes>"
        return str(value)

    def _plain(self, value: Any, name: str) -> Any:
        """A message or a value as plain data for JSON."""
        if isinstance(value, Message):
            return {field: self._plain(getattr(value, field), field) for field in value.FIELDS}
        if isinstance(value, list):
            return [self._plain(one, name) for one in value]
        if not isinstance(value, bytes):
            return value
        if len(value) == UUID_BYTES and "id" in name:
            return self._names.get(value) or _uuid_text(value)
        if len(value) > BYTES_SHOWN_MAX and not self.full:
            return {"bytes": len(value)}
        import base64

        return {"base64": base64.b64encode(value).decode("ascii")}


def _says_nothing(value: Any, name: str) -> bool:
    if value is None or value is False or value in ("", b"", [], NO_UUID, NOT_ASKED):
        return True
    return (value == 0 and name in NOTHING_IF_0) or (value == -1 and name.endswith(NOTHING_IF_MINUS_1))


def _uuid_text(data: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
