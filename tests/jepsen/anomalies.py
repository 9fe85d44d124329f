"""The kinds of anomalies, and one anomaly with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.jepsen.history import Operation

INCONSISTENT_OFFSETS: Final = "inconsistent-offsets"
DUPLICATE: Final = "duplicate"
LOST_WRITE: Final = "lost-write"
UNSEEN: Final = "unseen"
UNWRITTEN_READ: Final = "unwritten-read"
ABORTED_READ: Final = "aborted-read"
PRECOMMITTED_READ: Final = "precommitted-read"
POLL_SKIP: Final = "poll-skip"
NONMONOTONIC_POLL: Final = "nonmonotonic-poll"
INT_POLL_SKIP: Final = "int-poll-skip"
INT_NONMONOTONIC_POLL: Final = "int-nonmonotonic-poll"
NONMONOTONIC_SEND: Final = "nonmonotonic-send"
INT_NONMONOTONIC_SEND: Final = "int-nonmonotonic-send"
INT_SEND_SKIP: Final = "int-send-skip"
REALTIME_ORDER: Final = "realtime-order"
CONSUMED_TWICE: Final = "consumed-twice"
CONSUMED_NEVER: Final = "consumed-never"
WRITE_CYCLE: Final = "write-cycle"  # G0
READ_CYCLE: Final = "read-cycle"  # G1c

# Transactions of Kafka do not isolate writes from each other: their records interleave. These are reported only.
ALLOWED: Final = frozenset({INT_SEND_SKIP, WRITE_CYCLE})

MEANINGS: Final = {
    INCONSISTENT_OFFSETS: "two values at one offset",
    DUPLICATE: "one value at two offsets",
    LOST_WRITE: "a value that was written, and a later one was read, but not this one",
    UNSEEN: "a value that was written, and nobody read it to the end of the history",
    UNWRITTEN_READ: "a value that nobody sent",
    ABORTED_READ: "a value of a transaction that was aborted (G1a)",
    PRECOMMITTED_READ: "a value that was read by its own transaction, or before its commit was sent",
    POLL_SKIP: "the polls of a process left out a value",
    NONMONOTONIC_POLL: "the polls of a process went back",
    INT_POLL_SKIP: "the polls of one operation left out a value",
    INT_NONMONOTONIC_POLL: "the polls of one operation went back",
    NONMONOTONIC_SEND: "a later send of a process has a lower offset",
    INT_NONMONOTONIC_SEND: "a later send of one operation has a lower offset",
    INT_SEND_SKIP: "there are other values between two sends of one operation",
    REALTIME_ORDER: "a send that began after another one had completed has a lower offset",
    CONSUMED_TWICE: "two transactions committed that consumed the same value for one group",
    CONSUMED_NEVER: "a group has passed a value that none of its transactions consumed",
    WRITE_CYCLE: "transactions that wrote before each other (G0)",
    READ_CYCLE: "transactions that read from each other, or from the future (G1c)",
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    key: str
    values: tuple[int, ...]
    detail: str
    evidence: tuple[Operation, ...] = ()

    @property
    def is_allowed(self) -> bool:
        return self.kind in ALLOWED

    def __str__(self) -> str:
        where = f"{self.key} " if self.key else ""
        seen = "; ".join(str(one) for one in self.evidence)
        return f"{self.kind}: {where}{list(self.values)}: {self.detail} ({seen})"
