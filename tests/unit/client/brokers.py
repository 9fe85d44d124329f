"""A cluster of two scripted brokers: who coordinates what, and with which versions, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

from kcoord.client.metadata import NO_ID
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from kcoord.protocol.errors import NONE, UNKNOWN_TOPIC_OR_PARTITION
from kcoord.protocol.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcoord.wire.message import Message
from kcoord.wire.primitives import Reader
from tests.unit.client.peers import answer_frame, peer

# (node id, version, request) -> the answer, or None for no answer.
Handler = Callable[[int, int, Message], Message | None]


@final
class Brokers:
    """Node ids 1 and 2. Change the attributes at any time."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        # Topics with the leader of each partition.
        self.topics: dict[str, list[int]] = {}
        # The leader epoch of each topic's partitions, 0 if it is not there.
        self.epochs: dict[str, int] = {}
        # Their ids, if they have any.
        self.ids: dict[str, bytes] = {}
        # APIs that are in no list of versions, and those at whose requests the brokers close the connection.
        self.missing: set[int] = set()
        self.hangs_up_at: set[int] = set()
        # The coordinator of each group, node 1 if it is not there.
        self.coordinators: dict[str, int] = {}
        self.coordinator_errors: dict[str, int] = {}
        self.version_max: dict[int, int] = {}
        # The levels of the cluster's features.
        self.features: dict[str, int] = {}
        self.handlers: dict[int, Handler] = {}
        # (node id, API key, version) of every request but ApiVersions and Metadata.
        self.seen: list[tuple[int, int, int]] = []

    def count(self, api_key: int) -> int:
        return sum(1 for one in self.seen if one[1] == api_key)

    def behave(self, node_id: int) -> Callable[[int, int, int, Reader], Awaitable[bytes | None]]:
        async def behave(key: int, version: int, correlation_id: int, body: Reader) -> bytes | None:
            await asyncio.sleep(0)
            if key == apis.API_VERSIONS:
                return answer_frame(key, version, correlation_id, self._versions())
            if key in self.hangs_up_at:
                raise ConnectionError(f"API {key}")
            request = apis.decode_request(key, body, version)
            answer: Message | None
            if isinstance(request, MetadataRequest):
                answer = self._metadata(request)
            else:
                self.seen.append((node_id, key, version))
                if isinstance(request, FindCoordinatorRequest):
                    answer = self._coordinator(version, request)
                else:
                    answer = self.handlers[key](node_id, version, request)
            return None if answer is None else answer_frame(key, version, correlation_id, answer)

        return behave

    def _versions(self) -> ApiVersionsResponse:
        known = [
            ApiVersion(api.key, api.min_version, min(api.max_version, self.version_max.get(api.key, 99)))
            for api in apis.APIS.values()
            if api.key not in self.missing
        ]
        features = [FinalizedFeatureKey(name, level, 1) for name, level in self.features.items()]
        return ApiVersionsResponse(NONE, known, finalized_features=features)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node, "127.0.0.1", port) for node, port in self.ports.items()]
        names = {topic_id: name for name, topic_id in self.ids.items()}
        if request.topics is None:
            topics = [self._topic(name) for name in self.topics]
        else:
            # By name, or by id.
            wanted = [names.get(one.topic_id, "") if one.name is None else one.name for one in request.topics]
            topics = [self._topic(name) for name in wanted]
        return MetadataResponse(0, brokers, "cluster", 1, topics)

    def _topic(self, name: str) -> MetadataResponseTopic:
        partitions = [
            MetadataResponsePartition(NONE, number, leader, self.epochs.get(name, 0), [leader], [leader])
            for number, leader in enumerate(self.topics.get(name, []))
        ]
        code = NONE if name in self.topics else UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(code, name, self.ids.get(name, NO_ID), partitions=partitions)

    def _coordinator(self, version: int, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if version >= 4:
            return FindCoordinatorResponse(coordinators=[self._found(key) for key in request.coordinator_keys])
        one = self._found(request.key)
        return FindCoordinatorResponse(0, one.error_code, None, one.node_id, one.host, one.port)

    def _found(self, key: str) -> Coordinator:
        error = self.coordinator_errors.get(key, NONE)
        node = -1 if error else self.coordinators.get(key, 1)
        return Coordinator(key, node, "127.0.0.1", self.ports.get(node, -1), error, None)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[Brokers]:
    brokers = Brokers()
    async with AsyncExitStack() as stack:
        for node_id in (1, 2):
            brokers.ports[node_id] = (await stack.enter_async_context(peer(brokers.behave(node_id))))[1]
        yield brokers
