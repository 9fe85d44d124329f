"""What an import did with everything it found: taken, kept as it is, or left out. Nothing is in none of the three."""

from __future__ import annotations

from collections import Counter
from typing import Any, final


@final
class ImportReport:
    """Counts by what they count. `notes` are sentences for a person."""

    def __init__(self) -> None:
        # What the server works with from now on.
        self.taken: Counter[str] = Counter()
        # What came along byte for byte, and the server does not touch.
        self.kept: Counter[str] = Counter()
        # What has no place here.
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        # Records read from coordinator logs, so that the three can be held against it.
        self.records_read = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "taken": dict(sorted(self.taken.items())),
            "kept": dict(sorted(self.kept.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "notes": list(self.notes),
        }
