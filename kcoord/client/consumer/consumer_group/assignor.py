"""Client-side assignors: one of the members computes the assignment of the group (KIP-848, in no release of Kafka).

kcoord's coordinator supports them. A group uses an assignor if all of its members have it; otherwise the coordinator
computes. See docs/client-assignors.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kcoord.client.metadata import TopicPartition

# The error of an assignor that raised something else than AssignorError.
UNKNOWN_ERROR: Final = 1


class AssignorError(Exception):
    """Raised by `assign` if it cannot assign. Members keep what they have, and all of them get `code` (1 to 127)."""

    def __init__(self, code: int, message: str = "") -> None:
        if not 1 <= code <= 127:
            raise ValueError(f"an assignor's error code is 1 to 127, not {code}")
        self.code = code
        super().__init__(message or f"assignor error {code}")


@dataclass(frozen=True, slots=True)
class AssignorMetadata:
    """What a member tells the assignor of whoever computes, or the assignor tells a member.

    `version` says how to read `data`. With a new `reason` the group gets a new assignment, even with the same data.
    """

    version: int = 0
    data: bytes = b""
    reason: int = 0


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member of the group, for an assignor. `target` is what it has been assigned last."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    topics: frozenset[str]
    metadata: AssignorMetadata
    target: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group, for an assignor: its members by id, and the number of partitions of each topic."""

    members: Mapping[str, MemberSpec]
    topics: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What a member gets. Its metadata must be of a version that the member's assignor can read."""

    partitions: Collection[TopicPartition] = field(default_factory=frozenset)
    metadata: AssignorMetadata = field(default_factory=AssignorMetadata)


class ClientAssignor(ABC):
    """An assignor of a member. The versions are those of the metadata that it can read."""

    name: str
    minimum_version: int = 0
    maximum_version: int = 0

    def metadata(self) -> AssignorMetadata:
        """Called before each heartbeat. The group gets a new assignment when the result has changed."""
        return AssignorMetadata()

    @abstractmethod
    def assign(self, group: GroupSpec) -> Mapping[str, MemberAssignment] | Awaitable[Mapping[str, MemberAssignment]]:
        """Assign partitions to members, by member id. Members that are left out get none.

        Each partition must exist, be of a topic that its member subscribes to, and have one member. It may be a
        coroutine, and runs beside the user's code. It should be quick: heartbeats wait for a plain function, and after
        max_poll_interval_ms another member is asked. Raise AssignorError if nothing can be assigned.
        """

    def on_assignment(  # noqa: B027  most assignors have nothing to do here
        self, metadata: AssignorMetadata, error: int
    ) -> None:
        """The member has got an assignment: called in the user's `poll` after the listener.

        All assignors of the member get this call, because an assignment does not name its assignor. `error` is the
        code of the AssignorError. Without metadata, the coordinator may have computed.
        """
