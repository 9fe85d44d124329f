"""The backlogs: frames that have to wait, and the order in which the engine handles them.

A frame that has to wait delays the later frames of its session, because requests are handled in order. The frames wait
in the session's backlog. There are four reasons to wait, and each ends with one event:

- an earlier request waits for an event (a rebalance, data to fetch): until that request is answered;
- the session has too many bytes of unread responses: until its client has read them;
- the request appends, and the open commit is large: until that commit is written (`stalled`);
- the turn's budget is spent: until a later turn takes the session from the queue (`queue`).

The queue is first come, first served, and a session that uses up a turn goes to its end. Small requests of sessions
without waiting frames do not queue (see budget.py).
"""

from __future__ import annotations

from collections import deque
from typing import final

from kcoord.engine.budget import TurnBudget
from kcoord.engine.session import CLOSED, OPEN, OUTPUT_BYTES_MAX, Session


@final
class Backlogs:
    """Sessions whose backlog waits for us rather than for their client."""

    def __init__(self, budget: TurnBudget) -> None:
        self.budget = budget
        self.queue: deque[Session] = deque()
        self.stalled: list[Session] = []
        # Whether this turn has taken a session from the queue. It does so at least once, whatever was spent,
        # unless the requests that have just arrived were far over the budget; then the next turn does.
        self.has_resumed = False
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
        """Queue the session, so that its backlog is handled in this turn or a later one."""
        if not session.is_queued:
            session.is_queued = True
            self.queue.append(session)

    def stall(self, session: Session) -> None:
        """Handle the session's backlog after the open commit is written."""
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
        """Return the next session to handle. None: the queue is empty, or the budget of this turn is spent."""
        queue = self.queue
        while queue:
            if self._is_over():
                return None
            session = queue.popleft()
            session.is_queued = False
            if session.state != CLOSED:
                return session
        return None

    def _is_over(self) -> bool:
        """Whether this turn takes no more sessions from the queue.

        One request may cost several budgets. When that one has just arrived, a second such request out of the queue
        would make the turn twice as long.
        """
        budget = self.budget
        if not budget.is_spent:
            return False
        return self.has_resumed or (budget.is_far_over and not self.had_to_wait)

    def end_turn(self) -> None:
        self.had_to_wait = len(self.queue) > 0 and not self.has_resumed
        self.has_resumed = False
        self.budget.end_turn()


def must_wait(session: Session) -> bool:
    """Whether the session itself has to wait: for an answer, for its client, or because it ends."""
    return session.parked_request_id != 0 or session.state != OPEN or session.owed_bytes > OUTPUT_BYTES_MAX


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
