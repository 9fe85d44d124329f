"""Makes the membership of a consumer that subscribes."""

from __future__ import annotations

from dataclasses import dataclass

from kcoord.client.consumer.membership import GroupHost, Membership
from kcoord.client.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Assignors:
    """Those of the classic protocol (None for the default ones), and those of a consumer group's members."""

    classic: tuple[object, ...] | None
    local: tuple[object, ...]


def make_membership(host: GroupHost, assignors: Assignors) -> Membership:
    """Raises InvalidConfiguration."""
    raise InvalidConfiguration("subscriptions are not possible yet")
