"""The error with which a group refuses a request: raised by a check, answered by the handler of the request."""

from __future__ import annotations

from typing import final


@final
class GroupError(Exception):
    """An error code and its message. State is unchanged when it is raised."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
