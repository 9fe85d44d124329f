"""What the kinds of load have in common: open connections, rounds of measuring, and the figures of a round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from kcoord.client.load.histogram import Histogram

# How long a round waits for the answers that are missing at its end.
DRAIN_S: Final = 10.0
# A line between the command and a process has the requests of all its lanes, or the latencies of a round.
LINE_BYTES_MAX: Final = 1 << 30
NO_ANSWER: Final = "NO_ANSWER"
CONNECTION_LOST: Final = "CONNECTION_LOST"
WRONG_ANSWER: Final = "WRONG_ANSWER"


class Load(Protocol):
    """A share of a workload, in one process."""

    async def open(self) -> None:
        """Connect. Raises OSError or KafkaError."""

    async def round(self, warm_up_s: float, seconds: float) -> dict[str, Any]:
        """Send requests, and return the figures of `seconds` after a warm-up, as `figures` makes them."""

    async def close(self) -> None:
        """Close the connections."""


def figures(
    answered: int, seconds: float, histograms: Iterable[Histogram], errors: Iterable[dict[str, int]], bytes_moved: int,
    cpu_s: float,
) -> dict[str, Any]:  # fmt: skip
    """`answered` requests were answered without an error in `seconds`."""
    latencies = Histogram()
    for one in histograms:
        latencies.add_all(one.pairs())
    return {
        "answered": answered,
        "seconds": seconds,
        "latencies": latencies.pairs(),
        "errors": added(errors),
        "bytes": bytes_moved,
        "cpu_s": cpu_s,
    }


def added(errors: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums of all errors by name."""
    found: dict[str, int] = {}
    for one in errors:
        for name, count in one.items():
            found[name] = found.get(name, 0) + count
    return found
