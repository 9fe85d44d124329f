"""The engine's side of a connection: frames in, answers out, in order.

Requests of a session are handled and answered in order. One that waits for an outside event (a rebalance, data to
fetch) delays the later ones, so at most one request per session is parked. Answers that wait for the disk delay no
request: they form chunks, each with the commit that it waits for, and are released in order.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.transitions import IllegalTransition
from kcoord.engine.request_head import RequestHead
from kcoord.wire.file_range import FileRange
from kcoord.wire.frame import FrameLimits, FrameSplitter
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Splices, i64

# A session with more bytes of unsent responses than this is not read, and none of its requests is handled.
OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
# A session with more bytes of waiting frames than this is not read.
BACKLOG_FRAMES_MAX: Final = 1000
BACKLOG_BYTES_MAX: Final = 1024 * 1024
# Chunks larger than this are closed, so that a writer does not grow without end within one turn.
CHUNK_BYTES_MAX: Final = 1024 * 1024
# A session keeps its last chunk for the next answer if that had no more bytes than this.
SPARE_BYTES_MAX: Final = 512
# Free bytes of a pool without a limit.
UNLIMITED_BYTES: Final = 1 << 62

# The life of a session.
#   Open    requests are handled
#   Ending  no further request is handled; earlier answers are still sent, and then the connection is closed
#   Closed  the connection is closed, and its unsent answers are dropped
OPEN: Final = 1
ENDING: Final = 2
CLOSED: Final = 3
STATE_NAMES: Final[dict[int, str]] = {OPEN: "Open", ENDING: "Ending", CLOSED: "Closed"}
# From each state, the states that may follow. A client may close its connection at any time.
TRANSITIONS: Final[dict[int, tuple[int, ...]]] = {OPEN: (ENDING, CLOSED), ENDING: (CLOSED,), CLOSED: ()}


@final
class OutputPool:
    """What all answers together hold: bytes that wait for a commit, for the loop or for their client to read."""

    def __init__(self, bytes_max: int = 0) -> None:
        # 0: without a limit.
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def free_bytes(self) -> int:
        return max(0, self.bytes_max - self.held_bytes) if self.bytes_max else UNLIMITED_BYTES

    @property
    def is_tight(self) -> bool:
        """Whether more than half of the pool is taken: slow readers are not waited for as long then."""
        return 0 < self.bytes_max < 2 * self.held_bytes

    @property
    def is_overdrawn(self) -> bool:
        """Whether answers that do not shrink as the pool empties took more than it has."""
        return 0 < self.bytes_max < self.held_bytes


@final
class Chunk:
    """Encoded answers that go out together once the commit `wait_seq` is durable."""

    def __init__(self, wait_seq: int) -> None:
        self.wait_seq = wait_seq
        self.writer = BytesWriter()
        # Where the answer starts that is being written.
        self.answer_start: i64 = 0
        # Records that are not copied into the writer; None until there are any.
        self.splices: Splices | None = None

    def size_bytes(self) -> int:
        splices = self.splices
        return len(self.writer) if splices is None else len(self.writer) + splices.bytes

    def pieces(self) -> list[bytes | FileRange]:
        data = self.writer.getvalue()
        return [data] if self.splices is None else self.splices.pieces(data)

    def cut(self, size: int) -> None:
        """Take back what was written after the first `size` bytes of the writer."""
        self.writer.truncate(size)
        if self.splices is not None:
            self.splices.cut(size)


@final
class Session:
    """One connection. `host` and `port` are what its listener advertises."""

    def __init__(
        self,
        session_id: int,
        client_host: str,
        host: str,
        port: int,
        limits: FrameLimits,
        pool: OutputPool | None = None,
    ) -> None:
        self.id = session_id
        # The server's connection, which writes the answers. The engine does not use it.
        self.owner: object | None = None
        self.client_host = client_host
        # The form that groups show and store: Java prints addresses with a leading slash.
        self.member_host = f"/{client_host}"
        self.host = host
        self.port = port
        self.splitter = FrameSplitter(limits)
        # Frames that wait: for the parked request to be answered, for output to be taken, for a commit to be written.
        self.backlog: list[bytes] = []
        self.backlog_bytes = 0
        self.parked_request_id = 0
        self.chunks: list[Chunk] = []
        # An empty chunk, to be the next one.
        self.spare: Chunk | None = None
        # What may be written: first `answer`, which is all that most turns have for a session, then `output`.
        self.answer = b""
        self.output: list[bytes | FileRange] = []
        # Whether `take_pieces` may contain parts of files. The server decides, when the session begins.
        self.takes_files = False
        self.pool = OutputPool() if pool is None else pool
        # Bytes in chunks, answer and output, and the bytes that the server has taken and not sent yet.
        self.owed_bytes = 0
        self.buffered_bytes = 0
        self.state = OPEN
        # Why the session ends; empty for one that is open, or whose client closed the connection.
        self.close_reason = ""
        # Whether the session is in the engine's list of sessions with output, or in that of waiting ones.
        self.is_ready = False
        self.is_waiting = False
        # Whether its next request waits until what was appended is written.
        self.is_stalled = False
        # Whether the session is in the queue of sessions whose backlog is handled next.
        self.is_queued = False
        self.client_id_bytes = b""
        self.client_id = ""
        # How its last OffsetCommit and Heartbeat began, and what is remembered with that.
        self.commit_head: RequestHead | None = None
        self.heartbeat_head: RequestHead | None = None

    def _transition_to(self, state: int) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"session {self.id}", STATE_NAMES[self.state], STATE_NAMES[state])
        self.state = state

    def end(self, reason: str) -> None:
        """No further request is handled. Raises IllegalTransition unless the session is open."""
        self._transition_to(ENDING)
        self.close_reason = reason

    def close(self) -> None:
        """The connection is closed: drop its requests and answers. Raises IllegalTransition if it was closed before."""
        self._transition_to(CLOSED)
        self.backlog.clear()
        self.drop_output()
        # The outbox may know the session for as long as a sync takes.
        self.commit_head = None
        self.heartbeat_head = None

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
            if last.wait_seq >= wait_seq and last.size_bytes() < CHUNK_BYTES_MAX:
                return last
            if last.wait_seq > wait_seq:
                wait_seq = last.wait_seq
        chunk = self.spare
        if chunk is None:
            chunk = Chunk(wait_seq)
        else:
            self.spare = None
            chunk.wait_seq = wait_seq
        chunks.append(chunk)
        return chunk

    def release(self, durable_seq: int) -> bool:
        """Move the chunks that wait for nothing any more to what may be written; whether there were any."""
        chunks = self.chunks
        if len(chunks) == 1 and not self.answer and not self.output:
            chunk = chunks[0]
            if chunk.wait_seq > durable_seq:
                return False
            if chunk.splices is None:
                self.answer = chunk.writer.getvalue()
                chunks.clear()
                if len(chunk.writer) <= SPARE_BYTES_MAX:
                    chunk.writer.truncate(0)
                    self.spare = chunk
                return True
        count = 0
        for chunk in chunks:
            if chunk.wait_seq > durable_seq:
                break
            self.output.extend(chunk.pieces())
            count += 1
        if count == 0:
            return False
        del chunks[:count]
        return True

    def owe(self, size: int) -> None:
        """So many bytes of answers came up."""
        self.owed_bytes += size
        self.pool.held_bytes += size

    def has_output(self) -> bool:
        """Whether something may be written now."""
        return len(self.answer) > 0 or len(self.output) > 0

    def take_answer(self) -> bytes:
        """Take `answer` if it is all that may be written. Otherwise b"", and nothing is taken."""
        answer = self.answer
        if not answer or self.output:
            return b""
        self.answer = b""
        self.owe(-len(answer))
        return answer

    def take_pieces(self) -> list[bytes | FileRange]:
        """Take everything that may be written now. The caller reports to note_buffered what the client has not read.

        All pieces are bytes unless `takes_files`.
        """
        output = self.output
        if self.answer:
            output.insert(0, self.answer)
            self.answer = b""
        if not output:
            return output
        self.output = []
        size = 0
        for piece in output:
            size += len(piece)
        self.owe(-size)
        return output

    def take_bytes(self) -> bytes:
        """The same as bytes. Raises OSError."""
        return b"".join([piece.read() if isinstance(piece, FileRange) else piece for piece in self.take_pieces()])

    def note_buffered(self, size: int) -> None:
        """Of what was taken, so many bytes are still in the server's memory."""
        if size != self.buffered_bytes:
            self.pool.held_bytes += size - self.buffered_bytes
            self.buffered_bytes = size

    def drop_output(self) -> None:
        """The connection is closed: drop its answers."""
        self.chunks.clear()
        self.answer = b""
        self.output.clear()
        self.owe(-self.owed_bytes)
        self.note_buffered(0)


@final
class PendingRequest:
    """A request that is not answered yet. `body` is what it asks, while it is handled; a parked one keeps none."""

    def __init__(
        self, request_id: int, session: Session, correlation_id: int, api_key: int, version: int, body: Message | None
    ) -> None:
        self.request_id = request_id
        self.session = session
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.body = body
