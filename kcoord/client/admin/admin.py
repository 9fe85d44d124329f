"""The admin client.

Calls about one thing raise its error. Calls about several return a mapping with a result or an error for each: one
group that does not exist does not hide the others. `only(results, key)` raises the error of one of them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from kcoord.client.admin import parts
from kcoord.client.admin.spread import Spread, only
from kcoord.client.cluster import Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import API_VERSIONS_VERSION, SOFTWARE_NAME, SOFTWARE_VERSION, ConnectionOptions
from kcoord.client.errors import IllegalState, KafkaError
from kcoord.client.partition import TopicPartition
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from kcoord.client.admin.group_offsets import GroupOffsets
    from kcoord.client.admin.results import (
        ClusterDescription,
        CommittedOffset,
        ConfigChange,
        ConfigEntry,
        ConfigResource,
        CreatedTopic,
        Features,
        FencedProducer,
        FetchedBatches,
        GroupDescription,
        GroupListing,
        ListedOffset,
        LogDir,
        NewTopic,
        ProducerDescription,
        TopicDescription,
        TopicListing,
        TransactionDescription,
        TransactionListing,
    )

DEFAULT_API_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 30.0
REMOVAL_REASON = "removed by an admin client"


@final
class Admin:
    """Use it with `async with`, or call `start` and `close`. Times are in seconds unless a name says otherwise.

    Every call ends within `default_api_timeout`, or within its own `timeout_s`. Errors are KafkaError.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        *,
        client_id: str = "kcoord-admin",
        request_timeout: float = REQUEST_TIMEOUT_S,
        default_api_timeout: float = DEFAULT_API_TIMEOUT_S,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 1.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        connection = ConnectionOptions(client_id, request_timeout, ssl_context)
        self._cluster = Cluster(
            ClusterOptions(
                parse_bootstrap(bootstrap_servers),
                connection,
                retry_backoff_s=retry_backoff,
                retry_backoff_max_s=retry_backoff_max,
            )
        )
        self._spread = Spread(self._cluster, default_api_timeout)
        self._is_started = False

    async def start(self) -> None:
        """Connect to the cluster. Raises RequestTimedOut if no broker responds in time."""
        if self._is_started:
            raise IllegalState("the admin client is already started")
        self._is_started = True
        try:
            await self._cluster.start(self._spread.api_timeout_s)
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # --- groups

    async def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = (), timeout_s: float | None = None
    ) -> list[GroupListing]:
        """The groups of all brokers by id, only those in one of the states and of one of the types, if given."""
        deadline = self._spread.deadline("the list of groups", timeout_s)
        return await parts.groups.list_groups(self._spread, deadline, states, types)

    async def describe_groups(
        self, *group_ids: str, timeout_s: float | None = None
    ) -> dict[str, GroupDescription | KafkaError]:
        """Groups of both protocols. A group that does not exist has GROUP_ID_NOT_FOUND."""
        deadline = self._spread.deadline("the description of groups", timeout_s)
        return await parts.groups.describe_groups(self._spread, deadline, group_ids)

    async def describe_group(self, group_id: str, timeout_s: float | None = None) -> GroupDescription:
        """One group. Raises its error."""
        return only(await self.describe_groups(group_id, timeout_s=timeout_s), group_id)

    async def delete_groups(self, *group_ids: str, timeout_s: float | None = None) -> dict[str, KafkaError | None]:
        """Delete groups without members, and their offsets."""
        deadline = self._spread.deadline("the deletion of groups", timeout_s)
        return await parts.group_changes.delete_groups(self._spread, deadline, group_ids)

    async def remove_members(
        self,
        group_id: str,
        members: Iterable[str] | None = None,
        *,
        instances: Iterable[str] = (),
        reason: str = REMOVAL_REASON,
        timeout_s: float | None = None,
    ) -> dict[str, KafkaError | None]:
        """Remove members by member id, or static ones by group instance id; all members if nothing is named."""
        deadline = self._spread.deadline(f"the removal of members of {group_id}", timeout_s)
        static = list(instances)
        if members is None and not static:
            described = only(await parts.groups.describe_groups(self._spread, deadline, [group_id]), group_id)
            members = [one.member_id for one in described.members]
            if not members:
                return {}
        return await parts.group_changes.remove_members(self._spread, deadline, group_id, members or (), static, reason)

    # --- offsets of groups

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_s: float | None = None,
    ) -> GroupOffsets:
        """All committed offsets of a group, or those of the partitions (KIP-88).

        Partitions without one are left out, so an empty result means: no offsets. Raises the group's error. With
        `require_stable` it waits for transactions that are about to commit offsets (KIP-447).
        """
        wanted = {group_id: partitions}
        found = await self.list_groups_offsets(wanted, require_stable=require_stable, timeout_s=timeout_s)
        return only(found, group_id)

    async def list_groups_offsets(
        self,
        groups: Mapping[str, Iterable[TopicPartition] | None],
        *,
        require_stable: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, GroupOffsets | KafkaError]:
        """The same for several groups: one request to each coordinator, from Kafka 3.0 on (KIP-709)."""
        deadline = self._spread.deadline("the offsets of groups", timeout_s)
        return await parts.group_offsets.list_offsets_of_groups(self._spread, deadline, groups, require_stable)

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset | int],
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group without members. Raises the group's error: UnknownMember if it has members."""
        deadline = self._spread.deadline(f"new offsets of {group_id}", timeout_s)
        return await parts.group_changes.alter_group_offsets(self._spread, deadline, group_id, offsets)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets of topics that no member subscribes to. Raises the group's error."""
        deadline = self._spread.deadline(f"the deletion of offsets of {group_id}", timeout_s)
        return await parts.group_changes.delete_group_offsets(self._spread, deadline, group_id, partitions)

    # --- topics

    async def list_topics(self, include_internal: bool = False, timeout_s: float | None = None) -> list[TopicListing]:
        """The topics by name."""
        deadline = self._spread.deadline("the list of topics", timeout_s)
        return await parts.topics.list_topics(self._spread, deadline, include_internal)

    async def describe_topics(
        self, *names: str, timeout_s: float | None = None
    ) -> dict[str, TopicDescription | KafkaError]:
        """Topics with their partitions, leaders and replicas."""
        deadline = self._spread.deadline("the description of topics", timeout_s)
        return await parts.topics.describe_topics(self._spread, deadline, names)

    async def create_topics(
        self, *new: NewTopic, validate_only: bool = False, timeout_s: float | None = None
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics, or with `validate_only` check whether they could be created."""
        deadline = self._spread.deadline("the creation of topics", timeout_s)
        return await parts.topic_changes.create_topics(self._spread, deadline, new, validate_only)

    async def delete_topics(self, *names: str, timeout_s: float | None = None) -> dict[str, KafkaError | None]:
        deadline = self._spread.deadline("the deletion of topics", timeout_s)
        return await parts.topic_changes.delete_topics(self._spread, deadline, names)

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> dict[str, KafkaError | None]:
        """Raise the number of partitions of topics to these counts."""
        deadline = self._spread.deadline("the creation of partitions", timeout_s)
        return await parts.topic_changes.create_partitions(self._spread, deadline, counts, validate_only)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete all records before these offsets (-1: all records). The results are the new first offsets."""
        deadline = self._spread.deadline("the deletion of records", timeout_s)
        return await parts.topic_changes.delete_records(self._spread, deadline, offsets)

    async def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, ListedOffset | KafkaError]:
        """Offsets by time: EARLIEST, LATEST, MAX_TIMESTAMP, or the first record not before a Unix time in ms.

        With `read_committed`, LATEST is the last stable offset.
        """
        deadline = self._spread.deadline("the offsets of partitions", timeout_s)
        return await parts.topics.list_offsets(self._spread, deadline, times, read_committed)

    async def first_timestamps(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int | KafkaError | None]:
        """The timestamp of the first record at or after each offset, None if there is none yet."""
        deadline = self._spread.deadline("the times of records", timeout_s)
        return await parts.records.first_timestamps(self._spread, deadline, offsets)

    async def fetch(self, partition: TopicPartition, offset: int, timeout_s: float | None = None) -> FetchedBatches:
        """The record batches of a partition from an offset on, as many as fit into one answer."""
        deadline = self._spread.deadline(f"the records of {partition}", timeout_s)
        return await parts.records.fetch(self._spread, deadline, partition, offset)

    # --- configs and log directories

    async def describe_configs(
        self, *resources: ConfigResource, timeout_s: float | None = None
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        """All configs of each resource by name, defaults included."""
        deadline = self._spread.deadline("the configs", timeout_s)
        return await parts.configs.describe_configs(self._spread, deadline, resources)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, KafkaError | None]:
        """Change the named configs and leave the others as they are (KIP-339)."""
        deadline = self._spread.deadline("the change of configs", timeout_s)
        return await parts.configs.alter_configs(self._spread, deadline, changes, validate_only)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, timeout_s: float | None = None
    ) -> dict[int, tuple[LogDir, ...] | KafkaError]:
        """The log directories of all brokers, or of these."""
        deadline = self._spread.deadline("the log directories", timeout_s)
        return await parts.configs.describe_log_dirs(self._spread, deadline, brokers)

    # --- transactions

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        *,
        longer_than_ms: int = -1,
        pattern: str | None = None,
        timeout_s: float | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers. `pattern` is a regular expression for the whole id (RE2)."""
        deadline = self._spread.deadline("the list of transactions", timeout_s)
        from kcoord.protocol.list_transactions import ListTransactionsRequest

        request = ListTransactionsRequest(list(states), list(producer_ids), longer_than_ms, pattern)
        return await parts.transactions.list_transactions(self._spread, deadline, request)

    async def describe_transactions(
        self, *transactional_ids: str, timeout_s: float | None = None
    ) -> dict[str, TransactionDescription | KafkaError]:
        deadline = self._spread.deadline("the description of transactions", timeout_s)
        return await parts.transactions.describe_transactions(self._spread, deadline, transactional_ids)

    async def describe_producers(
        self, *partitions: TopicPartition, timeout_s: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaError]:
        """The active producers of partitions, as their leaders know them."""
        deadline = self._spread.deadline("the description of producers", timeout_s)
        return await parts.transactions.describe_producers(self._spread, deadline, partitions)

    async def abort_transaction(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        timeout_s: float | None = None,
    ) -> None:
        """Write an abort marker into one partition, for a transaction that no coordinator ends (KIP-664)."""
        deadline = self._spread.deadline(f"the abort in {partition}", timeout_s)
        await parts.transactions.abort_transaction(
            self._spread, deadline, partition, producer_id, producer_epoch, max(coordinator_epoch, 0)
        )

    async def fence_producers(
        self, *transactional_ids: str, timeout_s: float | None = None
    ) -> dict[str, FencedProducer | KafkaError]:
        """Give out a new epoch of each id: its producer is fenced, its open transaction is aborted."""
        deadline = self._spread.deadline("the fencing of producers", timeout_s)
        return await parts.transactions.fence_producers(self._spread, deadline, transactional_ids)

    # --- the cluster

    async def describe_cluster(self, timeout_s: float | None = None) -> ClusterDescription:
        """The brokers, the controller and the id of the cluster."""
        from kcoord.client.admin.results import ClusterDescription

        await self._cluster.refresh(self._spread.deadline("the description of the cluster", timeout_s))
        metadata = self._cluster.metadata
        nodes = tuple(metadata.nodes[node] for node in sorted(metadata.nodes))
        return ClusterDescription(metadata.cluster_id, metadata.nodes.get(metadata.controller_id), nodes)

    async def describe_features(self, timeout_s: float | None = None) -> Features:
        """The features that are in force, and those that one broker supports (KIP-584)."""
        from kcoord.client.admin.results import Features

        deadline = self._spread.deadline("the features", timeout_s)
        request = ApiVersionsRequest(SOFTWARE_NAME, SOFTWARE_VERSION)
        answer = await self._cluster.retry(
            deadline,
            lambda: self._cluster.ask_any(
                apis.API_VERSIONS,
                request,
                ApiVersionsResponse,
                version_min=API_VERSIONS_VERSION,
                version_max=API_VERSIONS_VERSION,
            ),
        )
        finalized = {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}
        supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        return Features(finalized, supported, answer.finalized_features_epoch)
