"""The checked model of a message schema.

A schema file describes one message with the keywords of Kafka's own schemas. The object `serving` of a request declares
how kcoord serves it (serving.py). Loading checks everything that the generator relies on, so that a mistake is reported
with its file and field.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from kcoord.codegen.serving import Serving, ServingError, parse_serving

VERSION_MAX = 32767

PRIMITIVES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
    "string": 0,
    "bytes": 0,
    "records": 0,
}

MESSAGE_KEYS = {
    "apiKey",
    "type",
    "name",
    "validVersions",
    "flexibleVersions",
    "served",
    "serving",
    "about",
    "fields",
    "commonStructs",
}
FIELD_KEYS = {
    "name",
    "type",
    "versions",
    "nullableVersions",
    "tag",
    "taggedVersions",
    "default",
    "ignorable",
    "entityType",
    "flexibleVersions",
    "about",
    "fields",
}
TYPES = {"request", "response", "header", "coordinator-key", "coordinator-value", "data", "metadata"}


class SchemaError(Exception):
    """A schema file violates a rule; the message names the file and the mistake."""


@dataclass(frozen=True)
class Versions:
    """An inclusive range of versions; empty when low > high."""

    low: int
    high: int

    @staticmethod
    def parse(text: str) -> Versions:
        if text == "none":
            return NO_VERSIONS
        if match := re.fullmatch(r"(\d+)\+", text):
            return Versions(int(match[1]), VERSION_MAX)
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", text):
            return Versions(int(match[1]), int(match[2] or match[1]))
        raise SchemaError(f"not a version range: {text!r}")

    def __bool__(self) -> bool:
        return self.low <= self.high

    def within(self, other: Versions) -> Versions:
        return Versions(max(self.low, other.low), min(self.high, other.high))

    def covers(self, other: Versions) -> bool:
        return not other or (self.low <= other.low and self.high >= other.high)

    def condition(self, valid: Versions) -> str | None:
        """A Python expression that is true for versions in this range, if the version is in `valid`. None: always."""
        low, high = max(self.low, valid.low), min(self.high, valid.high)
        if low > high:
            return "False"
        if low <= valid.low and high >= valid.high:
            return None
        if low <= valid.low:
            return f"version <= {high}"
        if high >= valid.high:
            return f"version >= {low}"
        return f"version == {low}" if low == high else f"{low} <= version <= {high}"


NO_VERSIONS = Versions(1, 0)


@dataclass
class Field:
    name: str
    type: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str | None
    ignorable: bool
    flexible: Versions | None
    struct: Struct | None = None

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element(self) -> str:
        return self.type[2:] if self.is_array else self.type

    @property
    def is_struct(self) -> bool:
        return self.element not in PRIMITIVES

    @property
    def attribute(self) -> str:
        return snake_case(self.name)


@dataclass
class Struct:
    name: str
    versions: Versions
    fields: list[Field] = field(default_factory=list)


@dataclass
class Message:
    name: str
    type: str
    api_key: int | None
    valid: Versions
    flexible: Versions
    served: bool
    serving: Serving | None
    about: str
    root: Struct
    structs: list[Struct]
    path: Path


def snake_case(name: str) -> str:
    """GroupId -> group_id, ISRNodes -> isr_nodes."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


class _Loader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.structs: dict[str, Struct] = {}
        self.used: list[Struct] = []

    def fail(self, text: str) -> SchemaError:
        return SchemaError(f"{self.path.name}: {text}")

    def load(self) -> Message:
        try:
            raw = json.loads(self.path.read_text("utf-8"))
        except ValueError as error:
            raise self.fail(f"not JSON: {error}") from None
        if unknown := set(raw) - MESSAGE_KEYS:
            raise self.fail(f"unknown key {min(unknown)!r}")
        name = raw["name"]
        if name != self.path.stem:
            raise self.fail(f"contains a message named {name!r}")
        if raw["type"] not in TYPES:
            raise self.fail(f"unknown type {raw['type']!r}")
        valid = Versions.parse(raw["validVersions"])
        flexible = Versions.parse(raw["flexibleVersions"])
        served = raw.get("served", True)
        if not isinstance(served, bool) or ("served" in raw and raw["type"] not in ("request", "response")):
            raise self.fail("served must be true or false, and is for requests and responses only")
        serving = self.serving(raw, served)
        for common in raw.get("commonStructs", []):
            struct = Struct(common["name"], Versions.parse(common["versions"]))
            self.structs[struct.name] = struct
            struct.fields = [self.field(f) for f in common["fields"]]
            self.used.append(struct)
        root = Struct(name, valid, [self.field(f) for f in raw["fields"]])
        self.used.append(root)
        return Message(
            name,
            raw["type"],
            raw.get("apiKey"),
            valid,
            flexible,
            served,
            serving,
            raw.get("about", ""),
            root,
            self.used,
            self.path,
        )

    def serving(self, raw: dict[str, object], served: bool) -> Serving | None:
        """Return how the API is served. Every served request must declare it."""
        is_wanted = raw["type"] == "request" and served
        if is_wanted != ("serving" in raw):
            raise self.fail("has no serving, so it has no handler" if is_wanted else "serving is for served requests")
        if not is_wanted:
            return None
        try:
            return parse_serving(raw["serving"])
        except ServingError as error:
            raise self.fail(str(error)) from None

    def field(self, raw: dict[str, object]) -> Field:
        name = str(raw["name"])
        if unknown := set(raw) - FIELD_KEYS:
            raise self.fail(f"field {name}: unknown key {min(unknown)!r}")
        versions = Versions.parse(str(raw["versions"]))
        flexible = Versions.parse(str(raw["flexibleVersions"])) if "flexibleVersions" in raw else None
        result = Field(
            name=name,
            type=str(raw["type"]),
            versions=versions,
            nullable=Versions.parse(str(raw.get("nullableVersions", "none"))),
            tagged=Versions.parse(str(raw.get("taggedVersions", "none"))),
            tag=int(str(raw.get("tag", -1))),
            default=str(raw["default"]) if "default" in raw else None,
            ignorable=bool(raw.get("ignorable", False)),
            flexible=flexible,
        )
        if (result.tag >= 0) != bool(result.tagged):
            raise self.fail(f"field {name}: tag and taggedVersions go together")
        if "default" in raw and raw["default"] is None:
            # Kafka's generator reads a JSON null as no default, so an omitted field would be empty.
            raise self.fail(f'field {name}: the default null is written "null"; without a default a field is empty')
        if result.default == "null" and not result.nullable:
            raise self.fail(f"field {name}: null default of a field that is never null")
        if result.is_struct:
            result.struct = self.struct_of(result, raw)
        elif "fields" in raw:
            raise self.fail(f"field {name}: a {result.type} has no fields")
        return result

    def struct_of(self, owner: Field, raw: dict[str, object]) -> Struct:
        name = owner.element
        if "fields" not in raw:
            if name not in self.structs:
                raise self.fail(f"field {owner.name}: unknown type {name!r}")
            return self.structs[name]
        if name in self.structs:
            raise self.fail(f"type {name!r} is defined twice")
        struct = Struct(name, owner.versions)
        self.structs[name] = struct
        fields = raw["fields"]
        assert isinstance(fields, list)
        struct.fields = [self.field(f) for f in fields]
        self.used.append(struct)
        return struct


def load_message(path: Path) -> Message:
    """Load and check one schema file. Raises SchemaError."""
    return _Loader(path).load()


def load_all(root: Path) -> list[Message]:
    """All messages below `root`, in a stable order."""
    messages: list[Message] = []
    for folder in ("requests", "responses", "records", "metadata"):
        messages.extend(load_message(path) for path in sorted((root / folder).glob("*.json")))
    return messages
