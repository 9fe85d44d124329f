"""Settings the core and the engine look at, with Kafka's defaults unless a comment says why not.

The server fills one CoreConfig from flags, environment and file; `kcoord.server.config` holds names, types and
documentation. Plain attributes, so that compiled code reads them at no cost.
"""

from __future__ import annotations

from typing import Final, final

INT32_MAX: Final = 2147483647

# What a commit with an empty group id gets from version 4 on (KIP-289).
EMPTY_GROUP_INVALID_GROUP_ID: Final = "invalid-group-id"
EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT: Final = "illegal-offset-commit"
EMPTY_GROUP_ALLOW: Final = "allow"

# Which groups with members may change their protocol (KIP-848). Empty ones always may.
MIGRATION_BIDIRECTIONAL: Final = "bidirectional"
MIGRATION_UPGRADE: Final = "upgrade"
MIGRATION_DOWNGRADE: Final = "downgrade"
MIGRATION_DISABLED: Final = "disabled"


@final
class CoreConfig:
    def __init__(self) -> None:
        self.node_id = 1
        self.cluster_id = ""
        self.rack: str | None = None

        # Classic groups.
        self.group_min_session_timeout_ms = 6000
        self.group_max_session_timeout_ms = 1800000
        # Kafka waits 3 s for more members of an empty group; people develop and test with this, so 0.
        self.group_initial_rebalance_delay_ms = 0
        self.group_max_size = 10000  # Kafka has no limit; an unbounded group is an attack

        # Consumer groups (KIP-848).
        self.group_consumer_session_timeout_ms = 45000
        self.group_consumer_min_session_timeout_ms = 45000
        self.group_consumer_max_session_timeout_ms = 60000
        self.group_consumer_heartbeat_interval_ms = 5000
        self.group_consumer_min_heartbeat_interval_ms = 5000
        self.group_consumer_max_heartbeat_interval_ms = 15000
        self.group_consumer_assignment_interval_ms = 1000
        self.group_consumer_min_assignment_interval_ms = 0
        self.group_consumer_max_assignment_interval_ms = 15000
        self.group_consumer_regex_refresh_interval_ms = 600000
        self.group_consumer_regex_min_refresh_interval_ms = 10000
        self.group_consumer_max_size = 10000  # as for classic groups
        # Names with commas between them; the first is what members get that ask for none.
        self.group_consumer_assignors = "uniform,range"
        self.group_consumer_migration_policy = MIGRATION_BIDIRECTIONAL
        self.group_events_enable = True
        self.group_events_retention_ms = 7 * 24 * 3600 * 1000

        # Offsets.
        self.offset_metadata_max_bytes = 4096
        self.offsets_retention_ms = 7 * 24 * 3600 * 1000
        self.offsets_retention_check_interval_ms = 600000
        # Kafka's default is 50; one coordinator in one process gains nothing from more. Fixed at directory creation.
        self.offsets_topic_num_partitions = 1
        self.transaction_topic_num_partitions = 1
        self.empty_group_id_commit = EMPTY_GROUP_INVALID_GROUP_ID

        # Topics.
        self.auto_create_topics_enable = True
        self.num_partitions = 1
        self.default_replication_factor = 1
        # Kafka bounds partitions per request only by its controller's record limit (10,000).
        self.partitions_max = 10000
        self.delete_topic_enable = True
        self.message_max_bytes = 1048588
        self.log_retention_ms = 7 * 24 * 3600 * 1000
        self.log_retention_bytes = -1
        self.log_segment_bytes = 1073741824
        self.log_roll_ms = 7 * 24 * 3600 * 1000

        # Producers.
        self.transactional_id_expiration_ms = 7 * 24 * 3600 * 1000
        self.transaction_max_timeout_ms = 900000
        self.producer_id_expiration_ms = 86400000
        self.producer_id_block_size = 1000

        # Fetch.
        self.fetch_max_bytes = 57671680
        self.fetch_session_slots = 1000
        self.max_request_partition_size_limit = 2000

        # A batch of coordinator records that must be atomic may reach this size; Kafka stops at about 1 MiB.
        self.coordinator_batch_bytes_max = 64 * 1024 * 1024
        self.decompressed_bytes_max = 64 * 1024 * 1024

        # Names and values exactly as configured, for DescribeConfigs of the broker: name -> value.
        self.static_values: dict[str, str] = {}
