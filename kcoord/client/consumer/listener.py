"""What a consumer tells its user about rebalances."""

from __future__ import annotations

from collections.abc import Awaitable, Collection

from kcoord.client.partition import TopicPartition


class RebalanceListener:
    """Override what you need; the methods may be coroutines.

    They are called inside `poll` (or iteration), `unsubscribe` and `close`, never beside them, so whatever an earlier
    `poll` returned has been processed. An exception that they raise comes out of the call.
    """

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> Awaitable[None] | None:
        """The partitions are about to be given up: their offsets can still be committed."""
        return None

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> Awaitable[None] | None:
        """The partitions are new in the assignment."""
        return None

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> Awaitable[None] | None:
        """The partitions belong to others already: the member was evicted or fenced. By default as if revoked."""
        return self.on_partitions_revoked(lost)
