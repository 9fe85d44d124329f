"""What the admin client takes and returns. Times are Unix times in milliseconds.

The names are imported when they are used: making a class of results takes half a millisecond.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kcoord.client.admin.results.cluster import ClusterDescription, Features
    from kcoord.client.admin.results.configs import (
        APPEND,
        BROKER_RESOURCE,
        CONFIG_SOURCES,
        DELETE,
        GROUP_RESOURCE,
        RESOURCE_CODES,
        SET,
        SUBTRACT,
        TOPIC_RESOURCE,
        ConfigChange,
        ConfigEntry,
        ConfigResource,
        LogDir,
        LogReplica,
    )
    from kcoord.client.admin.results.groups import (
        CLASSIC,
        CONSUMER,
        CommittedOffset,
        GroupDescription,
        GroupListing,
        MemberDescription,
    )
    from kcoord.client.admin.results.topics import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        CreatedTopic,
        FetchedBatches,
        ListedOffset,
        NewTopic,
        PartitionDescription,
        TopicDescription,
        TopicListing,
    )
    from kcoord.client.admin.results.transactions import (
        FencedProducer,
        ProducerDescription,
        TransactionDescription,
        TransactionListing,
    )

__all__ = [
    "APPEND",
    "BROKER_RESOURCE",
    "CLASSIC",
    "CONFIG_SOURCES",
    "CONSUMER",
    "DELETE",
    "EARLIEST",
    "GROUP_RESOURCE",
    "LATEST",
    "MAX_TIMESTAMP",
    "RESOURCE_CODES",
    "SET",
    "SUBTRACT",
    "TOPIC_RESOURCE",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "CreatedTopic",
    "Features",
    "FencedProducer",
    "FetchedBatches",
    "GroupDescription",
    "GroupListing",
    "ListedOffset",
    "LogDir",
    "LogReplica",
    "MemberDescription",
    "NewTopic",
    "PartitionDescription",
    "ProducerDescription",
    "TopicDescription",
    "TopicListing",
    "TransactionDescription",
    "TransactionListing",
]

_MODULES: Final = {
    "cluster": (
        "ClusterDescription",
        "Features",
    ),
    "configs": (
        "TOPIC_RESOURCE",
        "BROKER_RESOURCE",
        "GROUP_RESOURCE",
        "RESOURCE_CODES",
        "CONFIG_SOURCES",
        "SET",
        "DELETE",
        "APPEND",
        "SUBTRACT",
        "ConfigResource",
        "ConfigEntry",
        "ConfigChange",
        "LogReplica",
        "LogDir",
    ),
    "groups": (
        "CLASSIC",
        "CONSUMER",
        "GroupListing",
        "MemberDescription",
        "GroupDescription",
        "CommittedOffset",
    ),
    "topics": (
        "EARLIEST",
        "LATEST",
        "MAX_TIMESTAMP",
        "ListedOffset",
        "FetchedBatches",
        "TopicListing",
        "PartitionDescription",
        "TopicDescription",
        "NewTopic",
        "CreatedTopic",
    ),
    "transactions": (
        "TransactionListing",
        "TransactionDescription",
        "ProducerDescription",
        "FencedProducer",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
