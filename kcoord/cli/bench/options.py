"""What a run of the benchmark is asked to do."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Final

STEADY: Final = {
    "commit-1": "OffsetCommit of 1 partition",
    "commit-5": "OffsetCommit of 5 partitions",
    "commit-100": "OffsetCommit of 100 partitions",
    "offset-fetch": "OffsetFetch of 5 partitions",
    "heartbeat": "Heartbeat of a classic group",
    "consumer-heartbeat": "ConsumerGroupHeartbeat (KIP-848)",
    "produce": "Produce of a batch with acks=all",
    "fetch": "Fetch of records",
    "transactions": "a transaction with one batch, from its begin to its commit",
}
GROUPS: Final = {
    "join-classic": "members join one classic group",
    "join-consumer": "members join one consumer group (KIP-848)",
    "restart-classic": "rolling restart of all members",
    "restart-consumer": "rolling restart of all members",
    "flap-classic": "one member leaves and comes back, five times",
    "flap-consumer": "one member leaves and comes back, five times",
}
NEWCOMERS: Final = {
    "newcomer-classic": "clients come one after the other and join classic groups, beside commits of 5 partitions",
    "newcomer-consumer": "the same with consumer groups (KIP-848)",
}
SETS: Final = {
    "all": [*STEADY, *GROUPS, *NEWCOMERS], "steady": [*STEADY], "groups": [*GROUPS], "newcomers": [*NEWCOMERS],
}  # fmt: skip
PREFIX: Final = "kcoord-bench-"
PROCESSES_MAX: Final = 4


def default_processes() -> int:
    """Half of the cores, the others are for a server on the same machine."""
    return max(min((os.cpu_count() or 1) // 2, PROCESSES_MAX), 1)


@dataclass(frozen=True, slots=True)
class Options:
    """Times in seconds. `replication_factor` -1 is the broker's default, `restarts` 0 all members."""

    connections: int = 16
    in_flight: int = 1
    rounds: int = 3
    seconds: float = 2.0
    warm_up_s: float = 1.0
    processes: int = 1
    members: int = 50
    heartbeat_s: float = 0.1
    record_bytes: int = 1000
    batch_records: int = 64
    fetch_bytes: int = 1 << 20
    replication_factor: int = -1
    timeout_s: float = 60.0
    restarts: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
