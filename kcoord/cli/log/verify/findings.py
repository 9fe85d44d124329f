"""The findings of `kcoord log verify`."""

from __future__ import annotations

from typing import Any, Final, final

ERROR: Final = "error"
WARNING: Final = "warning"
# Further findings of one kind in one log are only counted.
PER_CHECK_MAX: Final = 20


@final
class Finding:
    """One problem. `position` and `offset` are -1 if it has no single position.

    An error is a violated rule; a warning is a state that opening the log handles."""

    def __init__(
        self, severity: str, check: str, log: str, file: str, position: int, offset: int, message: str
    ) -> None:
        self.severity = severity
        self.check = check
        self.log = log
        self.file = file
        self.position = position
        self.offset = offset
        self.message = message

    def plain(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "check": self.check,
            "log": self.log,
            "file": self.file,
            "position": self.position if self.position >= 0 else None,
            "offset": self.offset if self.offset >= 0 else None,
            "message": self.message,
        }

    def text(self) -> str:
        place = self.file or self.log
        if self.position >= 0:
            place += f" at byte {self.position}"
        if self.offset >= 0:
            place += f", offset {self.offset}"
        return f"{self.severity}: {place}: {self.message} [{self.check}]"


@final
class Findings:
    """The problems in the order of discovery; each kind at most PER_CHECK_MAX times per log."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self._counts: dict[tuple[str, str], int] = {}
        self.errors = 0
        self.warnings = 0

    def error(self, check: str, log: str, message: str, file: str = "", position: int = -1, offset: int = -1) -> None:
        self.errors += 1
        self._add(Finding(ERROR, check, log, file, position, offset, message))

    def warning(self, check: str, log: str, message: str, file: str = "", position: int = -1, offset: int = -1) -> None:
        self.warnings += 1
        self._add(Finding(WARNING, check, log, file, position, offset, message))

    def _add(self, finding: Finding) -> None:
        key = (finding.log, finding.check)
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        if count <= PER_CHECK_MAX:
            self.found.append(finding)

    def left_out(self) -> int:
        return self.errors + self.warnings - len(self.found)
