"""Configs of topics, brokers and groups, and the log directories of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.admin.results import (
    BROKER_RESOURCE,
    CONFIG_SOURCES,
    RESOURCE_CODES,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    LogDir,
    LogReplica,
)
from kcoord.client.admin.spread import Spread
from kcoord.client.cluster import Cluster
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import InvalidConfiguration, KafkaError, check, error_for
from kcoord.client.partition import TopicPartition
from kcoord.protocol import apis
from kcoord.protocol.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from kcoord.protocol.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

KINDS: Final = {code: kind for kind, code in RESOURCE_CODES.items()}


def _code(resource: ConfigResource) -> int:
    code = RESOURCE_CODES.get(resource.kind)
    if code is None:
        raise InvalidConfiguration(f"{resource.kind!r} is not a kind of resource: {', '.join(RESOURCE_CODES)}")
    return code


def _broker(cluster: Cluster, resource: ConfigResource) -> int:
    """The broker that knows the configs of a resource: any one, except for those of one broker."""
    if resource.kind in (BROKER_RESOURCE, "broker-logger") and resource.name.isdecimal():
        return int(resource.name)
    controller = cluster.metadata.controller_id
    return controller if controller in cluster.metadata.nodes else next(iter(cluster.metadata.nodes))


async def describe_configs(
    spread: Spread, deadline: Deadline, resources: Iterable[ConfigResource]
) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
    async def ask(
        connection: Connection, part: list[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        version = connection.version(apis.DESCRIBE_CONFIGS)
        wanted = [DescribeConfigsResource(_code(one), one.name, None) for one in part]
        request = DescribeConfigsRequest(wanted, False, False)
        answer = await connection.ask(apis.DESCRIBE_CONFIGS, version, request, DescribeConfigsResponse)
        found: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
        for result in answer.results:
            key = ConfigResource(KINDS.get(result.resource_type, ""), result.resource_name)
            if result.error_code:
                found[key] = error_for(result.error_code, f"{key.kind} {key.name}", result.error_message)
                continue
            found[key] = {
                one.name: ConfigEntry(
                    one.name,
                    one.value,
                    CONFIG_SOURCES.get(one.config_source, "unknown"),
                    one.read_only,
                    one.is_sensitive,
                )
                for one in sorted(result.configs, key=lambda one: one.name)
            }
        return found

    async def locate(part: list[ConfigResource]) -> dict[ConfigResource, int | KafkaError]:
        return {one: _broker(spread.cluster, one) for one in part}

    wanted = list(resources)
    for one in wanted:
        _code(one)
    return await spread.over(deadline, wanted, locate, ask)


async def alter_configs(
    spread: Spread,
    deadline: Deadline,
    changes: Mapping[ConfigResource, Iterable[ConfigChange]],
    validate_only: bool,
) -> dict[ConfigResource, KafkaError | None]:
    given = {resource: list(some) for resource, some in changes.items()}

    async def ask(connection: Connection, part: list[ConfigResource]) -> dict[ConfigResource, KafkaError | None]:
        version = connection.version(apis.INCREMENTAL_ALTER_CONFIGS)
        altered = [
            AlterConfigsResource(
                _code(one), one.name, [AlterableConfig(it.name, it.operation, it.value) for it in given[one]]
            )
            for one in part
        ]
        request = IncrementalAlterConfigsRequest(altered, validate_only)
        answer = await connection.ask(apis.INCREMENTAL_ALTER_CONFIGS, version, request, IncrementalAlterConfigsResponse)
        found: dict[ConfigResource, KafkaError | None] = {}
        for one in answer.responses:
            key = ConfigResource(KINDS.get(one.resource_type, ""), one.resource_name)
            found[key] = None
            if one.error_code:
                found[key] = error_for(one.error_code, f"{key.kind} {key.name}", one.error_message)
        return found

    async def locate(part: list[ConfigResource]) -> dict[ConfigResource, int | KafkaError]:
        return {one: _broker(spread.cluster, one) for one in part}

    for resource in given:
        _code(resource)
    return await spread.over(deadline, given, locate, ask)


async def describe_log_dirs(
    spread: Spread, deadline: Deadline, brokers: Iterable[int] | None
) -> dict[int, tuple[LogDir, ...] | KafkaError]:
    async def ask(connection: Connection, nodes: list[int]) -> dict[int, tuple[LogDir, ...] | KafkaError]:
        version = connection.version(apis.DESCRIBE_LOG_DIRS)
        request = DescribeLogDirsRequest(None)
        answer = await connection.ask(apis.DESCRIBE_LOG_DIRS, version, request, DescribeLogDirsResponse)
        check(answer.error_code, f"the log directories of {connection.address}")
        directories = []
        for one in answer.results:
            replicas = [
                LogReplica(
                    TopicPartition(topic.name, it.partition_index), it.partition_size, it.offset_lag, it.is_future_key
                )
                for topic in one.topics
                for it in topic.partitions
            ]
            replicas.sort(key=lambda it: it.partition)
            directories.append(LogDir(one.log_dir, one.error_code, tuple(replicas), one.total_bytes, one.usable_bytes))
        return dict.fromkeys(nodes, tuple(directories))

    nodes = await spread.all_brokers(deadline) if brokers is None else brokers
    return await spread.over_brokers(deadline, nodes, ask)
