"""One client connection: passes input to the engine, writes responses, and decides when not to read.

A transport may fail in any call, because a client may reset the connection at any time. So every call of a transport
runs inside `Connection._attempt`: it catches the exception and closes this connection only. Methods that the event loop
or the pump calls never raise.

The life cycle, and why its order matters:

1. `ConnectionCounts.admit` counts the connection before it exists, so the limits hold while many are being opened.
2. `connection_made` stores the transport and lets the pump open a session. Only then is `is_open` set: before that
   there is no session to close, and an error costs nothing but the socket.
3. `data_received` passes input on; `flush` writes the responses of a turn with one call.
4. `drop` and `abort` set `is_dropped` first, so nothing is read or written any more. They schedule `connection_lost`
   themselves instead of waiting for the transport: a broken transport may never report its end.
5. `connection_lost` may therefore run twice. It releases the session and the place in `ConnectionCounts` exactly once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast, final

from kcoord.core.outcome import PEER
from kcoord.server.listen.limits import plain_host
from kcoord.server.listen.request_log import RequestLog
from kcoord.server.listen.sending import IS_AVAILABLE, FileSender
from kcoord.server.settings.listeners import Listener, format_address
from kcoord.wire.file_range import FileRange

if TYPE_CHECKING:
    from kcoord.core.outcome import Fact, Now
    from kcoord.engine.session import Session
    from kcoord.server.listen.limits import ConnectionCounts
    from kcoord.server.logs import ServerLog
    from kcoord.server.settings.config import ServerConfig

# A read of up to this size goes to the engine at once: small requests of clients that send little.
SMALL_READ_BYTES: Final = 4096
# Of a larger read, the engine gets pieces of this size while other connections wait: what a client with some dozens of
# small requests in flight sends, 0.1 ms of native code or 1.5 of interpreted. Smaller pieces cut requests in two, and
# with them everybody waited longer. Of a larger request, all that has come is passed at once: cut, it is copied again.
PIECE_BYTES: Final = 8192
# Reading continues while no more than this is waiting, because only a read detects that the client has disconnected.
UNREAD_BYTES_MAX: Final = 8192


class Host(Protocol):
    """The interface of the pump for a connection. If a method raises, the connection is closed."""

    loop: asyncio.AbstractEventLoop
    config: ServerConfig
    log: ServerLog
    now: Callable[[], Now]
    counts: ConnectionCounts

    @property
    def debug_facts(self) -> list[Fact]: ...
    def connected(self, connection: Connection, host: str, port: int) -> None: ...
    def received(self, connection: Connection, data: bytes) -> None: ...
    def at_end(self, connection: Connection) -> None: ...
    def resume(self, connection: Connection) -> None: ...
    def disconnected(self, connection: Connection) -> None: ...


def has_file(pieces: list[bytes | FileRange]) -> bool:
    return any(isinstance(piece, FileRange) for piece in pieces)


@final
class Connection:
    """Created for an accepted socket that `ConnectionCounts` admitted; passes everything to the pump.

    It has the methods of an asyncio.Protocol. It does not inherit from it, so that it can be native code.
    """

    def __init__(self, pump: Host, listener: Listener, client_host: str) -> None:
        self.pump = pump
        self.config = pump.config
        self.listener = listener
        self.client_host = client_host
        self.transport: asyncio.Transport
        # The socket that the transport owns, if answers may be written to it directly; -1 otherwise. They are only
        # while the transport holds nothing, which `Session.buffered_bytes` tells.
        self.fd = -1
        # Set while the connection is open.
        self.session: Session
        # Whether `ConnectionCounts` counts it, and whether it has a session.
        self.is_counted = True
        self.is_made = False
        self.is_open = False
        # The connection ends: nothing is read from it or written to it any more.
        self.is_dropped = False
        # The client has closed its sending side.
        self.is_at_end = False
        # The server stops: nothing more is read.
        self.is_draining = False
        self.is_reading = True
        # It sends a lot, so others are read first (see ReadShares).
        self.is_held = False
        self.paused_since_ms = 0
        # The client reads responses more slowly than they are produced.
        self.is_output_full = False
        self.output_full_since_ms = 0
        # Bytes written in total, bytes that the client had taken at the last check, and the time of the last progress.
        self.written_bytes = 0
        self.taken_bytes = -1
        self.taken_since_ms = 0
        self.last_heard_ms = 0
        # The number of the sync that released its last answer, if it sent nothing since and may be waited for (see
        # Gathering).
        self.gathering = 0
        # When the incomplete frame at the end of the input began; -1 if there is none.
        self.frame_started_ms = -1
        self.pending_bytes = 0
        # Input that was read and waits for a later turn, from `unread_at` on.
        self.unread = b""
        self.unread_at = 0
        # Input that the session and `unread` hold: counted against the limit of all connections together.
        self.held_bytes = 0
        # Why the server ended the connection; empty if the client did.
        self.end_reason = ""
        # Only if the server logs at level debug.
        self.requests: RequestLog | None = None
        # From the first answer with a part of a file on; and whether the connection ends when all is sent.
        self.sender: FileSender | None = None
        self.closes = False

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being instances of it.
        self.transport = cast(asyncio.Transport, transport)
        self.is_made = True
        self._attempt(self._begin)

    def data_received(self, data: bytes) -> None:
        if self.is_open and not self.is_dropped:
            if self.requests is not None:
                self.requests.received(data, self.pump.now().mono_ms)
            self.pump.received(self, data)

    def eof_received(self) -> bool:
        """The client has closed its sending side. The transport stays open until its requests are answered."""
        self.is_at_end = True
        if self.is_open:
            self.pump.at_end(self)
        return self.is_open

    def pause_writing(self) -> None:
        self.is_output_full = True
        self.output_full_since_ms = self.pump.now().mono_ms
        self.update_reading()

    def resume_writing(self) -> None:
        self.is_output_full = False
        if self.sends_files() and not self.is_dropped:
            self._attempt(self._send_files)
        if self.is_open:
            self.session.note_buffered(self.unsent_bytes())
            if self.session.backlog:
                self.pump.resume(self)
        self.update_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended. May be called twice, because `abort` does not rely on the transport to call it."""
        self.is_dropped = True
        if self.sender is not None:
            self.sender.clear()
        if self.is_open:
            self.is_open = False
            if self.requests is not None:
                reason = self.session.close_reason or self.end_reason or str(error or "")
                self.requests.ended(reason, self.pump.now().mono_ms)
            self.pump.disconnected(self)
        self.release()

    # ---- called by the pump and the acceptor

    def flush(self) -> None:
        """Write the session's responses with one call; close the connection if the session is done."""
        # The same as `_attempt`, without an object for the step: this is called once for most requests.
        if not self.is_dropped:
            try:
                self._flush()
            except Exception as error:
                self.fail(error)

    def update_reading(self) -> None:
        """Pause or resume reading, depending on the waiting input and the unsent output."""
        if self.is_open and not self.is_dropped:
            try:
                self._update_reading()
            except Exception as error:
                self.fail(error)

    def unsent_bytes(self) -> int:
        """The output that the socket has not taken."""
        try:
            unsent = self.transport.get_write_buffer_size()
            return unsent if self.sender is None else unsent + self.sender.unsent_bytes
        except Exception:  # a broken transport sends nothing any more
            return 0

    def close(self, reason: str = "") -> None:
        """Close the connection after its output is written."""
        self.end_reason = self.end_reason or reason
        self._attempt(self._close)

    def drop(self, reason: str, kind: str = PEER) -> None:
        """Close the connection at once, and log the reason. `kind` is that of a `Fact`."""
        if not self.is_dropped:
            self.abort(reason)
            self.pump.log.warning_limited("connection_aborted", kind=kind, client=self.client_host, reason=reason)

    def abort(self, reason: str = "") -> None:
        """Close the connection at once, whatever the state of its transport. `reason` is for the log of requests."""
        if self.is_dropped:
            return
        self.end_reason = self.end_reason or reason
        self.is_dropped = True
        self.pump.loop.call_soon(self.connection_lost, None)
        try:
            self.transport.abort()
        except Exception:
            return  # the transport has ended already

    def release(self) -> None:
        """Release the place that `ConnectionCounts.admit` counted."""
        if self.is_counted:
            self.is_counted = False
            self.pump.counts.release(self.client_host)

    # ---- the transport

    def _attempt(self, step: Callable[[], None]) -> None:
        """Run a step that calls the transport. A failure closes this connection and affects no other."""
        try:
            step()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """A call of the transport has failed."""
        self.drop(f"the transport failed: {error!r}")

    def _begin(self) -> None:
        host, port = self.listener.advertised_host, self.listener.advertised_port
        if not host or not port:
            local = self.transport.get_extra_info("sockname")
            if local is None:
                raise ConnectionResetError("the connection was reset before it could be served")
            host, port = host or plain_host(local[0]), port or local[1]
        transport = self.transport
        transport.set_write_buffer_limits(high=self.config.output_high_bytes)
        self.pump.connected(self, host, port)
        self.is_open = True
        if self.pump.log.has_debug:
            self._log_requests()
        elif IS_AVAILABLE and self.transport is transport:
            # Not if something stands between the pump and the socket, as in tests.
            self.fd = transport.get_extra_info("socket").fileno()
            self.session.takes_files = True

    def _log_requests(self) -> None:
        address = self.transport.get_extra_info("peername")
        client = format_address(self.client_host, address[1]) if address else self.client_host
        self.requests = RequestLog(self.pump.debug_facts, self.session.id, client, self.pump.now().mono_ms)

    def _flush(self) -> None:
        session = self.session
        # Most turns have one answer for a connection, and it needs no list.
        answer = b"" if self.requests is not None or self.sends_files() else session.take_answer()
        if answer:
            if not self.transport.is_closing():
                self.written_bytes += len(answer)
                self._write(answer)
        else:
            self._flush_pieces()
        if self.is_dropped:
            return
        if session.close_reason and not session.chunks:
            self._close()
        self._update_reading()

    def _write(self, answer: bytes) -> None:
        """Write an answer to the socket, which takes it at once in most cases. The transport gets what is left."""
        sent = 0
        if self.fd >= 0 and self.session.buffered_bytes == 0:
            try:
                sent = os.write(self.fd, answer)
            except OSError:
                # The socket takes nothing now, or the connection has ended: the transport finds out.
                sent = 0
            if sent == len(answer):
                return
        self.transport.write(answer[sent:])
        self._note_unsent()

    def _flush_pieces(self) -> None:
        session = self.session
        owed = session.owed_bytes
        pieces = session.take_pieces()
        if not pieces or self.transport.is_closing():
            return
        self.written_bytes += owed - session.owed_bytes
        if self.requests is not None:
            self.requests.sent(cast(list[bytes], pieces), self.pump.now().mono_ms)
        if session.takes_files and (self.sends_files() or (len(pieces) > 1 and has_file(pieces))):
            self._begin_files(pieces)
        elif len(pieces) == 1:
            self.transport.write(cast(bytes, pieces[0]))
        else:
            self.transport.writelines(cast(list[bytes], pieces))
        self._note_unsent()

    def _note_unsent(self) -> None:
        buffered = self.unsent_bytes()
        self.session.note_buffered(buffered)
        # The usual answer is taken at once, and needs no look at the limit.
        if buffered and buffered > self.config.output_bytes_max:
            self.drop("the client does not read its responses")

    # ---- answers with parts of files

    def sends_files(self) -> bool:
        """Whether answers wait that contain parts of files, so all later ones wait, too."""
        return self.sender is not None and len(self.sender.pieces) > 0

    def _begin_files(self, pieces: list[bytes | FileRange]) -> None:
        sender = self.sender
        if sender is None:
            sender = self.sender = FileSender(self.transport, self.fd)
        if not sender.pieces:
            # The transport is to report whenever it has written everything.
            self.transport.set_write_buffer_limits(high=0)
            sender.add(pieces)
            self._send_files()
        else:
            sender.add(pieces)

    def _send_files(self) -> None:
        if self.sender is not None and self.sender.send():
            self.transport.set_write_buffer_limits(high=self.config.output_high_bytes)
            if self.closes:
                self.transport.close()

    def _close(self) -> None:
        """Close the connection once all is sent."""
        if self.sends_files():
            self.closes = True
        else:
            self.transport.close()

    def _update_reading(self) -> None:
        wanted = not (
            self.session.paused
            or self.is_output_full
            or self.is_held
            or len(self.unread) - self.unread_at > UNREAD_BYTES_MAX
            or self.is_at_end
            or self.is_draining
        )
        if wanted == self.is_reading or self.transport.is_closing():
            return
        self.is_reading = wanted
        now_ms = self.pump.now().mono_ms
        if wanted:
            # Time during which the server did not read does not count as idle.
            self.last_heard_ms = now_ms
            if self.frame_started_ms >= 0:
                self.frame_started_ms += now_ms - self.paused_since_ms
            self.transport.resume_reading()
        else:
            self.paused_since_ms = now_ms
            self.transport.pause_reading()

    # ---- input and limits

    def keep(self, data: bytes) -> None:
        """Keep input for a later turn, in order."""
        # Compiled, appending to nothing would copy.
        self.unread = self.unread[self.unread_at :] + data if self.unread else data
        self.unread_at = 0

    def take_piece(self) -> int:
        """Take the next piece of the waiting input, from `unread_at` on, for the engine. Returns where it ends."""
        start = self.unread_at
        end = start + max(PIECE_BYTES, self.session.splitter.frame_bytes(self.unread, start))
        size = len(self.unread)
        if end < size:
            self.unread_at = end
            return end
        self.forget_unread()
        return size

    def lacks_bytes(self) -> int:
        """The missing bytes of the incomplete request, if its size is known."""
        return self.session.splitter.missing_bytes() - len(self.unread) + self.unread_at

    def forget_unread(self) -> None:
        self.unread = b""
        self.unread_at = 0

    def note_input(self, size: int, now_ms: int) -> int:
        """Track incomplete frames after `size` bytes arrived. Returns by how much `held_bytes` changed."""
        session = self.session
        self.last_heard_ms = now_ms
        pending = session.splitter.pending_bytes()
        if pending == 0:
            self.frame_started_ms = -1
        elif pending != self.pending_bytes + size or self.pending_bytes == 0:
            # A frame was completed, or there was none: the incomplete one is new.
            self.frame_started_ms = now_ms
        self.pending_bytes = pending
        return self.note_held()

    def note_held(self) -> int:
        held = self.pending_bytes + self.session.backlog_bytes + len(self.unread) - self.unread_at
        change = held - self.held_bytes
        self.held_bytes = held
        return change

    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not read."""
        return self.session.owed_bytes + self.session.buffered_bytes

    def _takes_nothing(self, now_ms: int) -> int:
        """For how many milliseconds the client has read nothing of its buffered responses."""
        buffered = self.unsent_bytes()
        self.session.note_buffered(buffered)
        taken = self.written_bytes - buffered
        if taken != self.taken_bytes or not buffered:
            self.taken_bytes = taken
            self.taken_since_ms = now_ms
        return now_ms - self.taken_since_ms

    def overdue(self, now_ms: int) -> str:
        """The reason to close the connection, or an empty string."""
        config = self.config
        session = self.session
        if session.buffered_bytes and self._takes_nothing(now_ms) > config.output_deadline_ms and session.pool.is_tight:
            return "the client does not read its responses (output.deadline.ms)"
        if self.is_output_full and now_ms - self.output_full_since_ms > config.idle_ms:
            return "the client does not read its responses (connections.max.idle.ms)"
        if self.is_at_end and session.buffered_bytes and self._takes_nothing(now_ms) > config.idle_ms:
            return "the client does not read its responses (connections.max.idle.ms)"
        if not self.is_reading or self.unread:
            return ""
        if self.frame_started_ms >= 0 and now_ms - self.frame_started_ms > config.frame_deadline_ms:
            return f"a request is incomplete after {self.pending_bytes} bytes (frame.deadline.ms)"
        if now_ms - self.last_heard_ms > config.idle_ms and not (
            session.parked_request_id or session.chunks or session.backlog
        ):
            return "the connection was idle (connections.max.idle.ms)"
        return ""
