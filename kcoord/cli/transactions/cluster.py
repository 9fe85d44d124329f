"""A blocking client for the brokers of a cluster: one request at a time, and a deadline for the whole command.

Requests go to the broker that is responsible: the leader of a partition (Metadata), or the coordinator of a
transactional id (FindCoordinator). Versions are negotiated with each broker. What a cluster answers while leaders or
coordinators move is tried again until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar, final

from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kcoord.protocol.errors import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    ERROR_NAMES,
    LEADER_NOT_AVAILABLE,
    NONE,
    NOT_COORDINATOR,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from kcoord.server.probe import Probe, ProbeError
from kcoord.server.settings.listeners import format_address, split_address
from kcoord.wire.message import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")

KEY_TYPE_TRANSACTION: Final = 1
# A list of keys instead of one, from this version of FindCoordinator on.
COORDINATOR_KEYS_FROM: Final = 4
# The first version of FindCoordinator with key types, and the newest of Metadata that names topics.
COORDINATOR_VERSION_MIN: Final = 1
METADATA_VERSION_MIN: Final = 4
PAUSE_S: Final = 0.2
RETRIED: Final = (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    LEADER_NOT_AVAILABLE,
    NOT_LEADER_OR_FOLLOWER,
)


class ClusterError(Exception):
    """The cluster did not answer in time, or refused a request. The text names what and why."""


@final
class RefusedError(ClusterError):
    """A request about `subject` got an error code."""

    def __init__(self, subject: str, code: int, detail: str | None = None) -> None:
        name = ERROR_NAMES.get(code, f"error code {code}")
        super().__init__(f"{subject}: {name}{f' ({detail})' if detail else ''}")
        self.code = code


def check(code: int, subject: str, detail: str | None = None) -> None:
    """Raise RefusedError for an error code."""
    if code != NONE:
        raise RefusedError(subject, code, detail)


@final
class Cluster:
    """Connections to the brokers. Use it as a context manager. Every failure is a ClusterError.

    `bootstrap` is `HOST:PORT`, or several of them with commas between. Raises ValueError for anything else.
    """

    def __init__(self, bootstrap: str, timeout_s: float) -> None:
        self.bootstrap = [part.strip() for part in bootstrap.split(",") if part.strip()]
        if not self.bootstrap:
            raise ValueError("no address")
        for address in self.bootstrap:
            split_address(address)
        self.timeout_s = timeout_s
        self.deadline_s = time.monotonic() + timeout_s
        self.brokers: dict[int, MetadataResponseBroker] = {}
        self._probes: dict[str, Probe] = {}
        self._versions: dict[str, dict[int, tuple[int, int]]] = {}

    def __enter__(self) -> Cluster:
        self.topics([])
        return self

    def __exit__(self, *_: object) -> None:
        for address in list(self._probes):
            self._drop(address)

    # --- requests

    def ask(self, node_id: int, api_key: int, request: Message, answer_type: type[M], version_min: int = 0) -> M:
        """Send a request to a broker in the newest version that both know, `version_min` or later."""
        return self._ask(self.address_of(node_id), api_key, request, answer_type, version_min)

    def version_of(self, node_id: int, api_key: int) -> int:
        """The newest version of an API that both the broker and this client know."""
        return self._version(self.address_of(node_id), api_key, 0)

    def address_of(self, node_id: int) -> str:
        broker = self.brokers.get(node_id)
        if broker is None:
            raise ClusterError(f"broker {node_id} is not available")
        return format_address(broker.host, broker.port)

    def topics(self, names: list[str] | None) -> list[MetadataResponseTopic]:
        """Topics with their partitions and leaders; None means all topics."""
        return self.retrying(lambda: self._topics(names))

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition."""

        def found() -> int:
            (described,) = self._topics([topic])
            check(described.error_code, f"topic {topic}")
            for one in described.partitions:
                if one.partition_index == partition:
                    check(NONE if one.leader_id >= 0 else LEADER_NOT_AVAILABLE, f"partition {topic}-{partition}")
                    return one.leader_id
            raise RefusedError(f"partition {topic}-{partition}", UNKNOWN_TOPIC_OR_PARTITION)

        return self.retrying(found)

    def coordinator(self, transactional_id: str) -> int:
        """The broker that coordinates the transactions of a transactional id."""
        return self.retrying(lambda: self._coordinator(transactional_id))

    def retrying(self, act: Callable[[], T]) -> T:
        """The result of `act`, which is called again until the deadline while leaders or coordinators move."""
        refused: RefusedError | None = None
        while True:
            try:
                return act()
            except RefusedError as error:
                if error.code not in RETRIED or time.monotonic() + PAUSE_S > self.deadline_s:
                    raise
                refused = error
            except ClusterError:
                # At the deadline, the last answer is the reason.
                if refused is None or time.monotonic() < self.deadline_s:
                    raise
                raise refused from None
            time.sleep(PAUSE_S)

    # --- one attempt

    def _topics(self, names: list[str] | None) -> list[MetadataResponseTopic]:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        answer = self._ask_any(apis.METADATA, request, MetadataResponse, METADATA_VERSION_MIN)
        check(answer.error_code, "the list of brokers")
        self.brokers = {broker.node_id: broker for broker in answer.brokers}
        return answer.topics

    def _coordinator(self, transactional_id: str) -> int:
        request = FindCoordinatorRequest(transactional_id, KEY_TYPE_TRANSACTION, [transactional_id])
        answer = self._ask_any(apis.FIND_COORDINATOR, request, FindCoordinatorResponse, COORDINATOR_VERSION_MIN)
        subject = f"the coordinator of {transactional_id}"
        if not answer.coordinators:
            check(answer.error_code, subject, answer.error_message)
            node_id, host, port = answer.node_id, answer.host, answer.port
        else:
            found = answer.coordinators[0]
            check(found.error_code, subject, found.error_message)
            node_id, host, port = found.node_id, found.host, found.port
        self.brokers.setdefault(node_id, MetadataResponseBroker(node_id, host, port))
        return node_id

    def _ask_any(self, api_key: int, request: Message, answer_type: type[M], version_min: int) -> M:
        """Ask the first address that responds: the connected ones first."""
        problems: list[str] = []
        known = [self.address_of(node_id) for node_id in self.brokers]
        for address in dict.fromkeys([*self._probes, *self.bootstrap, *known]):
            try:
                return self._ask(address, api_key, request, answer_type, version_min)
            except _Unreachable as error:
                problems.append(str(error))
        raise ClusterError("; ".join(problems))

    def _ask(self, address: str, api_key: int, request: Message, answer_type: type[M], version_min: int) -> M:
        version = self._version(address, api_key, version_min)
        if isinstance(request, FindCoordinatorRequest):
            # The fields of the other versions must be empty.
            keys = request.coordinator_keys
            is_list = version >= COORDINATOR_KEYS_FROM
            request = FindCoordinatorRequest("" if is_list else keys[0], request.key_type, keys if is_list else [])
            return self._exchange(address, api_key, version, request, answer_type)
        return self._exchange(address, api_key, version, request, answer_type)

    def _version(self, address: str, api_key: int, version_min: int) -> int:
        offered = self._versions.get(address)
        if offered is None:
            answer = self._exchange(address, apis.API_VERSIONS, 0, ApiVersionsRequest(), ApiVersionsResponse)
            check(answer.error_code, f"{address}: ApiVersions")
            offered = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            self._versions[address] = offered
        api = apis.APIS[api_key]
        least, most = offered.get(api_key, (0, -1))
        version = min(api.max_version, most)
        if version < max(api.min_version, least, version_min):
            raise ClusterError(f"{address} does not support {api.name} in a version that this command can use")
        return version

    def _exchange(self, address: str, api_key: int, version: int, request: Message, answer_type: type[M]) -> M:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise ClusterError(f"no result within {self.timeout_s:g} s (--timeout)")
        try:
            probe = self._probes.get(address)
            if probe is None:
                probe = self._probes[address] = Probe(address, left_s)
            probe.timeout_s = left_s
            return probe.ask(api_key, version, request, answer_type)
        except ProbeError as error:
            self._drop(address)
            raise _Unreachable(f"{address}: {error}") from None

    def _drop(self, address: str) -> None:
        probe = self._probes.pop(address, None)
        if probe is not None:
            probe.close()


class _Unreachable(ClusterError):
    """One address cannot be connected to, or does not answer."""
