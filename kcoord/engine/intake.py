"""The intake: which frames of a session are handled now, and which wait.

Frames of a session are handled in order, so one that has to wait holds back those after it. They wait in the session's
backlog for one of these reasons, and each has one event that ends it:

- an earlier request waits for an event (a rebalance, data to fetch): until that is answered;
- the session is owed too many bytes of answers: until its client has taken them;
- the request appends, and the open commit is large: until that commit is written (`stalled`);
- the turn's budget is spent: until a later turn comes to it (`queue`).

The queue is worked off first come, first served, and a session that uses up a turn goes to its end. Small requests of
sessions that wait for nothing do not queue (see budget.py).
"""

from __future__ import annotations

from collections import deque
from typing import final

from kcoord.core.config import CoreConfig
from kcoord.engine.budget import TurnBudget
from kcoord.engine.session import OUTPUT_BYTES_MAX, Session
from kcoord.protocol import apis
from kcoord.wire.primitives import DecodeError, Reader, TooManyElements, i64, read_i16_be


@final
class Intake:
    """Sessions whose backlog waits for us rather than for their client."""

    def __init__(self, budget: TurnBudget) -> None:
        self.budget = budget
        self.queue: deque[Session] = deque()
        self.stalled: list[Session] = []
        # Whether this turn has gone on with a session of the queue. It does so at least once, whatever was spent,
        # unless the requests that have just arrived were far over the budget; then the next turn does.
        self.has_gone_on = False
        self.had_to_wait = False

    def has_room(self, session: Session, frame: bytes, is_fresh: bool) -> bool:
        """Whether the turn's budget lets this frame be handled. If not, the session is queued.

        `is_fresh`: the frame has just arrived, and nothing of its session waits.
        """
        budget = self.budget
        if budget.has_room(len(frame)) if is_fresh else not self._is_over():
            return True
        self.enqueue(session)
        return False

    def enqueue(self, session: Session) -> None:
        """Go on with the session's backlog, in this turn or in a later one."""
        if not session.is_queued:
            session.is_queued = True
            self.queue.append(session)

    def stall(self, session: Session) -> None:
        """Go on with the session's backlog once what was appended is written."""
        if not session.is_stalled:
            session.is_stalled = True
            self.stalled.append(session)

    def unstall(self) -> None:
        """What was appended is written."""
        if not self.stalled:
            return
        for session in self.stalled:
            session.is_stalled = False
            self.enqueue(session)
        self.stalled = []

    def next_session(self) -> Session | None:
        """The session to go on with; None when there is none, or none in this turn."""
        queue = self.queue
        while queue:
            if self._is_over():
                return None
            session = queue.popleft()
            session.is_queued = False
            if not session.closed:
                return session
        return None

    def _is_over(self) -> bool:
        """Whether this turn goes on with no more sessions of the queue.

        One request may cost several budgets. When that one has just arrived, a second such request out of the queue
        would make the turn twice as long.
        """
        budget = self.budget
        if not budget.is_spent:
            return False
        return self.has_gone_on or (budget.is_far_over and not self.had_to_wait)

    def end_turn(self) -> None:
        self.had_to_wait = len(self.queue) > 0 and not self.has_gone_on
        self.has_gone_on = False
        self.budget.end_turn()


def must_wait(session: Session) -> bool:
    """Whether the session itself has to wait: for an answer, for its client, or because it ends."""
    return (
        session.parked_request_id != 0 or session.close_reason != "" or session.owed_bytes > OUTPUT_BYTES_MAX
    )


def hold_back(session: Session, frames: list[bytes]) -> None:
    """Add frames to the session's backlog."""
    session.backlog.extend(frames)
    for frame in frames:
        session.backlog_bytes += len(frame)


def take_backlog(session: Session) -> list[bytes]:
    frames = session.backlog
    session.backlog = []
    session.backlog_bytes = 0
    return frames


def elements_max(config: CoreConfig, api_key: int) -> int:
    """How many elements the arrays of a request may have together."""
    if api_key == apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT:
        return max(config.install_elements_max, config.request_elements_max)
    return config.request_elements_max


def read_header(session: Session, frame: bytes, flexible: bool, elements_max: int) -> Reader:
    """A reader behind the request header; the session takes over the client id. Raises DecodeError."""
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
    reader = Reader(frame, end, elements_max)
    if flexible:
        reader.skip_tags()
    return reader


def why_unreadable(error: DecodeError, api_key: int) -> str:
    """What is wrong with a request, and what its user can do if it is only too large."""
    if not isinstance(error, TooManyElements):
        return str(error)
    is_install = api_key == apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT
    return f"{error} ({'install' if is_install else 'request'}.elements.max)"
