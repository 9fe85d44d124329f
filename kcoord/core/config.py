"""Settings the core and the engine look at, with Kafka's defaults unless a comment says why not.

The server fills one CoreConfig from flags, environment and file; `kcoord.server.settings.load` holds names, types and
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

WEEK_MS: Final = 604_800_000

# The group protocols that a broker's settings may name.
PROTOCOL_CLASSIC: Final = "classic"
PROTOCOL_CONSUMER: Final = "consumer"
REBALANCE_PROTOCOLS: Final = (PROTOCOL_CONSUMER, PROTOCOL_CLASSIC, "share", "streams")

# From when the retention of offsets counts in an empty group of the new protocol: from the commit, as in Kafka, or from
# when the group became empty, as in classic groups (KIP-211).
RETENTION_FROM_COMMIT: Final = "commit"
RETENTION_FROM_EMPTY: Final = "empty"


@final
class CoreConfig:
    # Defaults stand in the class as single literals or constants: mypyc ignores expressions here.
    node_id: int = 1
    cluster_id: str = ""
    rack: str | None = None

    # Classic groups.
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1800000
    # Kafka waits 3 s for more members of an empty group; people develop and test with this, so 0.
    group_initial_rebalance_delay_ms: int = 0
    group_max_size: int = 10000  # Kafka has no limit; an unbounded group is an attack

    # Consumer groups (KIP-848).
    group_consumer_session_timeout_ms: int = 45000
    group_consumer_min_session_timeout_ms: int = 45000
    group_consumer_max_session_timeout_ms: int = 60000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_min_heartbeat_interval_ms: int = 5000
    group_consumer_max_heartbeat_interval_ms: int = 15000
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15000
    group_consumer_regex_refresh_interval_ms: int = 600000
    group_consumer_regex_min_refresh_interval_ms: int = 10000
    group_consumer_max_size: int = 10000  # as for classic groups
    # Names with commas between them; the first is what members get that ask for none.
    group_consumer_assignors: str = "uniform,range"
    group_consumer_migration_policy: str = MIGRATION_BIDIRECTIONAL
    # Names with commas between them. Kafka's default; of these streams has no effect here, nor would share have.
    group_coordinator_rebalance_protocols: str = "classic,consumer,streams"
    group_events_enable: bool = True
    group_events_retention_ms: int = WEEK_MS

    # Offsets.
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = WEEK_MS
    offsets_retention_check_interval_ms: int = 600000
    # From when retention counts in an empty consumer group.
    offsets_retention_consumer_groups_from: str = RETENTION_FROM_COMMIT
    # Kafka's default is 50; one coordinator in one process gains nothing from more. Fixed at directory creation.
    offsets_topic_num_partitions: int = 1
    transaction_topic_num_partitions: int = 1
    empty_group_id_commit: str = EMPTY_GROUP_INVALID_GROUP_ID

    # Topics.
    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    # Kafka has no limit; each takes memory, whether it is written or not.
    partitions_max: int = 50000
    # As many as Kafka's controller takes in one request.
    request_partitions_max: int = 10000
    delete_topic_enable: bool = True
    message_max_bytes: int = 1048588
    log_retention_ms: int = WEEK_MS
    log_retention_bytes: int = -1
    log_segment_bytes: int = 1073741824
    log_roll_ms: int = WEEK_MS

    # Producers.
    transactional_id_expiration_ms: int = WEEK_MS
    transaction_max_timeout_ms: int = 900000
    producer_id_expiration_ms: int = 86400000
    producer_id_block_size: int = 1000
    # A broker remembers any number, and ids can be made up.
    producers_max: int = 200_000
    producers_per_partition_max: int = 20_000

    # One request. An element costs 1 to 2 us with its answer, so this is what a turn can afford; a broker has no limit.
    request_elements_max: int = 15000
    # An assignment for the largest group: each member with a topic and four partitions, at 0.4 us each to read. What
    # follows goes on over several turns.
    install_elements_max: int = 60000

    # Fetch.
    fetch_max_bytes: int = 57671680
    # A broker bounds what requests hold (queued.max.request.bytes) and lets answers take any memory.
    queued_response_bytes_max: int = 268_435_456
    fetch_session_slots: int = 1000
    max_request_partition_size_limit: int = 2000

    # A batch of coordinator records that must be atomic may reach this size; Kafka stops at about 1 MiB.
    coordinator_batch_bytes_max: int = 67_108_864
    decompressed_bytes_max: int = 67_108_864
    # All batches of a Produce request together; 128 MiB are the largest request at a ratio of 12.
    produce_decompressed_bytes_max: int = 134_217_728

    def __init__(self) -> None:
        # Names and values exactly as configured, for DescribeConfigs of the broker: name -> value.
        self.static_values: dict[str, str] = {}
        # The same for settings of the network and the disk, which the core itself does not use, set or not.
        self.server_values: dict[str, str] = {}
