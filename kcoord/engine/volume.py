"""The volume that holds the logs, as the server measured it last. The engine asks no operating system."""

from __future__ import annotations

from typing import Final, final

# As Kafka answers where it does not know a size.
UNKNOWN_BYTES: Final = -1
# Stands for the path where logs are kept in memory (`log.sync=memory`).
IN_MEMORY: Final = "memory"


@final
class LogVolume:
    """The absolute path of the data directory, and the size of its volume with what is left for us."""

    def __init__(self) -> None:
        self.path = IN_MEMORY
        self.total_bytes = UNKNOWN_BYTES
        self.usable_bytes = UNKNOWN_BYTES

    def measured(self, path: str, total_bytes: int, usable_bytes: int) -> None:
        self.path = path
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes
