"""The logs below the path of a read, or below each of several: `load("a")`, `load(["a", "b"])`."""

from __future__ import annotations

import dataclasses
from typing import Any

from kcoord.spark.discovery import SELF, discover
from kcoord.spark.options import ReadOptions
from kcoord.spark.plan import LogPartition, Slice
from kcoord.spark.planning import Planner


def open_logs(options: ReadOptions) -> tuple[Any, list[str], list[LogPartition]]:
    """Filesystem, paths in it, and all partitions by path, log, topic and number. Raises OSError and ValueError.

    With several paths, names of logs begin with the path. A partition below two of them is read once, with the first.
    """
    filesystem, root = options.storage.open()
    if not options.more_paths:
        return filesystem, [root], discover(filesystem, root)
    roots: list[str] = []
    found: dict[str, LogPartition] = {}
    for path in (options.storage.path, *options.more_paths):
        _, root = dataclasses.replace(options.storage, path=path).open()
        roots.append(root)
        for one in discover(filesystem, root):
            name = path.rstrip("/") or path
            log = name if one.log == SELF else f"{name.rstrip('/')}/{one.log}"
            found.setdefault(one.path, dataclasses.replace(one, log=log))
    return filesystem, roots, list(found.values())


def emptied_in(planner: Planner, roots: list[str], partitions: list[LogPartition]) -> list[Slice]:
    """Slices of partitions that lost their segments, each once."""
    found = {part.segment.path: part for root in roots for part in planner.emptied(root, partitions)}
    return list(found.values())
