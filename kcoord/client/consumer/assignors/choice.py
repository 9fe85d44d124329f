"""Which assignors a consumer has, from the argument `partition_assignment_strategy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcoord.client.consumer.assignors.base import PartitionAssignor
from kcoord.client.consumer.assignors.range_assignor import RangeAssignor
from kcoord.client.consumer.assignors.round_robin import RoundRobinAssignor
from kcoord.client.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kcoord.client.errors import InvalidConfiguration

_BUILT_IN: Final[dict[str, type[PartitionAssignor]]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
# As in Kafka: eager with `range` as long as a member needs it, and one step from cooperative rebalances.
DEFAULT: Final = ("range", "cooperative-sticky")


def parse_strategy(given: Sequence[object] | None) -> list[PartitionAssignor]:
    """Names of Kafka's assignors, classes and instances of your own. Raises InvalidConfiguration."""
    found: list[PartitionAssignor] = []
    for one in DEFAULT if given is None else given:
        if isinstance(one, str):
            known = _BUILT_IN.get(one)
            if known is None:
                names = ", ".join(sorted(_BUILT_IN))
                raise InvalidConfiguration(f"partition_assignment_strategy: {one!r} is not one of {names}")
            found.append(known())
        elif isinstance(one, type) and issubclass(one, PartitionAssignor):
            found.append(one())
        elif isinstance(one, PartitionAssignor):
            found.append(one)
        else:
            raise InvalidConfiguration(f"partition_assignment_strategy: {one!r} is no PartitionAssignor")
    return found
