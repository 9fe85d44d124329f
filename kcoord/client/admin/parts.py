"""The modules of the admin client's calls, imported when one of their calls is made: a command needs one or two."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kcoord.client.admin import (
        configs,
        group_changes,
        group_offsets,
        groups,
        records,
        topic_changes,
        topics,
        transactions,
    )

__all__ = ["configs", "group_changes", "group_offsets", "groups", "records", "topic_changes", "topics", "transactions"]

_NAMES: Final = frozenset(__all__)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"kcoord.client.admin.{name}")
