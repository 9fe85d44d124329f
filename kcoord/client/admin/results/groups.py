"""Groups, their members and their committed offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcoord.client.metadata import Node, TopicPartition

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`state` and `type` are empty if the broker is too old to name them."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`epoch`, `target` and `subscription` are for members of consumer groups."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    subscription: tuple[str, ...] = ()
    subscription_regex: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`type` is `classic` or `consumer`. Epochs are for consumer groups."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: tuple[MemberDescription, ...] = ()
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`leader_epoch` is -1 if unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
