"""State machines as data: from each state, the states that may follow.

Each table is next to the states that it defines: classic groups in groups/classic.py, members of consumer groups in
groups/members.py, connections in the engine's session.py. One method changes the state, and it checks the table first.
A change that is not in the table is a bug. It is refused before it happens, with an error that names the object and the
change, so the bug fails one request and does not damage the state.
"""

from __future__ import annotations

from typing import final


@final
class IllegalTransition(Exception):
    """A change of state that the table does not allow. `who` names the group, member or session."""

    def __init__(self, who: str, before: str, after: str) -> None:
        super().__init__(f"{who} cannot go from {before} to {after}")
        self.who = who
        self.before = before
        self.after = after
