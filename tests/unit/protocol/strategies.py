"""Hypothesis strategies for every message at every version, driven by the schemas."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kcoord.codegen.generate import module_of
from kcoord.codegen.schema import Field, Message, Struct, load_all
from kcoord.wire.primitives import ZERO_UUID

SCHEMAS = Path(__file__).resolve().parents[3] / "schemas"
MESSAGES = load_all(SCHEMAS)

RANGES = {
    "int8": (-128, 127),
    "int16": (-0x8000, 0x7FFF),
    "uint16": (0, 0xFFFF),
    "int32": (-0x80000000, 0x7FFFFFFF),
    "uint32": (0, 0xFFFFFFFF),
    "int64": (-0x8000000000000000, 0x7FFFFFFFFFFFFFFF),
}


def module(message: Message) -> Any:
    return importlib.import_module("kcoord.protocol." + module_of(message).replace("/", "."))


def primitive(kind: str) -> st.SearchStrategy[Any]:
    if kind in RANGES:
        return st.integers(*RANGES[kind])
    if kind == "bool":
        return st.booleans()
    if kind == "float64":
        return st.floats(allow_nan=False)
    if kind == "uuid":
        return st.binary(min_size=16, max_size=16)
    if kind == "string":
        return st.text(max_size=12)
    return st.binary(max_size=12)


def struct_values(holder: Any, message: Message, struct: Struct, version: int) -> st.SearchStrategy[Any]:
    """Instances of a structure in which only fields that exist at `version` differ from their default."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in struct.fields:
        present = field.tagged if field.tag >= 0 else field.versions
        if present.low <= version <= present.high:
            fields[field.attribute] = field_values(holder, message, field, version)
    return st.builds(getattr(holder, struct.name), **fields)


def field_values(holder: Any, message: Message, field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        element = struct_values(holder, message, field.struct, version)
    else:
        element = primitive(field.element)
    value = st.lists(element, max_size=3) if field.is_array else element
    if field.nullable.low <= version <= field.nullable.high:
        value = st.one_of(st.none(), value)
    return value


__all__ = ["MESSAGES", "SCHEMAS", "ZERO_UUID", "module", "struct_values"]
