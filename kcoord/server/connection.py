"""One client connection: bytes in to the engine, answers out, and when not to read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast, final

from kcoord.server.limits import plain_host
from kcoord.server.listener import Listener

if TYPE_CHECKING:
    from kcoord.engine.session import Session
    from kcoord.server.pump import Pump


@final
class Connection(asyncio.Protocol):
    """Created for an accepted socket; hands everything to the pump."""

    def __init__(self, pump: Pump, listener: Listener, client_host: str) -> None:
        self.pump = pump
        self.listener = listener
        self.client_host = client_host
        self.transport: asyncio.Transport
        self.session: Session
        self.is_open = False
        self.is_reading = True
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
        # Input that the session holds: counted against the limit of all connections together.
        self.held_bytes = 0

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        host, port = self.listener.advertised_host, self.listener.advertised_port
        local = transport.get_extra_info("sockname")
        if not host:
            host = plain_host(local[0])
        if not port:
            port = local[1]
        self.transport.set_write_buffer_limits(high=self.pump.config.output_high_bytes)
        self.is_open = True
        self.pump.connected(self, host, port)

    def data_received(self, data: bytes) -> None:
        self.pump.received(self, data)

    def pause_writing(self) -> None:
        self.is_output_full = True
        self.output_full_since_ms = self.pump.now().mono_ms
        self.update_reading()

    def resume_writing(self) -> None:
        self.is_output_full = False
        self.session.note_buffered(self.transport.get_write_buffer_size())
        if self.session.backlog:
            self.pump.go_on(self)
        self.update_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self.pump.disconnected(self)

    # ---- called by the pump

    def flush(self) -> None:
        """Write what the session has to say, once; close if it is done."""
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
                self.pump.log.warning_limited(
                    "connection_aborted", client=self.client_host, reason="it does not read its answers"
                )
                self.transport.abort()
                return
        if session.close_reason and not session.chunks:
            self.transport.close()
        self.update_reading()

    def update_reading(self) -> None:
        """Read from the client unless it, or we, have enough to do."""
        wanted = not (self.session.paused or self.is_output_full or self.pump.is_draining)
        if wanted == self.is_reading or self.transport.is_closing():
            return
        self.is_reading = wanted
        if wanted:
            # The time that we did not read is not held against the client.
            now_ms = self.pump.now().mono_ms
            self.last_heard_ms = now_ms
            if self.frame_started_ms >= 0:
                self.frame_started_ms = now_ms
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

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
        held = self.pending_bytes + self.session.backlog_bytes
        change = held - self.held_bytes
        self.held_bytes = held
        return change

    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        return self.session.owed_bytes + self.session.buffered_bytes

    def _takes_nothing(self, now_ms: int) -> int:
        """For how many milliseconds the client has taken nothing of what is buffered for it."""
        buffered = self.transport.get_write_buffer_size()
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
        if not self.is_reading:
            return ""
        if self.frame_started_ms >= 0 and now_ms - self.frame_started_ms > config.frame_deadline_ms:
            return f"its request of {self.pending_bytes} bytes so far is not complete (frame.deadline.ms)"
        if now_ms - self.last_heard_ms > config.idle_ms and not (
            session.parked_request_id or session.chunks or session.backlog
        ):
            return "it was idle (connections.max.idle.ms)"
        return ""
