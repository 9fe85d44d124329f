"""What a consumer reads: its subscription, its partitions, and its position in each of them. No I/O.

**KIP-70.** A new subscription leaves the partitions as they are. They change when a rebalance revokes and assigns them,
or when the user assigns partitions or unsubscribes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final, final

from kcoord.client.consumer.listener import RebalanceListener
from kcoord.client.errors import IllegalState
from kcoord.client.metadata import NO_EPOCH, TopicPartition

# A partition without a position.
NO_OFFSET: Final = -1


class Mode(Enum):
    """How the partitions come about. A consumer must unsubscribe before it changes to another mode."""

    NONE = "no subscription"
    TOPICS = "a subscription to topics"
    PATTERN = "a subscription to a pattern"
    SERVER_PATTERN = "a subscription to a pattern that the coordinator matches"
    ASSIGNED = "partitions that the user has assigned"


GROUP_MODES: Final = frozenset({Mode.TOPICS, Mode.PATTERN, Mode.SERVER_PATTERN})


@final
class PartitionState:
    """One partition of the assignment."""

    __slots__ = (
        "fetched_epoch",
        "high_watermark",
        "is_paused",
        "is_revoking",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "must_validate",
        "position",
        "preferred_replica",
        "preferred_until_s",
        "reset",
        "round",
    )

    def __init__(self) -> None:
        # The next offset that the user gets, NO_OFFSET until it is known, and the epoch of the record before it.
        self.position = NO_OFFSET
        self.fetched_epoch = NO_EPOCH
        # Where to look for a position: an offset reset strategy, or None for the committed offset.
        self.reset: str | None = None
        # Goes up with each seek: what was fetched in an earlier round is of no use.
        self.round = 0
        self.is_paused = False
        # About to be revoked: not fetched and not returned any more.
        self.is_revoking = False
        # The leader has changed: the position must be compared with the leader's log (KIP-320).
        self.must_validate = False
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        # A follower that the leader has named (KIP-392), and until when.
        self.preferred_replica = -1
        self.preferred_until_s = 0.0
        # The leader epoch in which the position was known to be good.
        self.leader_epoch = NO_EPOCH

    @property
    def has_position(self) -> bool:
        return self.position != NO_OFFSET

    @property
    def is_fetchable(self) -> bool:
        return self.position != NO_OFFSET and not (self.is_paused or self.is_revoking or self.must_validate)

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Continue at an offset; `epoch` is the leader epoch of the record before it, if it is known."""
        self.round += 1
        self.position = offset
        self.fetched_epoch = epoch
        self.reset = None
        self.must_validate = False

    def seek_by(self, strategy: str) -> None:
        """Have the position looked up by an offset reset strategy."""
        self.forget_position()
        self.reset = strategy

    def forget_position(self) -> None:
        """Have the position looked up as for a new member: the committed offset, or the reset policy."""
        self.round += 1
        self.position = NO_OFFSET
        self.fetched_epoch = NO_EPOCH
        self.reset = None
        self.must_validate = False


@final
class Subscription:
    """Changed by the user's calls and by the group's rebalances."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        # The topics of the subscription; with a pattern those that it matches now.
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        # A regular expression in RE2's syntax, for the coordinator (KIP-848).
        self.server_pattern: str | None = None
        self.listener: RebalanceListener | None = None
        self.partitions: dict[TopicPartition, PartitionState] = {}

    @property
    def is_group(self) -> bool:
        """Whether a group assigns the partitions."""
        return self.mode in GROUP_MODES

    def assigned(self) -> set[TopicPartition]:
        return set(self.partitions)

    def state(self, partition: TopicPartition) -> PartitionState:
        """Raises IllegalState if the partition is not assigned."""
        found = self.partitions.get(partition)
        if found is None:
            raise IllegalState(f"{partition} is not assigned to this consumer")
        return found

    # --- the user's calls

    def subscribe_topics(self, topics: Collection[str], listener: RebalanceListener | None) -> None:
        self._enter(Mode.TOPICS, listener)
        self.topics = frozenset(topics)

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None) -> None:
        """The topics follow with `match`."""
        self._enter(Mode.PATTERN, listener)
        self.pattern = pattern

    def subscribe_server_pattern(self, pattern: str, listener: RebalanceListener | None) -> None:
        self._enter(Mode.SERVER_PATTERN, listener)
        self.server_pattern = pattern
        self.topics = frozenset()

    def match(self, topics: Iterable[str]) -> bool:
        """Apply the pattern to the topics of the cluster. Returns whether the subscription has changed."""
        if self.pattern is None:
            return False
        found = frozenset(topic for topic in topics if self.pattern.fullmatch(topic))
        if found == self.topics:
            return False
        self.topics = found
        return True

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """The user's own assignment. Partitions that stay keep their position."""
        self._enter(Mode.ASSIGNED, None)
        self.topics = frozenset(partition.topic for partition in partitions)
        self.replace(partitions)

    def unsubscribe(self) -> None:
        self.mode = Mode.NONE
        self.topics = frozenset()
        self.pattern = self.server_pattern = self.listener = None
        self.partitions.clear()

    def _enter(self, mode: Mode, listener: RebalanceListener | None) -> None:
        if self.mode is not Mode.NONE and self.mode is not mode:
            raise IllegalState(f"the consumer has {self.mode.value}; unsubscribe before you change to {mode.value}")
        self.mode = mode
        self.listener = listener
        self.pattern = self.server_pattern = None

    # --- the group's

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Have these partitions and no others. Those that stay keep their state."""
        old = self.partitions
        self.partitions = {partition: old.get(partition) or PartitionState() for partition in partitions}

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.partitions.pop(partition, None)

    # --- positions

    def consumed(self) -> Mapping[TopicPartition, PartitionState]:
        """The partitions with a position, whose offsets can be committed."""
        return {partition: state for partition, state in self.partitions.items() if state.has_position}
