"""The broker's own configurations, as DescribeConfigs shows them: only those that this server uses.

Most are fixed when the server starts. Those that can be set at run time are defaults of topics, which the registry
reads anew each time.
"""

from __future__ import annotations

from typing import final

from kcoord.core.admin.shown_settings import SERVER_SHOWN, shown_settings
from kcoord.core.config import CoreConfig
from kcoord.core.topics.config_defs import BROKER_ASSIGNMENT_INTERVAL, INT, TOPIC_DEFAULTS


@final
class BrokerDef:
    """A configuration of the broker with its value at start-up; None if it has none."""

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
        for name, kind, doc in SERVER_SHOWN:
            if name in config.server_values:
                self.by_name[name] = BrokerDef(name, kind, config.server_values[name], False, doc)
        for name, kind, value, doc in shown_settings(config):
            self.by_name[name] = BrokerDef(name, kind, value, False, doc)
        self.by_name[BROKER_ASSIGNMENT_INTERVAL].is_dynamic = True
        node_id = str(config.node_id)
        self.by_name["broker.id"] = BrokerDef(
            "broker.id", INT, node_id, False, "The number of this node under its older name."
        )
        self._add_topic_defaults(config)

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
            elif broker_name == "log.preallocate":
                value = "true" if config.log_preallocate else "false"
            else:
                value = config.static_values.get(broker_name, value)
            self.by_name[broker_name] = BrokerDef(broker_name, definition.kind, value, True, definition.doc)
