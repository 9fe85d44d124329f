"""Frames of any API made from the schemas alone: one array filled to the limit, everything else as small as it may be.

For each array of a request, at any depth, there are frames with as many elements as fit: all the same, all different,
each twice, each with one element in every array below. So a new API or a new field has its worst frames before anybody
thinks of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from kcoord.codegen.schema import Field, Message, Struct, load_all
from kcoord.engine import api_classes
from kcoord.protocol import apis
from kcoord.server.listen.limits import frame_limits
from kcoord.server.settings.load import load as load_config
from kcoord.wire.primitives import TAGGED_FIELDS_MAX
from tests.harness.engine import REPOSITORY

CLIENT_ID: Final = b"stall"
STRING_CHARS_MAX: Final = 32767
# Tags without a meaning start here.
UNKNOWN_TAG: Final = 100
# Different elements repeat after so many: making more of them takes long and tells no more.
DIFFERENT_MAX: Final = 70_000
# What the count of the filled array may take beyond the one byte of an empty one.
COUNT_BYTES_MAX: Final = 4
# Elements of the arrays that lead to the filled one.
ELEMENTS_BESIDE: Final = 20
SCALAR_BYTES: Final = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8}

# What stands in a field, by API, field and number of the element. None: as little as possible.
Chooser = Callable[[str, Field, int], object]
FieldPath = tuple[str, ...]


@cache
def requests() -> dict[int, Message]:
    """The schemas of the requests that are served, by API key."""
    found = {}
    for message in load_all(REPOSITORY / "schemas"):
        if message.type == "request" and message.api_key is not None and apis.APIS[message.api_key].served:
            found[message.api_key] = message
    return found


@cache
def frame_bytes_max(api_key: int) -> int:
    """The largest frame of an API by default, without its size field."""
    return frame_limits(load_config().server).bytes_max[api_key]


@cache
def elements_max(api_key: int = -1) -> int:
    """Elements of all arrays of one request together, by default; -1 for most APIs."""
    return api_classes.elements_max(load_config().core, api_key)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append((value & 127) | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def frame_of(api_key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    """A whole request with its size field."""
    flexible = version >= apis.APIS[api_key].flexible_version
    head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + correlation_id.to_bytes(4, "big")
    head += len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID + (b"\0" if flexible else b"")
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


class Shape:
    """Which array is filled, by the path of its field, and with which elements.

    `different`: no two elements are the same, as far as their fields allow. `twice`: each different element comes once
    again. `deep`: each element has one element in every array below it. `nulls`: other arrays are null where they may
    be, which often asks for everything. `tags`: so many unknown tagged fields in each structure. `chars`: the length of
    strings that name nothing. `share`: how much of the largest frame is used.
    """

    def __init__(
        self,
        path: FieldPath,
        different: bool = False,
        twice: bool = False,
        deep: bool = False,
        nulls: bool = False,
        tags: int = 0,
        chars: int = 0,
        share: float = 1.0,
    ) -> None:
        self.path = path
        self.different = different or twice
        self.twice = twice
        self.deep = deep
        self.nulls = nulls
        self.tags = tags
        self.chars = chars
        self.share = share

    def describe(self) -> str:
        words = [".".join(self.path) or "no array"]
        words.append("each twice" if self.twice else "different" if self.different else "the same")
        if self.deep:
            words.append("deep")
        if self.nulls:
            words.append("null arrays")
        if self.tags:
            words.append(f"{self.tags} tags")
        if self.chars:
            words.append(f"{self.chars} chars")
        return ", ".join(words)


class ShapeEncoder:
    """Writes a request of one version around a shape."""

    def __init__(self, message: Message, version: int, shape: Shape, choose: Chooser) -> None:
        assert message.api_key is not None
        self.message = message
        self.version = version
        self.shape = shape
        self.choose = choose
        self.api_key = message.api_key
        self.name = apis.APIS[self.api_key].name
        self.flexible = message.flexible.low <= version <= message.flexible.high
        # Bytes for the elements of the filled array; 0 while the rest is measured.
        self.budget = 0
        # How many elements the filled array got.
        self.elements = 0

    def frame(self, share: float = 1.0) -> bytes:
        """The request with its size field. `share` makes it smaller than its shape says."""
        limit = int(frame_bytes_max(self.api_key) * self.shape.share * share)
        self.budget = 0
        rest = len(frame_of(self.api_key, self.version, self._struct(self.message.root, (), 0)))
        self.budget = max(limit - rest - COUNT_BYTES_MAX, 1)
        return frame_of(self.api_key, self.version, self._struct(self.message.root, (), 0))

    def _struct(self, struct: Struct, path: FieldPath, index: int) -> bytes:
        parts = []
        tagged: list[tuple[int, bytes]] = []
        for field in struct.fields:
            here = (*path, field.name)
            if field.tag >= 0 and field.tagged.low <= self.version <= field.tagged.high:
                if self._leads_on(here):
                    tagged.append((field.tag, self._field(field, here, index)))
            elif field.versions.low <= self.version <= field.versions.high:
                parts.append(self._field(field, here, index))
        if self.flexible:
            tagged += [(UNKNOWN_TAG + number, b"") for number in range(self.shape.tags - len(tagged))]
            parts.append(uvarint(len(tagged)))
            parts += [uvarint(tag) + uvarint(len(value)) + value for tag, value in sorted(tagged)]
        return b"".join(parts)

    def _leads_on(self, path: FieldPath) -> bool:
        """Whether the array at `path` has elements: it is the filled one, leads to it, or lies below it."""
        wanted = self.shape.path
        size = min(len(path), len(wanted))
        return path[:size] == wanted[:size] and (len(path) <= len(wanted) or self.shape.deep)

    def _field(self, field: Field, path: FieldPath, index: int) -> bytes:
        if field.is_array:
            return self._array(field, path, index)
        if field.struct is not None:
            if self._may_be_null(field):
                return b"\xff"
            return self._struct(field.struct, path, index)
        return self._scalar(field, index)

    def _may_be_null(self, field: Field) -> bool:
        return field.nullable.low <= self.version <= field.nullable.high

    def _array(self, field: Field, path: FieldPath, index: int) -> bytes:
        elements: list[bytes] = []
        if path == self.shape.path:
            if self.budget > 0:
                elements = self._fill(field, path)
        elif self._leads_on(path):
            elements = [self._element(field, path, index)]
        elif self.shape.nulls and self._may_be_null(field):
            return b"\0" if self.flexible else b"\xff\xff\xff\xff"
        count = len(elements)
        return (uvarint(count + 1) if self.flexible else count.to_bytes(4, "big")) + b"".join(elements)

    def _element(self, field: Field, path: FieldPath, index: int) -> bytes:
        if field.struct is not None:
            return self._struct(field.struct, path, index)
        return self._scalar(field, index)

    def _fill(self, field: Field, path: FieldPath) -> list[bytes]:
        budget = self.budget
        most = (elements_max(self.api_key) - ELEMENTS_BESIDE) // (1 + (_arrays_below(field) if self.shape.deep else 0))
        first = self._element(field, path, 0)
        if not self.shape.different:
            elements = [first] * max(min(budget // max(len(first), 1), most), 1)
        else:
            if self.shape.twice:
                budget //= 2
                most //= 2
            elements = self._different(field, path, budget, most)
            if self.shape.twice:
                elements *= 2
        self.elements = len(elements)
        return elements

    def _different(self, field: Field, path: FieldPath, budget: int, most: int) -> list[bytes]:
        elements: list[bytes] = []
        while len(elements) < most:
            count = len(elements)
            made = self._element(field, path, count) if count < DIFFERENT_MAX else elements[count % DIFFERENT_MAX]
            budget -= len(made)
            if budget < 0 and elements:
                break
            elements.append(made)
        return elements

    def _scalar(self, field: Field, index: int) -> bytes:
        kind = field.element
        value = self.choose(self.name, field, index)
        if kind in ("string", "bytes", "records"):
            return self._sized(field, value, index)
        if kind == "uuid":
            return value if isinstance(value, bytes) else index.to_bytes(16, "big")
        number = value if isinstance(value, int) else 0
        return number.to_bytes(SCALAR_BYTES[kind], "big", signed=number < 0)

    def _sized(self, field: Field, value: object, index: int) -> bytes:
        is_string = field.element == "string"
        data = b""
        if isinstance(value, bytes):
            data = value
        elif isinstance(value, str):
            data = value.encode()
        elif is_string and self.shape.chars:
            data = str(index).encode().rjust(self.shape.chars, b"x")
        elif self._may_be_null(field) and not field.is_array:
            if self.flexible:
                return b"\0"
            return b"\xff\xff" if is_string else b"\xff\xff\xff\xff"
        elif is_string and self.shape.different:
            data = b"n%d" % index
        if self.flexible:
            return uvarint(len(data) + 1) + data
        return len(data).to_bytes(2 if is_string else 4, "big") + data


def _arrays_below(field: Field) -> int:
    if field.struct is None:
        return 0
    return sum(1 + _arrays_below(inner) for inner in field.struct.fields if inner.is_array)


def array_paths(message: Message, version: int) -> list[FieldPath]:
    """The arrays of a request at a version, outer ones first."""
    found: list[FieldPath] = []

    def walk(struct: Struct, path: FieldPath) -> None:
        for field in struct.fields:
            present = field.tagged if field.tag >= 0 else field.versions
            if not present.low <= version <= present.high:
                continue
            here = (*path, field.name)
            if field.is_array:
                found.append(here)
            if field.struct is not None and (field.is_array or not field.nullable):
                walk(field.struct, here)

    walk(message.root, ())
    return found


def versions_that_matter(message: Message) -> list[int]:
    """The oldest, the first flexible and the newest."""
    low, high = message.valid.low, message.valid.high
    return sorted({low, min(max(message.flexible.low, low), high), high})


def shapes_of(message: Message, version: int) -> list[Shape]:
    """Every shape that makes a difference at a version."""
    flexible = message.flexible.low <= version <= message.flexible.high
    paths = array_paths(message, version)
    shapes: list[Shape] = []
    for path in paths:
        shapes += [Shape(path), Shape(path, different=True), Shape(path, twice=True)]
        if any(other[: len(path)] == path and other != path for other in paths):
            shapes.append(Shape(path, different=True, deep=True))
        if _has_nullable_array(message, version):
            shapes += [Shape(path, nulls=True), Shape(path, different=True, nulls=True)]
        shapes.append(Shape(path, different=True, chars=STRING_CHARS_MAX))
        if flexible:
            shapes.append(Shape(path, tags=TAGGED_FIELDS_MAX))
    if not paths:
        shapes.append(Shape((), chars=STRING_CHARS_MAX))
        if flexible:
            shapes.append(Shape((), tags=TAGGED_FIELDS_MAX))
    return shapes


def _has_nullable_array(message: Message, version: int) -> bool:
    return any(
        field.is_array and field.nullable.low <= version <= field.nullable.high
        for struct in message.structs
        for field in struct.fields
    )
