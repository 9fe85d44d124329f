"""From a classic group to one of the new protocol and back, while members work (KIP-848).

An empty group changes its kind whenever somebody of the other protocol comes. One with members is converted by the
first member of the new protocol, as far as `group.consumer.migration.policy` allows; it goes back when the last of
them leaves.
"""

from __future__ import annotations

from typing import final

from kcoord.core.classic_group import ClassicGroup
from kcoord.core.config import CoreConfig
from kcoord.core.consumer_group import ConsumerGroup
from kcoord.core.consumer_member import ConsumerMember
from kcoord.core.group_errors import GroupError
from kcoord.core.group_store import GroupStore
from kcoord.core.outcome import Now, Outcome
from kcoord.protocol import errors


@final
class ConsumerMigration:
    def __init__(self, config: CoreConfig, store: GroupStore) -> None:
        self.config = config
        self.store = store

    def upgrade(self, classic: ClassicGroup, now: Now, out: Outcome) -> ConsumerGroup:
        """A consumer group with the members of the classic one, whose records are added to `out`. Raises GroupError."""
        raise GroupError(errors.GROUP_ID_NOT_FOUND, f"Group {classic.group_id} is not a consumer group.")

    def can_downgrade(self, group: ConsumerGroup, leaving: list[ConsumerMember]) -> bool:
        """Whether the group becomes a classic one when these members leave."""
        return False

    def downgrade(self, group: ConsumerGroup, leaving: list[ConsumerMember], now: Now, out: Outcome) -> None:
        """The group goes on as a classic one, without the members that leave."""
