"""Messages in the JSON form of Kafka's JsonConverters, driven by schemas/ and nothing else.

In that form a field is named as in the schema with its first letter in lower case; bytes and records are base64, uuids
are unpadded URL-safe base64, numbers and booleans are themselves, and a tagged field that has its default is left out.

This module is a second reader of the schemas, independent of the code generator, so that the two can check each other:
`fill` completes a partial JSON with defaults, `random_message` invents one, `build` turns JSON into the objects of
kcoord.protocol, and `render` turns such objects back into JSON.
"""

from __future__ import annotations

import base64
import importlib
import json
import random
import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
VERSION_MAX = 32767
# Tags from here on are kcoord's own; Kafka's schemas lack these fields and its readers skip them.
OWN_TAGS_FROM = 10_000
# The same for whole APIs, by their keys.
OWN_APIS_FROM = 10_000

INT_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
SCALARS = {*INT_RANGES, "bool", "float64", "uuid", "string", "bytes", "records"}
ZERO_UUID = "A" * 22


@dataclass(frozen=True)
class Span:
    """An inclusive version range."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


def span(text: str | None) -> Span:
    if not text or text == "none":
        return Span(1, 0)
    low, separator, high = text.partition("-")
    if text.endswith("+"):
        return Span(int(text[:-1]), VERSION_MAX)
    return Span(int(low), int(high) if separator else int(low))


@dataclass(frozen=True)
class Field:
    name: str
    key: str
    type: str
    versions: Span
    nullable: Span
    tagged: Span
    tag: int
    default: str | None
    fields: tuple[Field, ...]

    @property
    def element(self) -> str:
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def attribute(self) -> str:
        return snake_case(self.name)

    @property
    def is_own(self) -> bool:
        """Whether the field is kcoord's, so that Kafka knows nothing of it."""
        return self.tag >= OWN_TAGS_FROM


@dataclass(frozen=True)
class Schema:
    name: str
    type: str
    api_key: int | None
    valid: Span
    flexible: Span
    fields: tuple[Field, ...]

    @property
    def is_own(self) -> bool:
        """Whether the API is kcoord's, so that Kafka knows nothing of it."""
        return self.api_key is not None and self.api_key >= OWN_APIS_FROM

    @property
    def versions(self) -> range:
        return range(self.valid.low, self.valid.high + 1)


def snake_case(name: str) -> str:
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _fields(raw: list[dict[str, Any]], common: dict[str, list[dict[str, Any]]]) -> tuple[Field, ...]:
    made = []
    for item in raw:
        kind = item["type"]
        element = kind.removeprefix("[]")
        inner = item.get("fields") or (common[element] if element not in SCALARS else [])
        made.append(
            Field(
                name=item["name"],
                key=item["name"][0].lower() + item["name"][1:],
                type=kind,
                versions=span(item["versions"]),
                nullable=span(item.get("nullableVersions")),
                tagged=span(item.get("taggedVersions")),
                tag=int(item.get("tag", -1)),
                default=item.get("default"),
                fields=_fields(inner, common),
            )
        )
    return tuple(made)


@cache
def schemas() -> dict[str, Schema]:
    """Every message of schemas/, by name."""
    found = {}
    for path in sorted(SCHEMAS.glob("*/*.json")):
        raw = json.loads(path.read_text())
        common = {item["name"]: item["fields"] for item in raw.get("commonStructs", [])}
        found[raw["name"]] = Schema(
            name=raw["name"],
            type=raw["type"],
            api_key=raw.get("apiKey"),
            valid=span(raw["validVersions"]),
            flexible=span(raw["flexibleVersions"]),
            fields=_fields(raw["fields"], common),
        )
    return found


def kafkas() -> dict[str, Schema]:
    """Those that Kafka has as well."""
    return {name: schema for name, schema in schemas().items() if not schema.is_own}


def default_value(field: Field, version: int) -> Any:
    """The value a field has when nobody sets it."""
    if field.default == "null" and version in field.nullable:
        return None
    if field.is_array:
        return []
    if field.element not in SCALARS:
        return _fill(field.fields, {}, version, field.name)
    text = field.default if field.default not in (None, "null") else None
    if field.type in INT_RANGES:
        return int(text, 0) if text else 0
    if field.type == "float64":
        return float(text) if text else 0.0
    if field.type == "bool":
        return text == "true"
    if field.type == "uuid":
        return ZERO_UUID
    return text or ""


def fill(name: str, version: int, partial: dict[str, Any]) -> dict[str, Any]:
    """`partial` with the defaults of all missing fields; fields that this version lacks are dropped, unknown ones refused."""
    return _fill(schemas()[name].fields, partial, version, name)


def _fill(fields: tuple[Field, ...], partial: dict[str, Any], version: int, where: str) -> dict[str, Any]:
    unknown = set(partial) - {field.key for field in fields}
    if unknown:
        raise KeyError(f"{where} has no {sorted(unknown)}")
    full: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        if field.key not in partial:
            if version not in field.tagged:
                full[field.key] = default_value(field, version)
            continue
        value = partial[field.key]
        if value is not None and field.element not in SCALARS:
            if field.is_array:
                value = [_fill(field.fields, item, version, field.name) for item in value]
            else:
                value = _fill(field.fields, value, version, field.name)
        full[field.key] = value
    return full


# ---- invented messages ---------------------------------------------------------------------------------------------

STYLES = ("default", "empty", "null", "max", "random")
TEXTS = ("", "a", "orders", "grüße", "日本語", "🎈 balloon", "x" * 127, "y" * 128, "line\nbreak\ttab", "\x00nul")


def random_message(name: str, version: int, rng: random.Random, style: str = "random") -> dict[str, Any]:
    """A message of one of STYLES: every field default, empty, null where it can be, at its largest, or at random.

    It has only fields that Kafka knows.
    """
    return _random_struct(schemas()[name].fields, version, rng, style, 0)


def _random_struct(
    fields: tuple[Field, ...], version: int, rng: random.Random, style: str, depth: int
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions or field.is_own:
            continue
        if version in field.tagged:
            if style == "default" or (style == "random" and rng.random() < 0.4):
                continue
            value = _random_value(field, version, rng, style, depth)
            if value == default_value(field, version):
                continue
            made[field.key] = value
        else:
            made[field.key] = _random_value(field, version, rng, style, depth)
    return made


def _random_value(field: Field, version: int, rng: random.Random, style: str, depth: int) -> Any:
    nullable = version in field.nullable
    if style == "default":
        return default_value(field, version)
    if nullable and (style == "null" or (style == "random" and rng.random() < 0.25)):
        return None
    if field.is_array:
        if style in ("empty", "null") and depth > 0:
            return []
        count = {"empty": 0, "null": 1, "max": 2}.get(style, rng.choice((0, 1, 1, 2, 3)))
        if style == "max" and depth == 0 and field.element in INT_RANGES:
            count = 130
        return [_random_scalar_or_struct(field, version, rng, style, depth + 1) for _ in range(count)]
    return _random_scalar_or_struct(field, version, rng, style, depth)


def _random_scalar_or_struct(field: Field, version: int, rng: random.Random, style: str, depth: int) -> Any:
    kind = field.element
    if kind not in SCALARS:
        return _random_struct(field.fields, version, rng, style, depth + 1)
    if kind in INT_RANGES:
        low, high = INT_RANGES[kind]
        if style == "max":
            return rng.choice((low, high))
        if style in ("empty", "null"):
            return 0
        return rng.choice((low, high, 0, 1, rng.randint(low, high), rng.randint(0, min(high, 1000))))
    if kind == "bool":
        return style == "max" or (style == "random" and rng.random() < 0.5)
    if kind == "float64":
        return 0.0 if style in ("empty", "null") else rng.choice((1.5, -0.25, 1e300, rng.uniform(-1e6, 1e6)))
    if kind == "uuid":
        return ZERO_UUID if style in ("empty", "null") else uuid_text(rng.randbytes(16))
    if kind == "string":
        if style in ("empty", "null"):
            return ""
        return "z" * 300 if style == "max" else rng.choice(TEXTS)
    length = 0 if style in ("empty", "null") else 200 if style == "max" else rng.choice((0, 1, 5, 127, 128))
    return base64.b64encode(rng.randbytes(length)).decode()


NULL, EMPTY, ABSENT = "null", "empty", "absent"


def nullable_samples(name: str, version: int) -> list[tuple[str, dict[str, Any]]]:
    """For every nullable field of the message, at any depth, messages in which it is null, empty and left out.

    Each comes with what it shows: `null of topics.name`. All else has its default, arrays above the field one element.
    Only a tagged field can be left out. Fields that Kafka does not know are not among them.
    """
    made = []
    fields = schemas()[name].fields
    for path in _nullable_paths(fields, version):
        for state in (NULL, EMPTY, ABSENT) if version in path[-1].tagged else (NULL, EMPTY):
            made.append((f"{state} of {'.'.join(field.key for field in path)}", _with(fields, path, version, state)))
    return made


def _nullable_paths(fields: tuple[Field, ...], version: int) -> list[tuple[Field, ...]]:
    found: list[tuple[Field, ...]] = []
    for field in fields:
        if version not in field.versions or field.is_own:
            continue
        if version in field.nullable:
            found.append((field,))
        found += [(field, *path) for path in _nullable_paths(field.fields, version)]
    return found


def _with(fields: tuple[Field, ...], path: tuple[Field, ...], version: int, state: str) -> dict[str, Any]:
    made = _fill(fields, {}, version, path[0].name)
    field = path[0]
    if len(path) > 1:
        inner = _with(field.fields, path[1:], version, state)
        made[field.key] = [inner] if field.is_array else inner
    elif state != ABSENT:
        made[field.key] = None if state == NULL else empty_value(field, version)
    return made


def empty_value(field: Field, version: int) -> Any:
    if field.is_array:
        return []
    if field.element not in SCALARS:
        return _fill(field.fields, {}, version, field.name)
    return ""


# ---- between JSON and kcoord's objects -----------------------------------------------------------------------------


def uuid_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def uuid_bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def module_of(name: str) -> Any:
    """The generated module that holds the message `name`."""
    schema = schemas()[name]
    if schema.type in ("request", "response"):
        return importlib.import_module(f"kcoord.protocol.{snake_case(re.sub('(Request|Response)$', '', name))}")
    if schema.type == "header":
        return importlib.import_module("kcoord.protocol.header")
    for stem in (name, re.sub("(Key|Value)$", "", name)):
        for package in ("kcoord.protocol.records", "kcoord.protocol"):
            try:
                module = importlib.import_module(f"{package}.{snake_case(stem)}")
            except ModuleNotFoundError:
                continue
            if hasattr(module, name):
                return module
    raise LookupError(f"no generated module has {name}")


def build(name: str, version: int, value: dict[str, Any]) -> Any:
    """The object of kcoord.protocol that the JSON describes; what the JSON leaves out keeps the class's default."""
    return _build(module_of(name), name, schemas()[name].fields, version, value)


def _build(module: Any, class_name: str, fields: tuple[Field, ...], version: int, value: dict[str, Any]) -> Any:
    made = getattr(module, class_name)()
    for field in fields:
        if field.key in value and version in field.versions:
            setattr(made, field.attribute, _build_value(module, field, version, value[field.key]))
    return made


def _build_value(module: Any, field: Field, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_build_one(module, field, version, item) for item in value]
    return _build_one(module, field, version, value)


def _build_one(module: Any, field: Field, version: int, value: Any) -> Any:
    if field.element not in SCALARS:
        return _build(module, field.element, field.fields, version, value)
    if field.element == "uuid":
        return uuid_bytes(value)
    if field.element in ("bytes", "records"):
        return base64.b64decode(value)
    return value


def render(name: str, version: int, message: Any) -> dict[str, Any]:
    """The JSON that Kafka's converter writes for the same message."""
    return _render(schemas()[name].fields, version, message)


def _render(fields: tuple[Field, ...], version: int, message: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        value = _render_value(field, version, getattr(message, field.attribute))
        if version in field.tagged and value == default_value(field, version):
            continue
        made[field.key] = value
    return made


def _render_value(field: Field, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_render_one(field, version, item) for item in value]
    return _render_one(field, version, value)


def _render_one(field: Field, version: int, value: Any) -> Any:
    if field.element not in SCALARS:
        return _render(field.fields, version, value)
    if field.element == "uuid":
        return uuid_text(value)
    if field.element in ("bytes", "records"):
        return base64.b64encode(value).decode()
    if field.element == "float64":
        return struct.unpack(">d", struct.pack(">d", value))[0]
    return value
