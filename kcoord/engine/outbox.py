"""The outbox: from an answer to the bytes that a connection may send.

An answer is encoded at once, into a chunk of its session, and names the commit that must be durable before it may
leave. What must hold, and why it does:

1. *No answer leaves before its commit is durable.* An answer that reports a change waits for the commit its records
   belong to. An answer that shows something waits for the commit that holds what it shows. All others wait for commit
   0, which is always durable. `release` moves a chunk to the session's output only once `durable_seq` has reached the
   number of the chunk, and `durable_seq` moves only when all files of a commit are synced, or written where log.sync
   promises no more (see commits.py).
2. *The answers of a session leave in the order of its requests.* The intake hands over one unanswered request of a
   session at a time, so answers come here in order. Chunks are released from the front only. An answer that waits for
   less than the chunk before it either joins that chunk or starts a chunk with the same number. So the numbers of a
   session's chunks never decrease, and a chunk that may leave never waits for one that may not.
3. *An answer shows the state at the time of its encoding.* Messages may share lists with the state, and the next event
   may change those lists. So an answer is encoded before the next event is handled, and not when it leaves. The only
   exception are answers of one event to hundreds of requests (`Applier.late_replies`), which share nothing.
4. *A chunk is all or nothing.* If an answer cannot be encoded, its bytes are removed from the chunk and its session
   ends; answers of the same event to other sessions are not affected. If a chunk cannot be released, the session ends
   without the remaining ones: a client can handle a closed connection, but not a gap in the answers.
5. *The answers of a closed session are dropped* with its chunks, while the records that they report stay. The client
   must be prepared for a lost response anyway.

A session that ends because of an error (`close`) still sends earlier answers, so that the client gets the answers to
all requests before the one that failed. The server closes the connection after the last chunk has left.
"""

from __future__ import annotations

import traceback
from typing import Final, cast, final

from kcoord.core.outcome import BUG, ERROR, PEER, WARNING, Fact
from kcoord.engine.budget import TurnBudget
from kcoord.engine.commits import Commits
from kcoord.engine.session import CLOSED, ENDING, OPEN, Chunk, Session
from kcoord.protocol import apis, server_codec
from kcoord.protocol.fetch import FetchResponse, encode_fetch_response
from kcoord.protocol.offset_fetch import OffsetFetchResponse, encode_offset_fetch_response
from kcoord.protocol.produce import ProduceResponse
from kcoord.wire.file_range import FileRanges
from kcoord.wire.message import Message
from kcoord.wire.primitives import Splices, i64, patch_int32, write_i32_be

# Response headers from this version on have tagged fields; kcoord sends none.
FLEXIBLE_HEADER: Final = 1


@final
class Outbox:
    """All answers that have not been taken by the server yet."""

    def __init__(self, budget: TurnBudget, commits: Commits, ranges: FileRanges | None = None) -> None:
        self.budget = budget
        self.commits = commits
        # The records in files that the next answer to a fetch contains.
        self.ranges = ranges
        # Facts for the server's log, until the engine hands them over.
        self.facts: list[Fact] = []
        # Sessions with output.
        self.ready: list[Session] = []
        # Sessions that the next release looks at, and those of which the last one left something that waits for a
        # commit. These have nothing to release before `durable_seq` has moved; those that were closed meanwhile are
        # forgotten then. `is_waiting` is set for both.
        self.touched: list[Session] = []
        self.held: list[Session] = []
        self.released_seq = 0
        # Tests want bugs to surface.
        self.strict = False

    def answer(
        self,
        session: Session,
        correlation_id: int,
        api_key: int,
        version: int,
        response: Message,
        wait_seq: int,
    ) -> None:
        """Encode an answer that may leave once commit `wait_seq` is durable (0: at once)."""
        is_flexible = apis.APIS[api_key].response_header_version(version) == FLEXIBLE_HEADER
        chunk = self.begin_answer(session, correlation_id, is_flexible, wait_seq)
        w = chunk.writer
        spliced = 0
        try:
            if api_key == apis.FETCH or api_key == apis.OFFSET_FETCH:
                splices = chunk.splices
                if splices is None:
                    splices = chunk.splices = Splices(self.ranges, session.takes_files)
                spliced -= splices.bytes
                if api_key == apis.FETCH:
                    encode_fetch_response(w, cast(FetchResponse, response), version, splices)
                else:
                    encode_offset_fetch_response(w, cast(OffsetFetchResponse, response), version, splices)
                spliced += splices.bytes
            else:
                server_codec.encode_response(w, api_key, response, version)
        except Exception as error:
            # One event may answer many requests: if one cannot be answered, the others must still get their answers.
            chunk.cut(int(chunk.answer_start))
            self.fault(session, f"an answer of {apis.APIS[api_key].name} version {version}", error)
            return
        finally:
            if self.ranges is not None:
                self.ranges.clear()
        self.end_answer(session, chunk, spliced)
        if api_key == apis.OFFSET_FETCH:
            # Metadata is encoded here; records were charged when they were read.
            self.budget.charge_read(spliced, 0)

    def begin_answer(self, session: Session, correlation_id: int, is_flexible: bool, wait_seq: int) -> Chunk:
        """Begin an answer with its size and header. Its body is next in the chunk's writer, and then `end_answer`."""
        chunk = session.chunk_for(wait_seq if wait_seq > self.commits.durable_seq else 0)
        w = chunk.writer
        chunk.answer_start = len(w)
        write_i32_be(w, 0)
        write_i32_be(w, correlation_id)
        if is_flexible:
            w.append(0)
        return chunk

    def end_answer(self, session: Session, chunk: Chunk, spliced: int) -> None:
        """The answer's body is written, apart from `spliced` bytes that are not copied."""
        w = chunk.writer
        start = chunk.answer_start
        copied: i64 = len(w) - start
        patch_int32(w, start, copied + i64(spliced) - 4)
        session.owe(int(copied) + spliced)
        self.budget.charge_answer(int(copied))

    def close(self, session: Session, reason: str, kind: str) -> None:
        """End a session: what was answered before still goes out. `kind` is PEER or LIMIT (see Fact)."""
        if session.state == OPEN:
            fields: dict[str, object] = {"client": session.client_host, "reason": reason}
            self.facts.append(Fact(WARNING, "connection_refused", fields, kind))
            self._end(session, reason)

    def _end(self, session: Session, reason: str) -> None:
        session.end(reason)
        self.touch(session)

    def check_unacknowledged(self, session: Session, response: ProduceResponse) -> None:
        """acks=0 gets no answer; a closed connection is the only way to report an error."""
        for topic in response.responses:
            for partition in topic.partition_responses:
                if partition.error_code != 0:
                    self.close(session, f"Produce without acks failed with error {partition.error_code}", PEER)
                    return

    def fault(self, session: Session, where: str, error: Exception) -> None:
        """Handle an internal error in a request of this session. To be called while the exception is handled."""
        if self.strict:
            raise error
        reason = f"internal error in {where}: {error!r}"
        fields: dict[str, object] = {"client": session.client_host, "reason": reason}
        fields["traceback"] = traceback.format_exc()
        self.facts.append(Fact(ERROR, "internal_error", fields, BUG))
        if session.state == OPEN:
            self._end(session, reason)

    def touch(self, session: Session) -> None:
        """Look at the session at the next release."""
        if not session.is_waiting:
            session.is_waiting = True
            self.touched.append(session)

    def release(self) -> None:
        """Move answers that wait for nothing any more to their sessions' output."""
        durable = self.commits.durable_seq
        sessions = self.touched
        if durable != self.released_seq:
            self.released_seq = durable
            if self.held:
                sessions = self.held + sessions
                self.held = []
        if not sessions:
            return
        self.touched = []
        held = self.held
        for session in sessions:
            if session.state == CLOSED:
                session.is_waiting = False
                continue
            if self._release_one(session, durable) and not session.is_ready:
                session.is_ready = True
                self.ready.append(session)
            if session.chunks:
                held.append(session)
            else:
                session.is_waiting = False

    def _release_one(self, session: Session, durable_seq: int) -> bool:
        """Move what may go out to the session's output; whether the server has to look at the session."""
        try:
            if session.release(durable_seq):
                return True
        except Exception as error:
            # For example a MemoryError for one large answer. A gap in the answers would be worse than no answers.
            session.chunks.clear()
            self.fault(session, "releasing answers", error)
        return session.state == ENDING and not session.chunks

    def take_ready(self) -> list[Session]:
        """The sessions that have output to be written or are to be closed."""
        ready = self.ready
        if not ready:
            return ready
        self.ready = []
        for session in ready:
            session.is_ready = False
        return ready

    def take_facts(self) -> list[Fact]:
        facts = self.facts
        if facts:
            self.facts = []
        return facts
