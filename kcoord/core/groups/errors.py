"""Why a group turns a request away: raised where the check is, answered where the request came in."""

from __future__ import annotations

from typing import final


@final
class GroupError(Exception):
    """An error code and the text that goes with it. Nothing was changed when it is raised."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
