"""One connection with rules, without I/O: requests on their way to the engine, answers on their way to the client.

A client gets its answers in the order of its requests, and each request has one answer or none. So a request that a
rule answers waits until all earlier ones are answered. A request that is delayed or held keeps back everything that the
connection sends after it, as a slow broker would.

A request that is dropped, or whose answer is, makes the connection silent: a broker that has lost one request never
answers the next one on that connection. The client gives up on the connection after its own timeout.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, final

from kcoord.core.refusals import error_response
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsResponse
from kcoord.server.exchange import Answer, Request
from kcoord.testing.double import faults
from kcoord.testing.double.cluster import CHANGED_APIS, Broker, Refused
from kcoord.testing.double.exchanges import Exchange, ExchangeLog
from kcoord.testing.double.faults import Rule
from kcoord.testing.double.parts import PartErrors, part_errors
from kcoord.testing.double.releases import Caps
from kcoord.testing.double.selector import TopicNames
from kcoord.wire.frame import SIZE_BYTES
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, EncodeError

# A client that sends more than this while a request is held is disconnected.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(SIZE_BYTES, "big") + frame


def error_frame(request: Request, error_code: int) -> bytes:
    """The answer that refuses all of a request; empty if the request cannot be decoded or its answer encoded."""
    if request.message is None:
        return b""
    body = error_response(request.api_key, request.version, request.message, error_code)
    return _encoded(request, request.api_key, request.version, body)


def _encoded(request: Request, api_key: int, version: int, body: Message) -> bytes:
    writer = BytesWriter()
    if apis.APIS[api_key].response_header_version(version) == 1:
        writer.append(0)
    try:
        apis.encode_response(writer, api_key, body, version)
    except EncodeError:
        return b""
    return request.frame[4:8] + writer.getvalue()


def throttled_frame(answer: Answer, throttle_ms: int) -> bytes:
    """The answer with this throttle time; unchanged if its version has none."""
    message: Any = answer.message
    if message is None or "throttle_time_ms" not in message.FIELDS or not answer.is_canonical():
        return answer.frame
    message.throttle_time_ms = throttle_ms
    return answer.encoded()


def changed_frame(answer: Answer, rule: Rule) -> bytes:
    """The answer as a rule has changed it; unchanged if that fails."""
    rule.changed += 1
    try:
        if answer.message is None or rule.action.change is None:
            raise ValueError(f"the answer cannot be decoded: {answer.problem}")
        rule.action.change(answer.request.message, answer.message)
        frame = answer.encoded()
        if not frame:
            raise ValueError(f"the changed answer cannot be encoded in version {answer.version}")
    except Exception as error:  # it belongs to the test, not to the server
        rule.error = error
        return answer.frame
    return frame


@final
class Entry:
    """A request that is to be answered. `answer` is set once it is."""

    def __init__(self, exchange: Exchange, rule: Rule | None) -> None:
        self.exchange = exchange
        self.rule = rule
        self.answer: bytes | None = None
        # Partitions of it that another broker leads.
        self.refused: list[Refused] = []
        # Errors of a rule for some of its topics or partitions.
        self.parts: PartErrors | None = None


@final
class Link:
    """The caller passes what came from either side, then takes `to_engine` and `to_client` and looks at `is_cut`."""

    def __init__(
        self,
        number: int,
        client_host: str,
        log: ExchangeLog,
        caps: Caps | None,
        topic_name: TopicNames,
        broker: Broker | None = None,
    ) -> None:
        self.number = number
        self.client_host = client_host
        self._log = log
        self._caps = caps
        self._topic_name = topic_name
        self._broker = broker
        # Frames with their size field.
        self.to_engine: list[bytes] = []
        self.to_client: list[bytes] = []
        # The connection is to be closed at once.
        self.is_cut = False
        # Nothing passes any more in this direction.
        self.is_deaf = False
        self.is_mute = False
        # Requests that wait, with their rules; the time when the first of them goes on.
        self._waiting: deque[tuple[Exchange, Rule | None]] = deque()
        self._waiting_bytes = 0
        self._entries: deque[Entry] = deque()
        self._unread = b""
        self._is_unseen = False

    @property
    def is_disturbed(self) -> bool:
        """Whether a rule has left something behind that a later test would see."""
        return self.is_deaf or self.is_mute or bool(self._waiting)

    # --- from the client

    def receive(self, request: Request, rule: Rule | None, now_s: float) -> None:
        exchange = Exchange(self.number, self.client_host, request, rule)
        self._log.add(exchange)
        if self.is_deaf:
            return
        self._waiting.append((exchange, rule))
        self._waiting_bytes += request.size
        if self._waiting_bytes > HELD_BYTES_MAX:
            self.is_cut = True
        self.go_on(now_s)

    def pass_unseen(self, request: Request) -> None:
        """Pass on a request that no rule is for, and that is not listed. Its connection has only such requests."""
        self.to_engine.append(framed(request.frame))
        self._is_unseen = True

    def go_on(self, now_s: float) -> float | None:
        """Pass on the requests that wait for nothing. Returns when the next one may go on, if it is only delayed."""
        while self._waiting and not self.is_deaf and not self.is_cut:
            exchange, rule = self._waiting[0]
            if rule is not None:
                due_s = exchange.request.now_s + rule.action.ms / 1000
                if rule.action.kind == faults.DELAY and now_s < due_s and not rule.is_over:
                    return due_s
                if rule.action.kind == faults.HOLD and not rule.is_over:
                    return None
            self._waiting.popleft()
            self._waiting_bytes -= exchange.request.size
            self._pass(exchange, rule)
        return None

    def _pass(self, exchange: Exchange, rule: Rule | None) -> None:
        request = exchange.request
        kind = "" if rule is None else rule.action.kind
        if kind == faults.CUT_BEFORE:
            self.is_cut = True
            return
        if kind == faults.DROP:
            self.is_deaf = True
            self._waiting.clear()
            return
        entry = Entry(exchange, rule)
        if self._caps is not None and not self._caps.allows(request.api_key, request.version):
            if request.api_key != apis.API_VERSIONS:
                # As a broker that does not know the version.
                self.is_cut = True
                return
            entry.answer = _encoded(request, apis.API_VERSIONS, 0, self._caps.refuse_api_versions())
        if kind == faults.FAIL and not request.has_answer:
            # As a broker reports an error where nothing is answered.
            self.is_cut = True
            return
        if rule is not None and kind in (faults.FAIL, faults.FAIL_AFTER):
            self._fail(entry, request, rule)
        frame = self._routed(entry, request)
        if request.has_answer:
            self._entries.append(entry)
        if entry.answer is None:
            exchange.is_handled = True
            self.to_engine.append(framed(frame))
        else:
            self._flush(request.now_s, request.wall_ms)

    def _fail(self, entry: Entry, request: Request, rule: Rule) -> None:
        """Answer a request that a rule refuses, unless something is left of it for the engine."""
        code = rule.action.error_code
        is_handled = rule.action.kind == faults.FAIL_AFTER
        parts = part_errors(request, rule.selector, code, is_handled, self._topic_name)
        if parts is None:
            if not is_handled:
                entry.answer = error_frame(request, code) or None
        elif parts.rest is not None:
            entry.parts = parts
        else:
            body = parts.empty_answer(request)
            parts.apply(body)
            entry.answer = _encoded(request, request.api_key, request.version, body) or None

    def _routed(self, entry: Entry, request: Request) -> bytes:
        """The frame for the engine. The entry gets the answer if the request is for another broker of a cluster."""
        broker = self._broker
        frame = request.frame
        if entry.parts is not None and entry.parts.rest is not None:
            frame = entry.parts.rest
        if broker is None or entry.answer is not None or request.message is None:
            return frame
        routed = Request(frame, request.now_s, request.wall_ms)
        error, entry.refused = broker.cluster.receive(broker.node_id, routed)
        if error:
            entry.answer = error_frame(request, error)
        return routed.encoded() if request.api_key in CHANGED_APIS else frame

    # --- from the engine

    def send(self, data: bytes, now_s: float, wall_ms: int) -> None:
        """Bytes of the engine's answers."""
        if self._is_unseen:
            self.to_client.append(data)
            return
        self._unread += data
        while len(self._unread) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._unread[:SIZE_BYTES], "big")
            if len(self._unread) < end:
                break
            frame, self._unread = self._unread[SIZE_BYTES:end], self._unread[end:]
            for entry in self._entries:
                if entry.answer is None:
                    entry.answer = frame
                    break
        self._flush(now_s, wall_ms)

    def _flush(self, now_s: float, wall_ms: int) -> None:
        while self._entries and not self.is_mute and not self.is_cut:
            entry = self._entries[0]
            if entry.answer is None:
                return
            self._entries.popleft()
            self._answer(entry, entry.answer, now_s, wall_ms)

    def _answer(self, entry: Entry, frame: bytes, now_s: float, wall_ms: int) -> None:
        request = entry.exchange.request
        rule = entry.rule
        kind = "" if rule is None else rule.action.kind
        if rule is not None and kind == faults.FAIL_AFTER and entry.parts is None:
            frame = error_frame(request, rule.action.error_code) or frame
        elif rule is not None and kind == faults.THROTTLE:
            frame = throttled_frame(Answer(request, frame, now_s, wall_ms), rule.action.ms)
        elif rule is not None and kind == faults.ANSWER:
            frame = changed_frame(Answer(request, frame, now_s, wall_ms), rule)
        answer = Answer(request, frame, now_s, wall_ms)
        if self._caps is not None and isinstance(answer.message, ApiVersionsResponse):
            self._caps.limit(answer.message)
            frame = answer.encoded()
        broker = self._broker
        if broker is not None and answer.message is not None:
            if broker.cluster.answer(broker.node_id, request, answer.message, entry.refused):
                frame = answer.encoded()
        if entry.parts is not None and answer.message is not None:
            entry.parts.apply(answer.message)
            frame = answer.encoded()
        entry.exchange.answered(answer)
        if kind == faults.DROP_ANSWER:
            self.is_mute = True
        elif kind == faults.CUT_AFTER:
            self.is_cut = True
        elif kind == faults.CUT_MIDDLE:
            self.to_client.append(framed(frame)[: SIZE_BYTES + len(frame) // 2])
            self.is_cut = True
        else:
            entry.exchange.is_sent = True
            self.to_client.append(framed(frame))
        self._log.answered(answer)
