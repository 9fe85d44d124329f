"""Field-by-field comparison of two recorded conversations (see session.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Lists whose order means nothing to a client, with what orders their elements.
ORDER_BY = {
    "topics": ("name", "topic", "topicName", "topicId"),
    "partitions": ("partitionIndex", "partition"),
    "groups": ("groupId",),
    "configs": ("name",),
    "results": ("groupId", "name", "resourceName", "topicId"),
    "responses": ("name", "topic", "topicId", "resourceName"),
    "apiKeys": ("apiKey",),
    "configResources": ("resourceType", "resourceName"),
    "members": ("memberId", "groupInstanceId"),
    "coordinators": ("key",),
    "supportedFeatures": ("name",),
    "finalizedFeatures": ("name",),
    "transactionStates": ("transactionalId",),
    "activeProducers": ("producerId",),
    "resultsByTopicV3AndBelow": ("name",),
    "resultsByTransaction": ("transactionalId",),
    "topicResults": ("name",),
    "resultsByPartition": ("partitionIndex",),
}


@dataclass(frozen=True)
class Difference:
    """`path` leads to the field inside the response; a missing side is the text MISSING."""

    script: str
    index: int
    step: str
    api: str
    version: int
    path: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        where = f"{self.script}[{self.index}] {self.step!r}: {self.api} v{self.version} {self.path}"
        return f"{where}: expected {self.expected!r}, got {self.actual!r}"


MISSING = "(missing)"


def sort_key(element: Any, fields: tuple[str, ...]) -> str:
    return "|".join(f"{element.get(field)!s:>12}" for field in fields if field in element)


def ordered(key: str, items: list[Any]) -> list[Any]:
    if key in ORDER_BY and all(isinstance(item, dict) for item in items):
        return sorted(items, key=lambda item: sort_key(item, ORDER_BY[key]))
    return items


def named(key: str, element: Any, index: int) -> str:
    """How an element of a list stands in a path: configs, APIs and features by their name, all else by position."""
    if key in ("configs", "apiKeys", "supportedFeatures", "finalizedFeatures") and isinstance(element, dict):
        return str(element.get("name", element.get("apiKey")))
    return str(index)


def walk(path: str, key: str, expected: Any, actual: Any) -> list[tuple[str, Any, Any]]:
    """(path, expected, actual) of every leaf that differs."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        found = []
        for name in [*expected, *(name for name in actual if name not in expected)]:
            sides = expected.get(name, MISSING), actual.get(name, MISSING)
            found += walk(f"{path}.{name}" if path else name, name, *sides)
        return found
    if isinstance(expected, list) and isinstance(actual, list):
        left = {named(key, item, i): item for i, item in enumerate(ordered(key, expected))}
        right = {named(key, item, i): item for i, item in enumerate(ordered(key, actual))}
        found = []
        for name in [*left, *(name for name in right if name not in left)]:
            found += walk(f"{path}[{name}]", key, left.get(name, MISSING), right.get(name, MISSING))
        return found
    return [] if expected == actual else [(path, expected, actual)]


def differences(script: str, expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[Difference]:
    """All differences between what was answered; the steps themselves must be the same."""
    found = []
    for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
        api = left.get("api", f"key {left.get('api_key')}")
        outcome = [{k: v for k, v in side.items() if k in OUTCOME} for side in (left, right)]
        for path, want, got in walk("", "", *outcome):
            found.append(Difference(script, index, left["step"], api, left["version"], path, want, got))
    if len(expected) != len(actual):
        found.append(Difference(script, len(actual), "the script's length", "", 0, "", len(expected), len(actual)))
    return found


OUTCOME = ("response", "closed", "silent", "response_hex")
