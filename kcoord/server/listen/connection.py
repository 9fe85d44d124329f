"""One client connection: bytes in to the engine, answers out, and when not to read.

A transport may fail at any call: a peer that resets its connection decides when. So every call of a transport is made
inside `Connection._attempt`, where its exceptions end and cost this connection; methods that the event loop or the
pump call never raise. What a connection holds is given back in `connection_lost`, once, whoever reports the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast, final

from kcoord.server.listen.limits import plain_host
from kcoord.server.listen.listener import Listener

if TYPE_CHECKING:
    from kcoord.engine.session import Session
    from kcoord.server.pump import Pump

# A read of so much goes to the engine at once: small requests of clients that send little.
SMALL_READ_BYTES: Final = 4096
# Of more, the engine gets so much at a time while others wait: some dozens of small requests, a millisecond of work.
# What completes a larger request comes at once.
PIECE_BYTES: Final = 2048
# A connection is read on while no more than this waits, for then we learn when its client is gone.
UNREAD_BYTES_MAX: Final = 8192


@final
class Connection(asyncio.Protocol):
    """Created for an accepted socket that `ConnectionCounts` let in; hands everything to the pump."""

    def __init__(self, pump: Pump, listener: Listener, client_host: str) -> None:
        self.pump = pump
        self.listener = listener
        self.client_host = client_host
        self.transport: asyncio.Transport
        # There once the connection is open.
        self.session: Session
        # Whether it has a place among the connections, and whether it has a transport.
        self.is_counted = True
        self.is_made = False
        self.is_open = False
        # It ends: nothing is read from it or written to it any more.
        self.is_dropped = False
        # The client sends no more.
        self.is_at_end = False
        self.is_reading = True
        # It may send much, and others are read first (see ReadShares).
        self.is_held = False
        self.paused_since_ms = 0
        # The client takes answers more slowly than they come.
        self.is_output_full = False
        self.output_full_since_ms = 0
        # What was written in all, how much of that the client has taken when we last looked, and since when no more.
        self.written_bytes = 0
        self.taken_bytes = -1
        self.taken_since_ms = 0
        self.last_heard_ms = 0
        # When the incomplete frame at the end of the input began; -1 when there is none.
        self.frame_started_ms = -1
        self.pending_bytes = 0
        # What was read and waits for a later turn, from `unread_at` on.
        self.unread = b""
        self.unread_at = 0
        # Input that the session and `unread` hold: counted against the limit of all connections together.
        self.held_bytes = 0

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being instances of it.
        self.transport = cast(asyncio.Transport, transport)
        self.is_made = True
        self._attempt(self._begin)

    def data_received(self, data: bytes) -> None:
        if self.is_open and not self.is_dropped:
            self.pump.received(self, data)

    def eof_received(self) -> bool:
        """The client sends no more. The transport stays open until what it sent is handled and answered."""
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
        if self.is_open:
            self.session.note_buffered(self.unsent_bytes())
            if self.session.backlog:
                self.pump.go_on(self)
        self.update_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The end. It may be reported twice: `abort` does not rely on a broken transport to report its own."""
        self.is_dropped = True
        if self.is_open:
            self.is_open = False
            self.pump.disconnected(self)
        self.release()

    # ---- called by the pump and the acceptor

    def flush(self) -> None:
        """Write what the session has to say, once; close if it is done."""
        if not self.is_dropped:
            self._attempt(self._flush)

    def update_reading(self) -> None:
        """Read from the client unless it, or we, have enough to do."""
        if self.is_open and not self.is_dropped:
            self._attempt(self._update_reading)

    def unsent_bytes(self) -> int:
        """What the transport still holds of the output."""
        try:
            return self.transport.get_write_buffer_size()
        except Exception:  # a broken transport sends nothing any more
            return 0

    def close(self) -> None:
        """End the connection when its output is written."""
        self._attempt(self.transport.close)

    def drop(self, reason: str) -> None:
        """End the connection at once, and log why."""
        if not self.is_dropped:
            self.abort()
            self.pump.log.warning_limited("connection_aborted", client=self.client_host, reason=reason)

    def abort(self) -> None:
        """End the connection at once, whatever state its transport is in."""
        if self.is_dropped:
            return
        self.is_dropped = True
        self.pump.loop.call_soon(self.connection_lost, None)
        try:
            self.transport.abort()
        except Exception:
            return  # it has ended already

    def release(self) -> None:
        """Give back the place among the connections that `ConnectionCounts.admit` gave."""
        if self.is_counted:
            self.is_counted = False
            self.pump.counts.release(self.client_host)

    # ---- the transport

    def _attempt(self, step: Callable[[], None]) -> None:
        """Run a step that calls the transport. Its failure costs this connection and nobody else."""
        try:
            step()
        except Exception as error:
            self.drop(f"its transport failed: {error!r}")

    def _begin(self) -> None:
        host, port = self.listener.advertised_host, self.listener.advertised_port
        if not host or not port:
            local = self.transport.get_extra_info("sockname")
            if local is None:
                raise ConnectionResetError("it was reset before it could be served")
            host, port = host or plain_host(local[0]), port or local[1]
        self.transport.set_write_buffer_limits(high=self.pump.config.output_high_bytes)
        self.pump.connected(self, host, port)
        self.is_open = True

    def _flush(self) -> None:
        session = self.session
        owed = session.owed_bytes
        pieces = session.take_pieces()
        if pieces and not self.transport.is_closing():
            self.written_bytes += owed - session.owed_bytes
            if len(pieces) == 1:
                self.transport.write(pieces[0])
            else:
                self.transport.writelines(pieces)
            buffered = self.transport.get_write_buffer_size()
            session.note_buffered(buffered)
            if buffered > self.pump.config.output_bytes_max:
                self.drop("it does not read its answers")
                return
        if session.close_reason and not session.chunks:
            self.transport.close()
        self._update_reading()

    def _update_reading(self) -> None:
        wanted = not (
            self.session.paused
            or self.is_output_full
            or self.is_held
            or len(self.unread) - self.unread_at > UNREAD_BYTES_MAX
            or self.is_at_end
            or self.pump.is_draining
        )
        if wanted == self.is_reading or self.transport.is_closing():
            return
        self.is_reading = wanted
        now_ms = self.pump.now().mono_ms
        if wanted:
            # The time that we did not read is not held against the client.
            self.last_heard_ms = now_ms
            if self.frame_started_ms >= 0:
                self.frame_started_ms += now_ms - self.paused_since_ms
            self.transport.resume_reading()
        else:
            self.paused_since_ms = now_ms
            self.transport.pause_reading()

    # ---- input and limits

    def keep(self, data: bytes) -> None:
        """Have bytes wait for a later turn, in order."""
        self.unread = self.unread[self.unread_at :] + data
        self.unread_at = 0

    def take_piece(self) -> bytes:
        """The next bytes for the engine of those that wait."""
        start = self.unread_at
        end = start + max(PIECE_BYTES, self.session.splitter.missing_bytes())
        piece = self.unread[start:end]
        if end < len(self.unread):
            self.unread_at = end
        else:
            self.forget_unread()
        return piece

    def lacks_bytes(self) -> int:
        """What the request that has begun still lacks, as far as its size is known."""
        return self.session.splitter.missing_bytes() - len(self.unread) + self.unread_at

    def forget_unread(self) -> None:
        self.unread = b""
        self.unread_at = 0

    def note_input(self, size: int, now_ms: int) -> int:
        """Keep track of incomplete frames after `size` bytes came in; by how much the held bytes changed."""
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
        """Bytes of answers that the client has not taken."""
        return self.session.owed_bytes + self.session.buffered_bytes

    def _takes_nothing(self, now_ms: int) -> int:
        """For how many milliseconds the client has taken nothing of what is buffered for it."""
        buffered = self.unsent_bytes()
        self.session.note_buffered(buffered)
        taken = self.written_bytes - buffered
        if taken != self.taken_bytes or not buffered:
            self.taken_bytes = taken
            self.taken_since_ms = now_ms
        return now_ms - self.taken_since_ms

    def overdue(self, now_ms: int) -> str:
        """Why the connection has to go, or an empty string."""
        config = self.pump.config
        session = self.session
        if session.buffered_bytes and self._takes_nothing(now_ms) > config.output_deadline_ms and session.pool.is_tight:
            return "it does not read its answers (output.deadline.ms)"
        if self.is_output_full and now_ms - self.output_full_since_ms > config.idle_ms:
            return "it does not read its answers (connections.max.idle.ms)"
        if not self.is_reading or self.unread:
            return ""
        if self.frame_started_ms >= 0 and now_ms - self.frame_started_ms > config.frame_deadline_ms:
            return f"its request of {self.pending_bytes} bytes so far is not complete (frame.deadline.ms)"
        if now_ms - self.last_heard_ms > config.idle_ms and not (
            session.parked_request_id or session.chunks or session.backlog
        ):
            return "it was idle (connections.max.idle.ms)"
        return ""
