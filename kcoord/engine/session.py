"""The engine's side of a connection: frames in, answers out, in order.

Requests of a session are handled and answered in order. One that waits for an outside event (a rebalance, data to
fetch) holds the later ones back, so at most one request per session is parked. Answers that wait for the disk do not
hold anything back: they form chunks, each with the commit it waits for, released from the front.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.frame import FrameLimits, FrameSplitter
from kcoord.wire.primitives import BytesWriter

# A session that is owed more than this is not read, and nothing more is handled for it, until answers went out.
OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
# A session with more held back than this is not read.
BACKLOG_FRAMES_MAX: Final = 1000
BACKLOG_BYTES_MAX: Final = 1024 * 1024
# Chunks larger than this are closed, so that a writer does not grow without end within one turn.
CHUNK_BYTES_MAX: Final = 1024 * 1024


@final
class Chunk:
    """Encoded answers that go out together once the commit `wait_seq` is durable."""

    def __init__(self, wait_seq: int) -> None:
        self.wait_seq = wait_seq
        self.writer = BytesWriter()

    def cut(self, size: int) -> None:
        """Take back what was written after the first `size` bytes."""
        kept = self.writer.getvalue()[:size]
        self.writer = BytesWriter()
        self.writer.write(kept)


@final
class Session:
    """One connection. `host` and `port` are what its listener advertises."""

    def __init__(self, session_id: int, client_host: str, host: str, port: int, limits: FrameLimits) -> None:
        self.id = session_id
        self.client_host = client_host
        # As groups show and store it: Java writes addresses with a slash in front.
        self.member_host = f"/{client_host}"
        self.host = host
        self.port = port
        self.splitter = FrameSplitter(limits)
        # Frames that wait: for the parked request to be answered, for output to be taken, for a commit to be written.
        self.backlog: list[bytes] = []
        self.backlog_bytes = 0
        self.parked_request_id = 0
        self.chunks: list[Chunk] = []
        self.output: list[bytes] = []
        # Bytes in chunks and output.
        self.owed_bytes = 0
        # Set once the session must end: output so far is written, then the connection is closed.
        self.close_reason = ""
        self.closed = False
        # Whether the session stands in the engine's list of sessions with output, or in that of waiting ones.
        self.is_ready = False
        self.is_waiting = False
        # Whether its next request waits until what was appended is written.
        self.is_stalled = False
        self.client_id_bytes = b""
        self.client_id = ""

    @property
    def paused(self) -> bool:
        """Whether the server should stop reading from the connection for now."""
        return (
            len(self.backlog) > BACKLOG_FRAMES_MAX
            or self.backlog_bytes > BACKLOG_BYTES_MAX
            or self.owed_bytes > OUTPUT_BYTES_MAX
        )

    def chunk_for(self, wait_seq: int) -> Chunk:
        """The chunk that an answer waiting for `wait_seq` belongs to, after everything answered before."""
        chunks = self.chunks
        if chunks:
            last = chunks[-1]
            if last.wait_seq >= wait_seq and len(last.writer) < CHUNK_BYTES_MAX:
                return last
            if last.wait_seq > wait_seq:
                wait_seq = last.wait_seq
        chunk = Chunk(wait_seq)
        chunks.append(chunk)
        return chunk

    def release(self, durable_seq: int) -> bool:
        """Move the chunks that wait for nothing any more to the output; whether there were any."""
        chunks = self.chunks
        count = 0
        for chunk in chunks:
            if chunk.wait_seq > durable_seq:
                break
            self.output.append(chunk.writer.getvalue())
            count += 1
        if count == 0:
            return False
        del chunks[:count]
        return True

    def take_output(self) -> bytes:
        """Everything that may be written now, as one piece."""
        output = self.output
        if not output:
            return b""
        data = output[0] if len(output) == 1 else b"".join(output)
        self.output = []
        self.owed_bytes -= len(data)
        return data
