"""What the engine has to know about APIs besides their handlers."""

from __future__ import annotations

from typing import Final

from kcoord.protocol import apis

# APIs whose handlers make up identifiers.
ENTROPY_APIS: Final = frozenset(
    (
        apis.JOIN_GROUP,
        apis.CREATE_TOPICS,
        apis.METADATA,
        apis.INIT_PRODUCER_ID,
        apis.CONSUMER_GROUP_HEARTBEAT,
    )
)
# APIs that may write; they are turned away while the disk is full. Heartbeats, leaves and reads go on.
WRITING_APIS: Final = frozenset(
    (
        apis.PRODUCE,
        apis.OFFSET_COMMIT,
        apis.CREATE_TOPICS,
        apis.CREATE_PARTITIONS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.INIT_PRODUCER_ID,
        apis.OFFSET_DELETE,
    )
)
# APIs that may append much. They wait while a commit would become too large; others are heard meanwhile.
APPENDING_APIS: Final = WRITING_APIS | frozenset(
    (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.DELETE_GROUPS, apis.DELETE_TOPICS, apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT)
)
