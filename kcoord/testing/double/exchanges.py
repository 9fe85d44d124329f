"""What passed: every request with its answer, decoded when somebody looks, for tests that ask what a client did."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, final

from kcoord.server.exchange import Answer, Request
from kcoord.testing.double.faults import Rule
from kcoord.wire.message import Message

# The oldest exchanges are forgotten beyond these.
EXCHANGES_MAX: Final = 20_000
BYTES_MAX: Final = 64 * 1024 * 1024


@final
class Exchange:
    """One request of a client, and what became of it."""

    def __init__(self, connection: int, client_host: str, request: Request, rule: Rule | None) -> None:
        # The connection's number: the first one of the server is 1.
        self.connection = connection
        self.client_host = client_host
        self.request = request
        # The rule that acted on it.
        self.rule = rule
        # Whether the server has got it, and whether the client was sent an answer.
        self.is_handled = False
        self.is_sent = False
        self._answer: Answer | None = None

    def answered(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def api(self) -> str:
        """Kafka's name of the API, such as `OffsetCommit`."""
        return self.request.name

    @property
    def version(self) -> int:
        return self.request.version

    @property
    def client_id(self) -> str:
        return self.request.client_id

    @property
    def time_ms(self) -> int:
        """When the request arrived, in milliseconds since 1970."""
        return self.request.wall_ms

    @property
    def latency_ms(self) -> float | None:
        """From the request to its answer; None while there is none."""
        return None if self._answer is None else self._answer.latency_ms

    @property
    def body(self) -> Message | None:
        """The decoded request; None if it cannot be decoded."""
        return self.request.message

    @property
    def answer(self) -> Message | None:
        """The decoded answer, also one that a rule has kept from the client; None if there is none."""
        return None if self._answer is None else self._answer.message

    @property
    def errors(self) -> list[str]:
        """The names of the answer's errors, each once."""
        return [] if self._answer is None else self._answer.errors()

    @property
    def size_bytes(self) -> int:
        return self.request.size + (0 if self._answer is None else self._answer.size)

    def __repr__(self) -> str:
        parts = [f"#{self.connection}", self.client_id or "-", f"{self.api} v{self.version}"]
        if self._answer is not None:
            parts.append(f"{self._answer.latency_ms:.1f} ms")
            parts += self.errors
        else:
            parts.append("not answered")
        if self.rule is not None:
            parts.append(f"({self.rule.action})")
        return " ".join(parts)


@final
class ExchangeLog:
    """All exchanges since the last reset. The server's thread adds to it, other threads read and wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._exchanges: deque[Exchange] = deque()
        self._bytes = 0
        self.forgotten = 0

    def add(self, exchange: Exchange) -> None:
        """A request has come."""
        with self._changed:
            self._exchanges.append(exchange)
            self._note(exchange.request.size)

    def answered(self, answer: Answer) -> None:
        """A request of the log was answered."""
        with self._changed:
            self._note(answer.size)

    def _note(self, size: int) -> None:
        self._bytes += size
        while len(self._exchanges) > EXCHANGES_MAX or (self._bytes > BYTES_MAX and len(self._exchanges) > 1):
            self._bytes -= self._exchanges.popleft().size_bytes
            self.forgotten += 1
        self._changed.notify_all()

    def wake(self) -> None:
        """Let waiting threads look again."""
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._exchanges.clear()
            self._bytes = 0
            self.forgotten = 0

    def all(self) -> list[Exchange]:
        with self._changed:
            return list(self._exchanges)

    def wait(self, is_there: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `is_there()`, which is called after each change. Returns whether it was in time."""
        with self._changed:
            return self._changed.wait_for(is_there, timeout_s)
