"""The logs below one path, `load("a")`, or below each of several, `load(["a", "b"])`."""

from __future__ import annotations

import dataclasses
from typing import Any

from kcoord.spark.reader.discovery import SELF, discover
from kcoord.spark.reader.options import ReadOptions
from kcoord.spark.reader.planner import Planner
from kcoord.spark.reader.slices import LogPartition, Slice


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
    """Slices of partitions that lost all segments, each once."""
    found = {part.segment.path: part for root in roots for part in planner.emptied(root, partitions)}
    return list(found.values())
