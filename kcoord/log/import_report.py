"""The report of an import. It counts everything that the import found exactly once: as taken, kept or left out."""

from __future__ import annotations

from collections import Counter
from typing import Any, final


@final
class ImportReport:
    """Counters by description. `notes` are sentences for the user."""

    def __init__(self) -> None:
        # Imported; the server uses it from now on.
        self.taken: Counter[str] = Counter()
        # Copied byte for byte; the server does not use it.
        self.kept: Counter[str] = Counter()
        # Not imported.
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []

    def as_dict(self) -> dict[str, Any]:
        return {
            "taken": dict(sorted(self.taken.items())),
            "kept": dict(sorted(self.kept.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "notes": list(self.notes),
        }
