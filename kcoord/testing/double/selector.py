"""Which requests a rule is about: by API, version, client and connection, and by what a request names.

A request names groups, topics with partitions, and transactional ids. They are found by the names of the fields, which
are the same in all requests. A selector with several conditions matches a request that meets all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, final

from kcoord.protocol import apis
from kcoord.server.exchange import Request
from kcoord.wire.message import Message

NAMES: Final = {api.name: key for key, api in apis.APIS.items() if api.served}
# FindCoordinator and ListConfigResources have a type beside their keys.
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
NO_TOPIC_ID: Final = bytes(16)
PARTITION_FIELDS: Final = ("partition", "partition_index", "index")
# Requests that name topics, with answers that have all partitions of them.
TOPIC_QUESTIONS: Final = (apis.METADATA, apis.DESCRIBE_TOPIC_PARTITIONS)


class Conditions(TypedDict, total=False):
    """The conditions of a Selector but for the API, as arguments of the controls."""

    version: int
    client_id: str
    connection: int
    group: str
    topic: str
    partition: int
    transactional_id: str


# From a topic id to its name; empty if there is no such topic.
TopicNames = Callable[[bytes], str]


@final
@dataclass(slots=True)
class Subjects:
    """What a request names."""

    groups: set[str] = field(default_factory=set)
    # The partitions of each topic; none for a request that names the topic only.
    topics: dict[str, set[int]] = field(default_factory=dict)
    transactional_ids: set[str] = field(default_factory=set)
    # It asks for all topics; what it names without partitions, it names with all of them.
    has_all_topics: bool = False
    has_all_partitions: bool = False


def subjects_of(message: Message, topic_name: TopicNames) -> Subjects:
    found = Subjects()
    _collect(message, found, topic_name)
    return found


def _collect(message: Message, found: Subjects, topic_name: TopicNames) -> None:
    topic = ""
    partitions: set[int] = set()
    key_type = getattr(message, "key_type", GROUP_KEY)
    for name in message.FIELDS:
        value = getattr(message, name)
        if name in ("group_id", "group_ids", "groups_names") or (name == "groups" and _is_texts(value)):
            found.groups.update(_texts(value))
        elif name in ("key", "coordinator_keys") and "key_type" in message.FIELDS:
            keys = found.groups if key_type == GROUP_KEY else found.transactional_ids
            keys.update(_texts(value))
        elif name in ("transactional_id", "transactional_ids", "v3_and_below_transactional_id"):
            found.transactional_ids.update(_texts(value))
        elif name in ("topic_names", "subscribed_topic_names"):
            for one in _texts(value):
                found.topics.setdefault(one, set())
        elif name in ("topic", "name", "topic_name") and value and "config_operation" not in message.FIELDS:
            topic = topic or value
        elif name == "topic_id" and value != NO_TOPIC_ID:
            topic = topic or topic_name(value)
        elif name in ("partitions", "partition_indexes") and value and isinstance(value[0], int):
            partitions.update(value)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Message):
                    partitions.update(_partition(one))
                    _collect(one, found, topic_name)
        elif isinstance(value, Message):
            _collect(value, found, topic_name)
    if topic:
        found.topics.setdefault(topic, set()).update(partitions)


def _asks_for_all_topics(request: Request) -> bool:
    message: Any = request.message
    if request.api_key == apis.METADATA:
        return message.topics is None or (request.version == 0 and not message.topics)
    if request.api_key == apis.DESCRIBE_TOPIC_PARTITIONS:
        return not message.topics
    if request.api_key == apis.OFFSET_FETCH:
        return message.topics is None or any(group.topics is None for group in message.groups)
    return False


def _partition(message: Message) -> list[int]:
    return [getattr(message, name) for name in PARTITION_FIELDS if name in message.FIELDS]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _texts(value: Any) -> list[str]:
    """The names; an empty text is a field that this version of the request does not use."""
    if isinstance(value, str):
        return [value] if value else []
    return value if _is_texts(value) else []


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Conditions that a request must meet; None: any. `api` is Kafka's name, such as `OffsetCommit`.

    Raises ValueError for an unknown API.
    """

    api: str | None = None
    version: int | None = None
    client_id: str | None = None
    connection: int | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    transactional_id: str | None = None

    def __post_init__(self) -> None:
        if self.api is not None and self.api not in NAMES:
            close = [name for name in sorted(NAMES) if name.lower() == self.api.lower().removesuffix("request")]
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(NAMES))}"
            raise ValueError(f"there is no API {self.api!r}{hint}")

    def matches(self, request: Request, connection: int, topic_name: TopicNames) -> bool:
        if self.api is not None and NAMES[self.api] != request.api_key:
            return False
        if self.version is not None and self.version != request.version:
            return False
        if self.connection is not None and self.connection != connection:
            return False
        if self.client_id is not None and self.client_id != request.client_id:
            return False
        if self.group is None and self.topic is None and self.partition is None and self.transactional_id is None:
            return True
        if request.message is None:
            return False
        found = subjects_of(request.message, topic_name)
        found.has_all_topics = _asks_for_all_topics(request)
        found.has_all_partitions = found.has_all_topics or request.api_key in TOPIC_QUESTIONS
        return self._names(found)

    def _names(self, found: Subjects) -> bool:
        if self.group is not None and self.group not in found.groups:
            return False
        if self.transactional_id is not None and self.transactional_id not in found.transactional_ids:
            return False
        if found.has_all_topics:
            return True
        if self.topic is not None and self.topic not in found.topics:
            return False
        if self.partition is None or found.has_all_partitions:
            return True
        topics = found.topics if self.topic is None else {self.topic: found.topics[self.topic]}
        return any(self.partition in partitions for partitions in topics.values())

    def __str__(self) -> str:
        names = ("version", "client_id", "connection", "group", "topic", "partition", "transactional_id")
        conditions = [f"{name}={getattr(self, name)!r}" for name in names if getattr(self, name) is not None]
        return " ".join([self.api or "any request", *conditions])
