"""Seeds: topics, records and committed offsets as a document, in YAML or JSON. docs/testing.md has an example.

Everything is checked before anything is written. A mistake is reported with its place in the document, such as
`topics.orders.records[2].key`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, NoReturn, final

from kcoord.testing.state.records import NewRecord
from kcoord.wire.record_batch import Headers

TOP_FIELDS: Final = ("topics", "groups")
# What other servers have and this one does not.
ABSENT_FIELDS: Final = ("users", "acls")
TOPIC_FIELDS: Final = ("partitions", "configs", "records")
RECORD_FIELDS: Final = ("key", "value", "headers", "partition", "timestamp", "timestamp_ms")
HEADER_FIELDS: Final = ("key", "value")
YAML_SUFFIXES: Final = (".yaml", ".yml")
# The server decides: the setting num.partitions.
DEFAULT_PARTITIONS: Final = -1
SHOWN_MAX: Final = 40


class SeedError(ValueError):
    """A seed that cannot be read, has a mistake, or was refused by the server."""


@final
@dataclass(frozen=True, slots=True)
class SeedTopic:
    name: str
    partitions: int
    configs: Mapping[str, object]
    records: list[NewRecord]


@final
@dataclass(frozen=True, slots=True)
class Seed:
    """`source` is for messages."""

    source: str
    topics: list[SeedTopic]
    # By group and (topic, partition).
    groups: dict[str, dict[tuple[str, int], int]]


def load_seed(source: str | Path | Mapping[str, Any]) -> Seed:
    """Read a file, or take a document as it is. Raises SeedError."""
    if isinstance(source, Mapping):
        return parse_seed(source, "seed")
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SeedError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    document = _load_yaml(text, path) if path.suffix in YAML_SUFFIXES else _load_json(text, path)
    return parse_seed({} if document is None else document, str(path))


def _load_json(text: str, path: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise SeedError(f"{path}: {next(name for name in names if names.count(name) > 1)!r} is given twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        hint = "" if path.suffix == ".json" else " (the name of a YAML file ends with .yaml or .yml)"
        raise SeedError(f"{path} is not JSON: {error}{hint}") from None


def _load_yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise SeedError(
            f"{path}: reading YAML needs PyYAML; install it (pip install pyyaml), or write the seed as JSON"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined, unused-ignore]
        """Refuses a name that is given twice, where YAML would take the last one."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = []
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if name in seen:
                    raise SeedError(f"{path}, line {key.start_mark.line + 1}: {name!r} is given twice")
                seen.append(name)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise SeedError(f"{path} is not YAML: {error}") from None


def parse_seed(document: Mapping[str, Any], source: str) -> Seed:
    """Check a document. Raises SeedError."""
    return _Checker(source).seed(document)


def parse_records(given: list[Any], source: str) -> list[NewRecord]:
    """Records as in a seed; null is a record without a value. Raises SeedError."""
    checker = _Checker(source)
    return [checker.record({"value": None} if one is None else one, f"[{at}]") for at, one in enumerate(given)]


@final
class _Checker:
    """Checks a document from the top down; `place` is where a value stands."""

    def __init__(self, source: str) -> None:
        self._source = source

    def _fail(self, place: str, problem: str) -> NoReturn:
        raise SeedError(f"{self._source}: {place}: {problem}" if place else f"{self._source}: {problem}")

    def _mapping(self, value: Any, place: str, what: str) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._fail(place, f"{what}, not {_short(value)}")
        for name in value:
            if not isinstance(name, str):
                self._fail(place, f"the name {_short(name)} is not text; put it in quotes")
        return value

    def _fields(self, value: Any, place: str, known: Iterable[str], what: str) -> Mapping[str, Any]:
        found = self._mapping(value, place, what)
        for name in found:
            if name not in known:
                self._fail(place, f"unknown field {name!r}{_suggestion(name, known)}")
        return found

    def _number(self, value: Any, place: str, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._fail(place, f"{_short(value)} is not a number from {least} on")
        return value

    def seed(self, document: Any) -> Seed:
        for name in ABSENT_FIELDS:
            if isinstance(document, Mapping) and name in document:
                self._fail(
                    name, "the server has no users and no ACLs (no SASL, no authorization) and accepts every client;"
                    ' leave them out, or answer errors with fail(api, error="TOPIC_AUTHORIZATION_FAILED")',
                )  # fmt: skip
        top = self._fields(document, "", TOP_FIELDS, "a seed has the fields topics and groups")
        topics = [
            self._topic(name, value, f"topics.{name}")
            for name, value in self._mapping(top.get("topics"), "topics", "topics by name").items()
        ]
        sizes = {topic.name: topic.partitions for topic in topics}
        groups = {
            name: self._offsets(value, f"groups.{name}", sizes)
            for name, value in self._mapping(top.get("groups"), "groups", "groups by name").items()
        }
        return Seed(self._source, topics, groups)

    def _topic(self, name: str, value: Any, place: str) -> SeedTopic:
        if isinstance(value, int) and not isinstance(value, bool):
            return SeedTopic(name, self._number(value, place, 1), {}, [])
        what = "a topic has the fields partitions, configs and records, or is a number of partitions"
        fields = self._fields(value, place, TOPIC_FIELDS, what)
        partitions = DEFAULT_PARTITIONS
        if fields.get("partitions") is not None:
            partitions = self._number(fields["partitions"], f"{place}.partitions", 1)
        configs = self._mapping(fields.get("configs"), f"{place}.configs", "values by name of the config")
        for config, setting in configs.items():
            if not isinstance(setting, str | int | float):
                self._fail(f"{place}.configs.{config}", f"{_short(setting)} is neither text nor a number")
        given = fields.get("records") or []
        if not isinstance(given, list):
            self._fail(f"{place}.records", f"a list of records, not {_short(given)}")
        records = [self.record(one, f"{place}.records[{number}]", partitions) for number, one in enumerate(given)]
        return SeedTopic(name, partitions, configs, records)

    # --- records

    def record(self, value: Any, place: str, partitions: int = DEFAULT_PARTITIONS) -> NewRecord:
        if isinstance(value, str | bytes):
            return NewRecord(self._bytes(value, place))
        what = "a record is text, or has some of the fields " + ", ".join(RECORD_FIELDS)
        if value is None:
            self._fail(place, what)
        fields = self._fields(value, place, RECORD_FIELDS, what)
        partition = None
        if fields.get("partition") is not None:
            partition = self._partition(fields["partition"], f"{place}.partition", partitions)
        return NewRecord(
            self._bytes(fields.get("value"), f"{place}.value"),
            self._bytes(fields.get("key"), f"{place}.key"),
            self._headers(fields.get("headers"), f"{place}.headers"),
            partition,
            self._time(fields, place),
        )

    def _partition(self, value: Any, place: str, partitions: int) -> int:
        partition = self._number(value, place)
        if 0 <= partitions <= partition:
            self._fail(place, f"partition {partition} of a topic with {partitions}")
        return partition

    def _bytes(self, value: Any, place: str) -> bytes | None:
        """Text as UTF-8, `{base64: ...}` as bytes, and everything else as JSON."""
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, Mapping) and list(value) == ["base64"]:
            try:
                return base64.b64decode(value["base64"], validate=True)
            except (TypeError, ValueError):
                self._fail(place, f"{_short(value['base64'])} is not base64")
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError):
            self._fail(place, f"{_short(value)} is not JSON; put a date in quotes")

    def _headers(self, value: Any, place: str) -> Headers:
        if value is None:
            return []
        if isinstance(value, list):
            found: Headers = []
            for number, one in enumerate(value):
                inner = f"{place}[{number}]"
                fields = self._fields(one, inner, HEADER_FIELDS, "a header has the fields key and value")
                if not isinstance(fields.get("key"), str):
                    self._fail(f"{inner}.key", f"{_short(fields.get('key'))} is not text")
                found.append((fields["key"], self._bytes(fields.get("value"), f"{inner}.value")))
            return found
        named = self._mapping(value, place, "headers by name, or a list of headers with key and value")
        return [(name, self._bytes(one, f"{place}.{name}")) for name, one in named.items()]

    def _time(self, fields: Mapping[str, Any], place: str) -> int | None:
        if "timestamp_ms" in fields and "timestamp" in fields:
            self._fail(place, "give timestamp or timestamp_ms, not both")
        if fields.get("timestamp_ms") is not None:
            return self._number(fields["timestamp_ms"], f"{place}.timestamp_ms")
        value = fields.get("timestamp")
        if value is None:
            return None
        place = f"{place}.timestamp"
        moment: Any = value
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                moment = None
        elif isinstance(value, date) and not isinstance(value, datetime):
            moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if not isinstance(moment, datetime):
            self._fail(place, f"{_short(value)} is not a time such as 2026-01-31T12:00:00Z; milliseconds: timestamp_ms")
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return self._number(round(moment.timestamp() * 1000), place)

    # --- groups

    def _offsets(self, value: Any, place: str, sizes: Mapping[str, int]) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        what = "offsets by topic and partition, such as {orders: {0: 5}}"
        for topic, offsets in self._mapping(value, place, what).items():
            inner = f"{place}.{topic}"
            if not isinstance(offsets, Mapping):
                self._fail(inner, f"offsets by partition, such as {{0: 5}}, not {_short(offsets)}")
            for key, offset in offsets.items():
                # In JSON names are text.
                number = int(key) if isinstance(key, str) and key.isdecimal() else key
                partition = self._partition(number, inner, sizes.get(topic, DEFAULT_PARTITIONS))
                found[topic, partition] = self._number(offset, f"{inner}.{key}")
        return found


def _short(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def _suggestion(name: str, known: Iterable[str]) -> str:
    import difflib

    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
