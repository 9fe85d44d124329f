"""One member of a consumer group, as the records of its group describe it (KIP-848).

A member that stands in a group is never changed: whoever needs another one makes a copy, changes that, and writes the
records whose replay puts it in the old one's place. A handler can so compute with "the member as it will be" before
anything is stored.

Current assignments map topic id (16 bytes) -> partition -> the epoch in which the member was given it (KIP-1251).
"""

from __future__ import annotations

from typing import Final, final

from kcoord.protocol.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClientAssignor,
    ConsumerGroupMemberMetadataValue,
)

PartitionEpochs = dict[bytes, dict[int, int]]
# What a client-side assignor said along with an assignment: error, version of its metadata, metadata.
AssignorAnswer = tuple[int, int, bytes]

NO_ANSWER: Final[AssignorAnswer] = (0, 0, b"")

# States of a member, as record 8 stores them.
STABLE: Final = 0
UNREVOKED_PARTITIONS: Final = 1
UNRELEASED_PARTITIONS: Final = 2
UNKNOWN_STATE: Final = 127

# Epochs with a meaning of their own, in requests and for the last two also in records.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2

NOT_GIVEN: Final = -1


@final
class ConsumerMember:
    """A member. `topic_names` is sorted and without repeats; `topic_regex` "" or None subscribes to nothing."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = NOT_GIVEN
        self.topic_names: list[str] = []
        self.topic_regex: str | None = ""
        self.server_assignor: str | None = None
        # What a member that speaks the classic protocol joined with; None for one that speaks the new one.
        self.classic: ClassicMemberMetadata | None = None
        # The client-side assignors it has, the one it likes best first; released clients have none.
        self.client_assignors: list[ClientAssignor] = []
        # The current assignment.
        self.member_epoch = 0
        self.previous_epoch = NOT_GIVEN
        self.state: int = STABLE
        self.assigned: PartitionEpochs = {}
        self.revoking: PartitionEpochs = {}
        self.answer: AssignorAnswer = NO_ANSWER

    def copy(self) -> ConsumerMember:
        return self.copy_as(self.member_id)

    def copy_as(self, member_id: str) -> ConsumerMember:
        """A copy, under another id where a static member comes back. Lists and dicts are shared: replace them."""
        other = ConsumerMember(member_id)
        other.instance_id = self.instance_id
        other.rack_id = self.rack_id
        other.client_id = self.client_id
        other.client_host = self.client_host
        other.rebalance_timeout_ms = self.rebalance_timeout_ms
        other.topic_names = self.topic_names
        other.topic_regex = self.topic_regex
        other.server_assignor = self.server_assignor
        other.classic = self.classic
        other.client_assignors = self.client_assignors
        other.member_epoch = self.member_epoch
        other.previous_epoch = self.previous_epoch
        other.state = self.state
        other.assigned = self.assigned
        other.revoking = self.revoking
        other.answer = self.answer
        return other

    def take_metadata(self, value: ConsumerGroupMemberMetadataValue) -> None:
        """Take over what record 5 says."""
        self.instance_id = value.instance_id
        self.rack_id = value.rack_id
        self.client_id = value.client_id
        self.client_host = value.client_host
        self.topic_names = sorted_unique(value.subscribed_topic_names)
        self.topic_regex = value.subscribed_topic_regex
        self.rebalance_timeout_ms = value.rebalance_timeout_ms
        self.server_assignor = value.server_assignor
        self.classic = value.classic_member_metadata
        self.client_assignors = value.client_assignors if value.client_assignors is not None else []

    def has_same_metadata(self, other: ConsumerMember) -> bool:
        """Whether record 5 would say the same of both."""
        return (
            self.instance_id == other.instance_id
            and self.rack_id == other.rack_id
            and self.client_id == other.client_id
            and self.client_host == other.client_host
            and self.rebalance_timeout_ms == other.rebalance_timeout_ms
            and self.topic_names == other.topic_names
            and self.topic_regex == other.topic_regex
            and self.server_assignor == other.server_assignor
            and self.classic == other.classic
            and self.client_assignors == other.client_assignors
        )

    def has_same_assignment(self, other: ConsumerMember) -> bool:
        """Whether record 8 would say the same of both."""
        return (
            self.member_epoch == other.member_epoch
            and self.previous_epoch == other.previous_epoch
            and self.state == other.state
            and self.assigned == other.assigned
            and self.revoking == other.revoking
            and self.answer == other.answer
        )

    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def client_assignor(self, name: str) -> ClientAssignor | None:
        for assignor in self.client_assignors:
            if assignor.name == name:
                return assignor
        return None

    def regex(self) -> str | None:
        """The regular expression it subscribes with, None for none."""
        return self.topic_regex if self.topic_regex else None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state == STABLE and self.member_epoch == assignment_epoch

    def advance_to(self, epoch: int) -> None:
        """Take an epoch; the one before stays known, since the answer that tells the new one may be lost."""
        self.previous_epoch = self.member_epoch
        self.member_epoch = epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int:
        """In which epoch it was given a partition that it has or is giving up; -1 for one that it does not have."""
        for partitions in (self.assigned, self.revoking):
            of_topic = partitions.get(topic_id)
            if of_topic is not None:
                epoch = of_topic.get(partition, -1)
                if epoch >= 0:
                    return epoch
        return -1


def sorted_unique(names: list[str]) -> list[str]:
    """Sorted, each once. Most lists are so already, and are given back."""
    for i in range(1, len(names)):
        if names[i - 1] >= names[i]:
            return sorted(set(names))
    return names
