"""The broker's own configurations, as DescribeConfigs shows them: only those that this server heeds.

Most are fixed when the server starts. Those that can be set while it runs are the defaults of topics, which the
registry looks up anew each time.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.topics.config_defs import (
    BOOLEAN,
    BROKER_ASSIGNMENT_INTERVAL,
    INT,
    LIST,
    LONG,
    STRING,
    TOPIC_DEFAULTS,
)

MINUTE_MS: Final = 60 * 1000


# Times that Kafka keeps in 32 bits; the others are LONG.
INT_TIMES: Final = frozenset(
    (
        "group.consumer.assignment.interval.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.initial.rebalance.delay.ms",
        "group.max.session.timeout.ms",
        "group.min.session.timeout.ms",
        "producer.id.expiration.ms",
        "transaction.max.timeout.ms",
        "transactional.id.expiration.ms",
    )
)

# Settings of network and disk that clients' tools look for, under Kafka's names: name, type, what it is.
SERVER_CONFIGS: Final = (
    ("advertised.listeners", LIST, "What clients are told to connect to."),
    ("connections.max.idle.ms", LONG, "How long a connection may be idle."),
    ("listeners", LIST, "Where the server listens."),
    ("log.dirs", LIST, "The data directory."),
    ("max.connection.creation.rate", INT, "New connections in a second."),
    ("max.connections", INT, "Connections in all."),
    ("max.connections.per.ip", INT, "Connections of one address."),
    ("queued.max.request.bytes", LONG, "Bytes of requests that wait, on all connections together."),
    ("socket.listen.backlog.size", INT, "Connections that may wait to be accepted."),
    ("socket.request.max.bytes", INT, "The largest request."),
)


@final
class BrokerDef:
    """A configuration of the broker with the value it was started with; None when it has none."""

    def __init__(self, name: str, kind: int, value: str | None, is_dynamic: bool, doc: str) -> None:
        self.name = name
        self.kind = kind
        self.value = value
        self.is_dynamic = is_dynamic
        self.doc = doc


@final
class BrokerConfigs:
    def __init__(self, config: CoreConfig) -> None:
        self.by_name: dict[str, BrokerDef] = {}
        self._add_server(config)
        self._add_node(config)
        self._add_groups(config)
        self._add_consumer_groups(config)
        self._add_producers(config)
        self._add_topic_defaults(config)

    def _add(self, name: str, kind: int, value: str | None, doc: str) -> None:
        self.by_name[name] = BrokerDef(name, kind, value, False, doc)

    def _number(self, name: str, value: int, doc: str) -> None:
        is_long = name not in INT_TIMES and (name.endswith(".ms") or not -2147483648 <= value <= 2147483647)
        self._add(name, LONG if is_long else INT, str(value), doc)

    def _flag(self, name: str, value: bool, doc: str) -> None:
        self._add(name, BOOLEAN, "true" if value else "false", doc)

    def _add_server(self, config: CoreConfig) -> None:
        """What the server heeds and the core is only told."""
        for name, kind, doc in SERVER_CONFIGS:
            value = config.server_values.get(name)
            if value is not None:
                self._add(name, kind, value, doc)

    def _add_node(self, config: CoreConfig) -> None:
        self._number("node.id", config.node_id, "The number of this node.")
        self._number("broker.id", config.node_id, "The number of this node under its older name.")
        self._add("broker.rack", STRING, config.rack, "The rack that clients are told.")
        self._flag(
            "auto.create.topics.enable",
            config.auto_create_topics_enable,
            "Whether asking for an unknown topic may create it.",
        )
        self._flag("delete.topic.enable", config.delete_topic_enable, "Whether topics can be deleted.")
        self._number(
            "num.partitions", config.num_partitions, "Partitions of a topic created without saying how many."
        )
        self._number(
            "default.replication.factor",
            config.default_replication_factor,
            "Replicas of a topic created without saying how many.",
        )
        self._number("fetch.max.bytes", config.fetch_max_bytes, "The most that one Fetch returns.")
        self._number(
            "max.incremental.fetch.session.cache.slots",
            config.fetch_session_slots,
            "Incremental fetch sessions that are kept.",
        )
        self._number(
            "max.request.partition.size.limit",
            config.max_request_partition_size_limit,
            "The most partitions that one DescribeTopicPartitions returns.",
        )

    def _add_groups(self, config: CoreConfig) -> None:
        self._number(
            "group.min.session.timeout.ms",
            config.group_min_session_timeout_ms,
            "The shortest session timeout.",
        )
        self._number(
            "group.max.session.timeout.ms",
            config.group_max_session_timeout_ms,
            "The longest session timeout.",
        )
        self._number(
            "group.initial.rebalance.delay.ms",
            config.group_initial_rebalance_delay_ms,
            "How long an empty group waits for more members before its first rebalance.",
        )
        self._number("group.max.size", config.group_max_size, "Members of one group.")
        self._number(
            "offset.metadata.max.bytes",
            config.offset_metadata_max_bytes,
            "The longest metadata of an offset.",
        )
        self._number(
            "offsets.retention.minutes",
            config.offsets_retention_ms // MINUTE_MS,
            "How long the offsets of an empty group are kept.",
        )
        self._number(
            "offsets.retention.check.interval.ms",
            config.offsets_retention_check_interval_ms,
            "How often expired offsets are looked for.",
        )
        self._number(
            "offsets.topic.num.partitions",
            config.offsets_topic_num_partitions,
            "Partitions of `__consumer_offsets` in a new data directory.",
        )

    def _add_consumer_groups(self, config: CoreConfig) -> None:
        """KIP-848. How often regular expressions are resolved anew is not shown, since Kafka does not."""
        self._bounded(
            "session.timeout.ms",
            config.group_consumer_session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
            "How long a silent member of a consumer group stays.",
            "session timeout that a group may set.",
        )
        self._bounded(
            "heartbeat.interval.ms",
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
            "How often members of a consumer group are told to heartbeat.",
            "heartbeat interval that a group may set.",
        )
        self._bounded(
            "assignment.interval.ms",
            config.group_consumer_assignment_interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
            "The least time between two assignments of a consumer group.",
            "assignment interval that a group may set.",
        )
        self.by_name[BROKER_ASSIGNMENT_INTERVAL].is_dynamic = True
        self._number("group.consumer.max.size", config.group_consumer_max_size, "Members of one consumer group.")
        self._add(
            "group.coordinator.rebalance.protocols",
            LIST,
            config.group_coordinator_rebalance_protocols,
            "The group protocols that are served; deprecated in Kafka.",
        )
        self._add(
            "group.consumer.assignors",
            LIST,
            config.group_consumer_assignors,
            "The server's assignors; a member that asks for none gets the first.",
        )
        self._add(
            "group.consumer.migration.policy",
            STRING,
            config.group_consumer_migration_policy,
            "Which groups with members may change their protocol.",
        )

    def _bounded(self, what: str, value: int, low: int, high: int, doc: str, of_bounds: str) -> None:
        self._number("group.consumer." + what, value, doc)
        self._number("group.consumer.min." + what, low, "The shortest " + of_bounds)
        self._number("group.consumer.max." + what, high, "The longest " + of_bounds)

    def _add_producers(self, config: CoreConfig) -> None:
        self._number(
            "transaction.state.log.num.partitions",
            config.transaction_topic_num_partitions,
            "Partitions of `__transaction_state` in a new data directory.",
        )
        self._number(
            "transactional.id.expiration.ms",
            config.transactional_id_expiration_ms,
            "How long an unused transactional id is remembered.",
        )
        self._number(
            "transaction.max.timeout.ms",
            config.transaction_max_timeout_ms,
            "The longest transaction timeout.",
        )
        self._number(
            "producer.id.expiration.ms",
            config.producer_id_expiration_ms,
            "How long the sequence numbers of an idle producer are remembered.",
        )

    def _add_topic_defaults(self, config: CoreConfig) -> None:
        for broker_name in TOPIC_DEFAULTS:
            definition = TOPIC_DEFAULTS[broker_name]
            value: str = definition.default
            if broker_name == "message.max.bytes":
                value = str(config.message_max_bytes)
            elif broker_name == "log.retention.ms":
                value = str(config.log_retention_ms)
            elif broker_name == "log.retention.bytes":
                value = str(config.log_retention_bytes)
            elif broker_name == "log.segment.bytes":
                value = str(config.log_segment_bytes)
            elif broker_name == "log.roll.ms":
                value = str(config.log_roll_ms)
            else:
                value = config.static_values.get(broker_name, value)
            self.by_name[broker_name] = BrokerDef(broker_name, definition.kind, value, True, definition.doc)
