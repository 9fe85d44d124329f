"""The values of settings that have a fixed set of values, as the core compares them."""

from __future__ import annotations

from typing import Final

# How an OffsetCommit with an empty group id is answered from version 4 on (KIP-289).
EMPTY_GROUP_INVALID_GROUP_ID: Final = "invalid-group-id"
EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT: Final = "illegal-offset-commit"
EMPTY_GROUP_ALLOW: Final = "allow"

# Which groups with members may change their protocol (KIP-848). Empty groups always may.
MIGRATION_BIDIRECTIONAL: Final = "bidirectional"
MIGRATION_UPGRADE: Final = "upgrade"
MIGRATION_DOWNGRADE: Final = "downgrade"
MIGRATION_DISABLED: Final = "disabled"

# The values of `group.coordinator.rebalance.protocols`.
PROTOCOL_CLASSIC: Final = "classic"
PROTOCOL_CONSUMER: Final = "consumer"
REBALANCE_PROTOCOLS: Final = (PROTOCOL_CONSUMER, PROTOCOL_CLASSIC, "share", "streams")

# The start of the retention of offsets in an empty consumer group: the commit, as in Kafka, or the time when the group
# became empty, as in classic groups (KIP-211).
RETENTION_FROM_COMMIT: Final = "commit"
RETENTION_FROM_EMPTY: Final = "empty"
