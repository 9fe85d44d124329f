"""One member of a consumer group, as the records of the group describe it (KIP-848).

A member of a group is never changed in place. A handler changes a copy and writes records; their replay replaces the
member. So the handler can compute with the member as it will be before anything is stored.

Current assignments map topic id (16 bytes) -> partition -> the epoch in which the member got it (KIP-1251).
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.transitions import IllegalTransition
from kcoord.protocol.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClientAssignor,
    ConsumerGroupMemberMetadataValue,
)

PartitionEpochs = dict[bytes, dict[int, int]]
# What a client-side assignor returned with an assignment: error, metadata version, metadata.
AssignorAnswer = tuple[int, int, bytes]

NO_ANSWER: Final[AssignorAnswer] = (0, 0, b"")

# The states of a member, as record 8 stores them.
STABLE: Final = 0
UNREVOKED_PARTITIONS: Final = 1
UNRELEASED_PARTITIONS: Final = 2
UNKNOWN_STATE: Final = 127

STATE_NAMES: Final[dict[int, str]] = {
    STABLE: "Stable",
    UNREVOKED_PARTITIONS: "UnrevokedPartitions",
    UNRELEASED_PARTITIONS: "UnreleasedPartitions",
    UNKNOWN_STATE: "Unknown",
}
# From each state, the states that a step of reconciliation may lead to. The state of a whole consumer group is derived
# from its epochs and its members, so it has no table of its own: this is where a consumer group changes its state.
# Nothing leads to an unknown state; it comes from a record that a later release wrote.
TRANSITIONS: Final[dict[int, tuple[int, ...]]] = {
    STABLE: (STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS),
    UNREVOKED_PARTITIONS: (UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS, STABLE),
    UNRELEASED_PARTITIONS: (UNRELEASED_PARTITIONS, UNREVOKED_PARTITIONS, STABLE),
    UNKNOWN_STATE: (STABLE, UNREVOKED_PARTITIONS, UNRELEASED_PARTITIONS),
}
# States that a member enters without moving on to another epoch: it has not given up yet what it had in the old one.
# Only a member in an unknown state, which starts again with nothing, enters them in a new epoch.
STATES_OF_OLD_EPOCH: Final = (UNREVOKED_PARTITIONS,)

# Special epochs of requests; the last two also occur in records.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2

NOT_GIVEN: Final = -1


@final
class ConsumerMember:
    """A member. `topic_names` is sorted and has no duplicates; a `topic_regex` of "" or None matches nothing."""

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
        # What a member of the classic protocol joined with; None for a member of the consumer protocol.
        self.classic: ClassicMemberMetadata | None = None
        # The member's client-side assignors, the preferred one first. Released clients have none.
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
        """A copy, under another id for a static member that returns. Lists and dicts are shared: replace them."""
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
        """Take the fields of record 5."""
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

    def is_same_to_assignor(self, other: ConsumerMember) -> bool:
        """Whether the input of an assignor is the same for both, apart from the topic names."""
        return self.regex() == other.regex() and self.instance_id == other.instance_id and self.rack_id == other.rack_id

    def has_same_metadata(self, other: ConsumerMember) -> bool:
        """Whether record 5 would be the same for both."""
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
        """Whether record 8 would be the same for both."""
        return (
            self.member_epoch == other.member_epoch
            and self.previous_epoch == other.previous_epoch
            and self.state == other.state
            and self.assigned == other.assigned
            and self.revoking == other.revoking
            and self.answer == other.answer
        )

    def client_assignor(self, name: str) -> ClientAssignor | None:
        for assignor in self.client_assignors:
            if assignor.name == name:
                return assignor
        return None

    def regex(self) -> str | None:
        """The regular expression that the member subscribes with, or None."""
        return self.topic_regex if self.topic_regex else None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state == STABLE and self.member_epoch == assignment_epoch

    def advance_to(self, epoch: int) -> None:
        """Move to an epoch. The previous one stays valid, because the answer with the new epoch may be lost."""
        self.previous_epoch = self.member_epoch
        self.member_epoch = epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int:
        """The epoch in which the member got a partition that it owns or is revoking; -1 if it does neither."""
        for partitions in (self.assigned, self.revoking):
            of_topic = partitions.get(topic_id)
            if of_topic is not None:
                epoch = of_topic.get(partition, -1)
                if epoch >= 0:
                    return epoch
        return -1


def sorted_unique(names: list[str]) -> list[str]:
    """The names sorted and without duplicates. A list that already is comes back as it is."""
    for i in range(1, len(names)):
        if names[i - 1] >= names[i]:
            return sorted(set(names))
    return names


def check_transition(group_id: str, before: ConsumerMember, after: ConsumerMember) -> None:
    """Raises IllegalTransition if a step of reconciliation must not turn one into the other."""
    keeps_epoch = after.state in STATES_OF_OLD_EPOCH and before.state != UNKNOWN_STATE
    if after.state not in TRANSITIONS[before.state] or (keeps_epoch and after.member_epoch != before.member_epoch):
        raise IllegalTransition(
            f"member {before.member_id} of consumer group {group_id}",
            f"{STATE_NAMES[before.state]} in epoch {before.member_epoch}",
            f"{STATE_NAMES.get(after.state, str(after.state))} in epoch {after.member_epoch}",
        )
