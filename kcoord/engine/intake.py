"""The intake: from the bytes of a connection to decoded requests, one at a time.

What must hold:

1. *The requests of a connection are handled in the order in which they arrived.* Frames leave the splitter in order.
   A frame is handled at once only if the backlog of its session is empty; otherwise it goes to the end of the backlog.
   When the queue reaches the session again, its backlog is handled from the beginning, and the first frame that has to
   wait is put back together with all frames after it. So no frame ever overtakes another one of its session.
2. *At most one request of a session has no answer yet.* A request that waits for an event is parked, and `must_wait`
   delays the next frame until it is answered. So the outbox receives the answers in the order of the requests.
3. *No waiting frame is forgotten.* Each reason to wait ends with one event that puts the session back into the queue
   (see backlogs.py): the answer of the parked request, output that was taken, a commit that was written, a turn with
   budget left. A session that waits for two reasons is checked after the first event, and then waits for the second.
4. *No session waits for ever.* A turn handles at least one queued session, however much new requests cost, except once
   after a turn that was far over its budget.
5. *The intake calls the turn, and never the other way round.* Handling a request never handles another frame: the turn
   only marks sessions whose backlog can continue, and `resume` handles them once the current event is done. So a
   request always sees the state after all earlier events, and never one in the middle of an event.

A request that cannot be decoded closes its connection, and has no other effect: its API or version is unknown, or the
schema does not allow its size, header or body. There is no error code for it, because even the layout of the answer is
unknown. ApiVersions is the exception: from its answer in version 0, a newer client learns which versions it may use.

An exception while a body is decoded is a bug. It closes only this session, because nothing has changed yet. The same
holds while the backlog of a session is handled, unless the exception concerns the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import LIMIT, PEER, Now, Request
from kcoord.engine.api_classes import APPENDING_APIS, ELEMENTS_SETTINGS, ENTROPY_APIS, elements_max
from kcoord.engine.api_versions import unsupported_api_versions
from kcoord.engine.backlogs import Backlogs, hold_back, must_wait, take_backlog
from kcoord.engine.commits import Commits
from kcoord.engine.outbox import Outbox
from kcoord.engine.produce import ProduceHandler
from kcoord.engine.session import OPEN, Session
from kcoord.engine.turn import Turn
from kcoord.protocol import apis, server_codec
from kcoord.wire.frame import COMMON_KEYS, FrameError, FrameTooLarge
from kcoord.wire.primitives import DecodeError, Reader, TooManyElements, i64, read_i16_be, read_i32_be

ENTROPY_BYTES: Final = 16
# `apis.APIS` as a list, which is faster, for keys below COMMON_KEYS.
COMMON_APIS: Final = [apis.APIS.get(key) for key in range(COMMON_KEYS)]


@final
class Intake:
    """Takes bytes from sessions and hands requests to the turn. `entropy(n)` returns n random bytes."""

    def __init__(
        self,
        config: CoreConfig,
        backlogs: Backlogs,
        turn: Turn,
        outbox: Outbox,
        commits: Commits,
        produce: ProduceHandler,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.config = config
        self.backlogs = backlogs
        self.turn = turn
        self.outbox = outbox
        self.commits = commits
        self.produce = produce
        self.entropy = entropy
        self.next_request_id = 1
        # Reads the requests of the most frequent APIs. What decodes those keeps no reference to it.
        self.reader = Reader(b"")

    def receive(self, session: Session, data: bytes, now: Now, start: int = 0, end: int = -1) -> None:
        """Handle the frames that have just arrived, unless they have to wait. -1: all of `data` from `start` on."""
        if session.state != OPEN:
            return
        frames: list[bytes] = []
        try:
            session.splitter.feed(data, frames, start, end)
        except FrameError as error:
            self._handle_fresh(session, frames, now)
            self.outbox.close(session, str(error), LIMIT if isinstance(error, FrameTooLarge) else PEER)
            return
        self._handle_fresh(session, frames, now)
        if self.backlogs.queue:
            self.resume(now)

    def resume(self, now: Now) -> None:
        """Handle the backlogs of queued sessions, within the turn's budget."""
        session = self.backlogs.next_session()
        while session is not None:
            try:
                self._handle_in_order(session, take_backlog(session), now, False)
            except Exception as fault:
                # The current event may belong to another session.
                if self.commits.has_failed():
                    raise
                self.outbox.fault(session, "requests that waited", fault)
            session = self.backlogs.next_session()

    def _handle_fresh(self, session: Session, frames: list[bytes], now: Now) -> None:
        """Handle frames that have just arrived."""
        if session.backlog:
            hold_back(session, frames)
        else:
            self._handle_in_order(session, frames, now, True)

    def _handle_in_order(self, session: Session, frames: list[bytes], now: Now, is_fresh: bool) -> None:
        backlogs = self.backlogs
        count = len(frames)
        index = 0
        while index < count:
            frame = frames[index]
            if (
                must_wait(session)
                or self._must_stall(session, frame)
                or not backlogs.has_room(session, frame, is_fresh)
            ):
                hold_back(session, frames[index:])
                break
            self._handle_frame(session, frame, now)
            backlogs.has_resumed = backlogs.has_resumed or not is_fresh
            index += 1
        if session.chunks:
            self.outbox.touch(session)

    def _must_stall(self, session: Session, frame: bytes) -> bool:
        """Whether the request has to wait until what was appended is written; the session is noted then."""
        is_full = self.commits.is_full()
        is_crowded = self.produce.is_crowded
        if not is_full and not is_crowded:
            return False
        api_key = int(read_i16_be(frame, 0))
        if not (is_full and api_key in APPENDING_APIS) and (
            not is_crowded or api_key != apis.PRODUCE or self.produce.has_room_for(len(frame), session.member_host)
        ):
            return False
        self.backlogs.stall(session)
        return True

    def _handle_frame(self, session: Session, frame: bytes, now: Now) -> None:
        """Decode one request and hand it to the turn; or close the connection."""
        api_key = int(read_i16_be(frame, 0))
        version = int(read_i16_be(frame, 2))
        correlation_id = int(read_i32_be(frame, 4))
        api = COMMON_APIS[api_key] if 0 <= api_key < COMMON_KEYS else apis.APIS.get(api_key)
        if api is None or not api.served:
            self.outbox.close(session, f"unknown api key {api_key}", PEER)
            return
        if version < api.min_version or version > api.max_version:
            if api_key == apis.API_VERSIONS:
                self.outbox.answer(session, correlation_id, api_key, 0, unsupported_api_versions(), 0)
            else:
                self.outbox.close(session, f"{api.name} version {version} is not supported", PEER)
            return
        try:
            is_frequent = api_key in (
                apis.OFFSET_COMMIT,
                apis.OFFSET_FETCH,
                apis.HEARTBEAT,
                apis.CONSUMER_GROUP_HEARTBEAT,
            )
            reader = self.reader if is_frequent else Reader(b"")
            reader.begin(frame, elements_max(self.config, api_key))
            read_header(session, reader, version >= api.flexible_version)
            if is_frequent and self.turn.handle_directly(
                session, correlation_id, api_key, version, reader, len(frame), now
            ):
                return
            body = server_codec.decode_request(api_key, reader, version)
            # Bytes after the body are ignored, as in a broker: to request all topics, librdkafka sends a null array
            # of four bytes, while flexible versions have one byte.
        except DecodeError as error:
            why = why_unreadable(error, api_key)
            kind = LIMIT if isinstance(error, TooManyElements) else PEER
            self.outbox.close(session, f"{api.name} version {version} cannot be read: {why}", kind)
            return
        except Exception as fault:
            # Not `error` again: compiled code gives a name one type per function.
            if self.commits.has_failed():
                raise
            self.outbox.fault(session, f"reading {api.name} version {version}", fault)
            return
        request_id = self.next_request_id
        self.next_request_id = request_id + 1
        request = Request(
            request_id,
            session.id,
            api_key,
            version,
            session.client_id,
            session.member_host,
            body,
            self.entropy(ENTROPY_BYTES) if api_key in ENTROPY_APIS else b"",
            session.host,
            session.port,
        )
        self.turn.handle_request(session, correlation_id, request, len(frame), now)


def read_header(session: Session, reader: Reader, flexible: bool) -> None:
    """Move the reader from the frame's beginning past the request header; the session gets the client id.

    Raises DecodeError.
    """
    frame = reader.buf
    size: i64 = i64(read_i16_be(frame, 8))
    end: i64 = 10
    if size > 0:
        end += size
        if end > len(frame):
            raise DecodeError("client id is cut short")
        raw = frame[10:end]
        if raw != session.client_id_bytes:
            try:
                session.client_id = raw.decode("utf-8")
            except UnicodeDecodeError:
                raise DecodeError("client id is not UTF-8") from None
            session.client_id_bytes = raw
    elif session.client_id_bytes:
        session.client_id_bytes = b""
        session.client_id = ""
    reader.pos = end
    if flexible:
        reader.skip_tags()


def why_unreadable(error: DecodeError, api_key: int) -> str:
    """What is wrong with a request, and what its user can do if it is only too large."""
    if not isinstance(error, TooManyElements):
        return str(error)
    return f"{error} ({ELEMENTS_SETTINGS.get(api_key, 'request.elements.max')})"
