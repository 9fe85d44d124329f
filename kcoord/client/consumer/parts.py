"""What a consumer has while it runs: the connections, and the parts that work in tasks of their own."""

from __future__ import annotations

import asyncio
from typing import Final, final

from kcoord.client.admin.spread import Spread
from kcoord.client.cluster import Cluster
from kcoord.client.consumer.commits import Commits
from kcoord.client.consumer.fetcher import Fetcher
from kcoord.client.consumer.joining import Assignors, make_membership
from kcoord.client.consumer.membership import GroupHost, Membership
from kcoord.client.consumer.options import ConsumerOptions
from kcoord.client.consumer.positions import Positions
from kcoord.client.consumer.records import ConsumerRecord
from kcoord.client.consumer.subscription import Subscription
from kcoord.client.metadata import TopicPartition

# While records are handed out one by one, the group is served this often.
TURN_S: Final = 0.05


@final
class Parts:
    """What a consumer has while it runs."""

    def __init__(
        self, cluster: Cluster, options: ConsumerOptions, subscription: Subscription, assignors: Assignors
    ) -> None:
        self.cluster = cluster
        self.spread = Spread(cluster, options.default_api_timeout_s)
        # Set when a poll that waits should look again.
        self.event = asyncio.Event()
        # Set when positions were found.
        self.found = asyncio.Event()
        self.is_metadata_new = False
        # There is a new pattern: all topics must be known before the group is served.
        self.must_refresh = False
        self.served_s = 0.0
        self.membership: Membership | None = None
        self.fetcher = Fetcher(cluster, options, subscription, self.event)
        self.commits = Commits(cluster, options, subscription)
        self.positions = Positions(self.spread, options, subscription, self._positions_found)
        self._options = options
        self._subscription = subscription
        self._assignors = assignors
        self._loop = asyncio.get_running_loop()
        cluster.on_change.append(self._metadata_changed)

    def join(self) -> Membership:
        """The membership, made when it is needed for the first time."""
        if self.membership is None:
            host = GroupHost(
                self.cluster,
                self._options,
                self._subscription,
                self.commits.commit_consumed,
                self.changed,
                self.event,
            )
            self.membership = self.commits.membership = make_membership(host, self._assignors)
        return self.membership

    def changed(self) -> None:
        """The partitions are others."""
        if not self._subscription.is_group:
            self.commits.membership = None
        else:
            self.commits.membership = self.membership
        self.moved()

    def moved(self) -> None:
        """Positions are others, or partitions were resumed."""
        self.positions.check()
        self.fetcher.wake()
        self.event.set()

    def put_back(self, records: list[ConsumerRecord]) -> None:
        """These were taken last, but cannot be handed out: their partitions stay where they are."""
        first: dict[TopicPartition, ConsumerRecord] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record)
        for partition, record in first.items():
            self._subscription.state(partition).seek(record.offset)
        self.fetcher.wake()

    def is_calm(self) -> bool:
        """Whether records may be handed out without serving the group first."""
        return self._loop.time() - self.served_s < TURN_S

    def _metadata_changed(self) -> None:
        self.is_metadata_new = True
        self.positions.leaders_changed()
        self.fetcher.wake()
        self.event.set()

    def _positions_found(self) -> None:
        self.found.set()
        self.fetcher.wake()
        self.event.set()

    async def close(self) -> None:
        await self.commits.close()
        await self.positions.close()
        await self.fetcher.close()
        await self.cluster.close()
