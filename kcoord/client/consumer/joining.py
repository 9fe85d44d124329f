"""Makes the membership of a consumer that subscribes."""

from __future__ import annotations

from dataclasses import dataclass

from kcoord.client.consumer.membership import GroupHost, Membership
from kcoord.client.consumer.options import CLASSIC
from kcoord.client.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Assignors:
    """Those of the classic protocol (None for the default ones), and those of a consumer group's members."""

    classic: tuple[object, ...] | None
    local: tuple[object, ...]


def make_membership(host: GroupHost, assignors: Assignors) -> Membership:
    """Raises InvalidConfiguration."""
    if host.options.group_protocol == CLASSIC:
        # Imported here: a consumer needs one of the two protocols.
        from kcoord.client.consumer.assignors.choice import parse_strategy
        from kcoord.client.consumer.classic.membership import ClassicMembership

        return ClassicMembership(host, parse_strategy(assignors.classic))
    raise InvalidConfiguration("group_protocol='consumer' is not possible yet")
