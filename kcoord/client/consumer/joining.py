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
    # Imported here: a consumer needs one of the two protocols.
    if host.options.group_protocol == CLASSIC:
        from kcoord.client.consumer.assignors.choice import parse_strategy
        from kcoord.client.consumer.classic.membership import ClassicMembership

        return ClassicMembership(host, parse_strategy(assignors.classic))
    from kcoord.client.consumer.consumer_group.computing import check_assignors
    from kcoord.client.consumer.consumer_group.membership import ConsumerGroupMembership

    try:
        return ConsumerGroupMembership(host, check_assignors(assignors.local))
    except ValueError as error:
        raise InvalidConfiguration(f"group_local_assignors: {error}") from None
