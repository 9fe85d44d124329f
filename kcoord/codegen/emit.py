"""Typed Python for messages: one class per structure, one decode and one encode function each.

The output is meant to be read: version branches stand inline, runs of fixed-width fields are read from one
bounds check, and nothing is looked up at run time.
"""

from __future__ import annotations

import re

from kcoord.codegen.schema import NO_VERSIONS, Field, Message, SchemaError, Struct, Versions, snake_case

FIXED = {"bool": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}
PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes",
}
READ_METHODS = {"bool": "boolean", "bytes": "bytes_"}
LINE_MAX = 110
RESERVED = {"version", "r", "b", "p", "tag", "n_tags", "tag_end"}
# Text fields whose values may be so large and so many that copying takes too long. Like records, they are sent as
# separate chunks and not copied into the message (`Splices`).
SPLICED_TEXTS = {("OffsetFetchResponse", "Metadata")}


def emit_module(messages: list[Message], header: str) -> str:
    """The module text of the messages that share a file. Raises SchemaError when type names collide."""
    seen: set[str] = set()
    body: list[str] = []
    for message in messages:
        for struct in message.structs:
            if struct.name in seen:
                raise SchemaError(f"{message.path.name}: type name {struct.name!r} is used twice in its module")
            seen.add(struct.name)
        body.append(_MessageEmitter(message).emit())
    about = next((m.about for m in messages if m.about), "") or ", ".join(m.name for m in messages) + "."
    constants = _constants(messages)
    text = "".join(body)
    names = ["BytesWriter", "Reader"] + [n for n in IMPORTABLE if re.search(rf"\b{n}\b", text)]
    imports = (
        "from kcoord.wire.primitives import (\n"
        + "".join(f"    {n},\n" for n in sorted(set(names), key=_isort_key))
        + ")\n"
    )
    types = [n for n in ("ClassVar", "Final", "final") if n in text or n in constants]
    return (
        header.format(about=about)
        + "\nfrom __future__ import annotations\n\n"
        + f"from typing import {', '.join(types)}\n\n"
        + "from kcoord.wire.message import Message\n"
        + imports
        + constants
        + text
    )


IMPORTABLE = (
    [
        "EncodeError",
        "Splices",
        "ZERO_UUID",
        "i64",
        "read_i16_be",
        "read_i32_be",
        "read_i64_be",
        "write_i16_be",
        "write_i32_be",
        "write_i64_be",
    ]
    + ["write_int8", "write_uint16", "write_uint32", "write_float64", "write_uuid", "write_uvarint"]
    + ["write_string", "write_nullable_string", "write_compact_string", "write_compact_nullable_string"]
    + [
        "write_bytes",
        "write_nullable_bytes",
        "write_compact_bytes",
        "write_compact_nullable_bytes",
        "write_nullable_records",
        "write_compact_nullable_records",
        "write_nullable_text",
        "write_compact_nullable_text",
        "write_compact_array_len",
    ]
)


def _isort_key(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def _constants(messages: list[Message]) -> str:
    keyed = [m for m in messages if m.api_key is not None]
    if not keyed:
        return ""
    first = keyed[0]
    flexible = first.flexible.low if first.flexible else 32767
    if first.type in ("request", "response"):
        return (
            f"\nAPI_KEY: Final = {first.api_key}\nMIN_VERSION: Final = {first.valid.low}\n"
            f"MAX_VERSION: Final = {first.valid.high}\nFLEXIBLE_VERSION: Final = {flexible}\n"
        )
    out = f"\nRECORD_TYPE: Final = {first.api_key}\n"
    for message in keyed:
        if message.type != "coordinator-key":
            out += f"MIN_VERSION: Final = {message.valid.low}\nMAX_VERSION: Final = {message.valid.high}\n"
    return out


class _MessageEmitter:
    def __init__(self, message: Message) -> None:
        self.message = message
        self.valid = message.valid
        self.flexible = message.flexible.condition(message.valid) if message.flexible else "False"
        # Structs that are compared with their default.
        self.compared: set[str] = set()

    def emit(self) -> str:
        parts = []
        structs = [s for s in self.message.structs if s.versions.within(self.valid)]
        for struct in structs:
            parts.append("\n\n" + self.emit_class(struct))
        functions = ["\n\n" + self.emit_decode(struct) + "\n\n" + self.emit_encode(struct) for struct in structs]
        for struct in structs:
            if struct.name in self.compared:
                parts.append("\n\n" + self.emit_is_default(struct))
        return "".join(parts + functions)

    # --- properties of a field -------------------------------------------------------------------------------

    def fields(self, struct: Struct) -> list[Field]:
        return [f for f in struct.fields if f.versions.within(self.valid) or f.tagged.within(self.valid)]

    def python_type(self, f: Field) -> str:
        base = f.element if f.is_struct else PYTHON_TYPES.get(f.element, "int")
        base = f"list[{base}]" if f.is_array else base
        return f"{base} | None" if f.nullable else base

    def default_source(self, f: Field) -> str:
        if f.default == "null":
            return "None"
        if f.is_array:
            return "None"
        if f.is_struct:
            return "None"
        if f.type == "bool":
            return "True" if f.default == "true" else "False"
        if f.type == "uuid":
            return "ZERO_UUID"
        if f.type == "string":
            return repr(f.default or "").replace("'", '"')
        if f.type in ("bytes", "records"):
            return 'b""'
        if f.type == "float64":
            return repr(float(f.default or "0"))
        return str(int(f.default or "0", 0))

    def local_default(self, f: Field) -> str:
        """The default as an expression for a local variable in a decode function."""
        if f.is_array and f.default != "null":
            return "[]"
        if f.is_struct and f.default != "null":
            return f"{f.element}()"
        return self.default_source(f)

    def needs_fill(self, f: Field) -> bool:
        return (f.is_array or f.is_struct) and f.default != "null"

    # --- classes ---------------------------------------------------------------------------------------------

    def emit_class(self, struct: Struct) -> str:
        fields = self.fields(struct)
        lines = ["@final", f"class {struct.name}(Message):"]
        if struct is self.message.root:
            lines.append(f'    """{self.message.name}, versions {self.valid.low} to {self.valid.high}."""\n')
        names = ", ".join(f'"{f.attribute}"' for f in fields) + ("," if len(fields) == 1 else "")
        one = f"    __slots__ = ({names})"
        if len(one) <= LINE_MAX - 30:
            lines.append(one if fields else "    __slots__ = ()")
            lines.append(f"    FIELDS: ClassVar[tuple[str, ...]] = ({names})")
        else:
            listed = "".join(f'        "{f.attribute}",\n' for f in fields)
            lines.append(f"    __slots__ = (\n{listed}    )")
            lines.append(f"    FIELDS: ClassVar[tuple[str, ...]] = (\n{listed}    )")
        lines.append("")
        if not fields:
            lines += ["    def __init__(self) -> None:", "        pass", ""]
            return "\n".join(lines)
        lines += ["    def __init__(", "        self,"]
        for f in fields:
            if self.needs_fill(f) and f.nullable:
                # None is a valid value here, so an empty tuple marks an omitted list.
                lines.append(f"        {f.attribute}: {self.python_type(f)} | tuple[()] = (),")
                continue
            optional = " | None" if self.needs_fill(f) else ""
            lines.append(f"        {f.attribute}: {self.python_type(f)}{optional} = {self.default_source(f)},")
        lines.append("    ) -> None:")
        for f in fields:
            if self.needs_fill(f):
                given = f"not isinstance({f.attribute}, tuple)" if f.nullable else f"{f.attribute} is not None"
                lines.append(
                    f"        self.{f.attribute}: {self.python_type(f)} = "
                    f"{f.attribute} if {given} else {self.local_default(f)}"
                )
            else:
                lines.append(f"        self.{f.attribute} = {f.attribute}")
        return "\n".join(lines) + "\n"

    # --- decoding --------------------------------------------------------------------------------------------

    def local(self, f: Field) -> str:
        """The name of a field's variable in a decode function, which has variables of its own."""
        return f.attribute + "_" if f.attribute in RESERVED else f.attribute

    def function_name(self, verb: str, struct: Struct) -> str:
        private = "" if struct is self.message.root else "_"
        return f"{private}{verb}_{snake_case(struct.name)}"

    def emit_decode(self, struct: Struct) -> str:
        out = [f"def {self.function_name('decode', struct)}(r: Reader, version: int) -> {struct.name}:"]
        if struct is self.message.root:
            out.append(f'    """Decode versions {self.valid.low} to {self.valid.high}. Raises DecodeError."""')
        fields = self.fields(struct)
        plain = [f for f in fields if f.tag < 0]
        tagged = [f for f in fields if f.tag >= 0]
        body: list[str] = []
        index = 0
        while index < len(plain):
            run = self.fixed_run(plain, index)
            if len(run) > 1:
                self.decode_run(body, run)
            else:
                self.decode_field(body, plain[index])
            index += max(1, len(run))
        for f in tagged:
            body.append(f"{self.local(f)}: {self.python_type(f)} = {self.local_default(f)}")
        self.decode_tags(body, tagged)
        arguments = ", ".join(self.local(f) for f in fields)
        body += self.call_lines(f"return {struct.name}(", arguments, ")")
        return "\n".join(out + ["    " + line if line else line for line in body]) + "\n"

    def call_lines(self, head: str, arguments: str, tail: str) -> list[str]:
        if len(head) + len(arguments) + len(tail) + 4 <= LINE_MAX:
            return [head + arguments + tail]
        return [head] + [f"    {a}," for a in arguments.split(", ")] + [tail]

    def fixed_run(self, plain: list[Field], index: int) -> list[Field]:
        run: list[Field] = []
        first = plain[index]
        if first.type not in FIXED:
            return run
        condition = first.versions.condition(self.valid)
        for f in plain[index:]:
            if f.type not in FIXED or f.versions.condition(self.valid) != condition:
                break
            run.append(f)
        return run

    def decode_run(self, body: list[str], run: list[Field]) -> None:
        condition = run[0].versions.condition(self.valid)
        indent = ""
        if condition is not None:
            for f in run:
                body.append(f"{self.local(f)} = {self.local_default(f)}")
            body.append(f"if {condition}:")
            indent = "    "
        total = sum(FIXED[f.type] for f in run)
        body.append(f"{indent}b = r.buf")
        body.append(f"{indent}p = r.take({total})")
        at = 0
        for f in run:
            where = f"p + {at}" if at else "p"
            source = {
                "bool": f"b[{where}] != 0",
                "int16": f"read_i16_be(b, {where})",
                "int32": f"read_i32_be(b, {where})",
                "int64": f"read_i64_be(b, {where})",
                "uuid": f"b[{where} : p + {at + 16}]",
            }[f.type]
            kind = f": {self.python_type(f)}" if condition is None and f.type in ("int16", "int32", "int64") else ""
            body.append(f"{indent}{self.local(f)}{kind} = {source}")
            at += FIXED[f.type]

    def decode_field(self, body: list[str], f: Field) -> None:
        condition = f.versions.condition(self.valid)
        indent = ""
        name = self.local(f)
        if condition is not None:
            body.append(f"{name}: {self.python_type(f)} = {self.local_default(f)}")
            body.append(f"if {condition}:")
            indent = "    "
        context = f.versions.within(self.valid)
        lines: list[str] = []
        if f.is_array:
            self.decode_array(lines, f, context, declared=condition is not None)
        elif f.is_struct:
            self.decode_single(lines, f, declared=condition is not None)
        else:
            kind = f": {self.python_type(f)}" if condition is None else ""
            lines.append(f"{name}{kind} = {self.read_expression(f, context)}")
        body += [indent + line for line in lines]

    def flexible_condition(self, f: Field | None, context: Versions) -> str | None:
        """None: always flexible; "False": never; otherwise an expression, for versions within `context`."""
        versions = f.flexible if f is not None and f.flexible is not None else self.message.flexible
        return versions.condition(context) if versions else "False"

    def choose(self, condition: str | None, when: str, otherwise: str) -> str:
        if condition is None or when == otherwise:
            return when
        if condition == "False":
            return otherwise
        return f"{when} if {condition} else {otherwise}"

    def read_expression(self, f: Field, context: Versions) -> str:
        kind = f.type
        if kind not in ("string", "bytes", "records"):
            return f"r.{READ_METHODS.get(kind, kind)}()"
        base = "bytes" if kind == "records" else kind
        flexible = self.flexible_condition(f, context)
        nullable = f.nullable.condition(context) if f.nullable else "False"
        plain_nullable = f"r.nullable_{base}()"
        plain = f"r.{READ_METHODS.get(base, base)}()"
        compact = self.choose(nullable, f"r.compact_nullable_{base}()", f"r.compact_{base}()")
        simple = self.choose(nullable, plain_nullable, plain)
        if " if " in compact and flexible not in (None, "False"):
            compact, simple = f"({compact})", f"({simple})"
        return self.choose(flexible, compact, simple)

    def count_expression(self, f: Field, context: Versions) -> str:
        flexible = self.flexible_condition(f, context)
        nullable = f.nullable.condition(context) if f.nullable else "False"
        size = self.min_size(f)
        compact = self.choose(nullable, f"r.compact_nullable_array_len({size})", f"r.compact_array_len({size})")
        simple = self.choose(nullable, f"r.nullable_array_len({size})", f"r.array_len({size})")
        if " if " in compact and flexible not in (None, "False"):
            compact, simple = f"({compact})", f"({simple})"
        return self.choose(flexible, compact, simple)

    def decode_array(self, out: list[str], f: Field, context: Versions, declared: bool) -> None:
        name = self.local(f)
        element = Field(f.name, f.element, f.versions, NO_VERSIONS, NO_VERSIONS, -1, None, False, f.flexible, f.struct)
        item = (
            f"{self.function_name('decode', f.struct)}(r, version)"
            if f.struct is not None
            else self.read_expression(element, context)
        )
        list_type = self.python_type(f).removesuffix(" | None")
        out.append(f"n_{name}: i64 = {self.count_expression(f, context)}")
        target = f"{name}_items"
        if not f.nullable:
            target = name
            out.append(f"{name} = []" if declared else f"{name}: {list_type} = []")
            out += [f"for _ in range(n_{name}):", f"    {name}.append({item})"]
            return
        if not declared:
            out.append(f"{name}: {list_type} | None = None")
        elif f.default != "null":
            out.append(f"{name} = None")
        out += [
            f"if n_{name} >= 0:",
            f"    {target}: {list_type} = []",
            f"    for _ in range(n_{name}):",
            f"        {target}.append({item})",
            f"    {name} = {target}",
        ]

    def decode_single(self, out: list[str], f: Field, declared: bool) -> None:
        assert f.struct is not None
        call = f"{self.function_name('decode', f.struct)}(r, version)"
        kind = "" if declared else f": {self.python_type(f)}"
        if f.nullable:
            # The byte before a struct: 1 if it is present; if it is null -1, or 0 in a tagged field.
            there = ">= 0" if f.tag < 0 else "> 0"
            out.append(f"{self.local(f)}{kind} = {call} if r.int8() {there} else None")
        else:
            out.append(f"{self.local(f)}{kind} = {call}")

    def decode_tags(self, body: list[str], tagged: list[Field]) -> None:
        if self.flexible == "False":
            return
        lines: list[str] = []
        if not tagged:
            lines.append("r.skip_tags()")
        else:
            lines += [
                "n_tags = r.tag_count()",
                "tag: i64 = -1",
                "while n_tags > 0:",
                "    n_tags -= 1",
                "    tag = r.next_tag(tag)",
            ]
            lines.append("    tag_end = r.tag_end()")
            keyword = "if"
            for f in tagged:
                condition = f.tagged.condition(self.valid.within(self.message.flexible))
                extra = f" and {condition}" if condition else ""
                lines.append(f"    {keyword} tag == {f.tag}{extra}:")
                inner: list[str] = []
                context = f.tagged.within(self.valid)
                if f.is_array:
                    self.decode_array(inner, f, context, declared=True)
                elif f.is_struct:
                    self.decode_single(inner, f, declared=True)
                else:
                    inner.append(f"{self.local(f)} = {self.read_expression(f, context)}")
                lines += ["        " + line for line in inner]
                lines.append("        r.expect_pos(tag_end)")
                keyword = "elif"
            lines += ["    else:", "        r.pos = tag_end"]
        if self.flexible is None:
            body += lines
        else:
            body.append(f"if {self.flexible}:")
            body += ["    " + line for line in lines]

    # --- minimum sizes ---------------------------------------------------------------------------------------

    def min_size(self, f: Field) -> int:
        """The minimum size of one element of an array field in bytes, over all versions that have the field."""
        context = f.versions.within(self.valid) or f.tagged.within(self.valid)
        low, high = (context.low, context.high) if isinstance(context, Versions) else (self.valid.low, self.valid.high)
        return min(self.min_element(f, version) for version in range(low, high + 1))

    def is_flexible(self, f: Field, version: int) -> bool:
        versions = f.flexible if f.flexible is not None else self.message.flexible
        return versions.low <= version <= versions.high

    def min_element(self, f: Field, version: int) -> int:
        if f.struct is not None:
            return max(1, self.min_struct(f.struct, version))
        return self.min_primitive(f.element, self.is_flexible(f, version))

    def min_primitive(self, kind: str, flexible: bool) -> int:
        if kind == "string":
            return 1 if flexible else 2
        if kind in ("bytes", "records"):
            return 1 if flexible else 4
        return FIXED.get(kind, {"int8": 1, "uint16": 2, "uint32": 4, "float64": 8}.get(kind, 1))

    def min_struct(self, struct: Struct, version: int) -> int:
        size = 0
        for f in struct.fields:
            if f.tag >= 0 or not f.versions.low <= version <= f.versions.high:
                continue
            if f.is_array:
                size += 1 if self.is_flexible(f, version) else 4
            elif f.struct is not None:
                size += 1 if f.nullable else self.min_struct(f.struct, version)
            else:
                size += self.min_primitive(f.type, self.is_flexible(f, version))
        if self.message.flexible.low <= version <= self.message.flexible.high:
            size += 1
        return size

    # --- encoding --------------------------------------------------------------------------------------------

    def is_spliced(self, f: Field) -> bool:
        return f.type == "records" or (self.message.name, f.name) in SPLICED_TEXTS

    def has_splices(self, struct: Struct) -> bool:
        """Whether the struct has, at any depth, a field that may be sent without a copy. If so, its encode function takes
        `splices`."""
        return any(self.is_spliced(f) or (f.struct is not None and self.has_splices(f.struct)) for f in struct.fields)

    def emit_encode(self, struct: Struct) -> str:
        name = self.function_name("encode", struct)
        if self.has_splices(struct):
            default = " = None" if struct is self.message.root else ""
            out = [
                f"def {name}(",
                f"    w: BytesWriter, m: {struct.name}, version: int, splices: Splices | None{default}",
                ") -> None:",
            ]
        else:
            out = [f"def {name}(w: BytesWriter, m: {struct.name}, version: int) -> None:"]
        if struct is self.message.root:
            out.append(
                f'    """Encode versions {self.valid.low} to {self.valid.high}. Raises EncodeError, ValueError or '
                'OverflowError for a value out of range."""'
            )
        fields = self.fields(struct)
        body: list[str] = []
        for f in fields:
            if f.tag < 0:
                self.encode_field(body, f)
        self.encode_tags(body, [f for f in fields if f.tag >= 0])
        if not body:
            body.append("return")
        return "\n".join(out + ["    " + line if line else line for line in body]) + "\n"

    def encode_field(self, body: list[str], f: Field) -> None:
        condition = f.versions.condition(self.valid)
        context = f.versions.within(self.valid)
        lines = self.write_value(f, f"m.{f.attribute}", context)
        if condition is None:
            body += lines
            return
        body.append(f"if {condition}:")
        body += ["    " + line for line in lines]
        if not f.ignorable:
            body.append(f"elif {self.not_default(f, f'm.{f.attribute}')}:")
            body.append(f'    raise EncodeError(f"{f.name} has no place in version {{version}}")')

    def emit_is_default(self, struct: Struct) -> str:
        """A function that compares a struct with its default, without creating a default struct."""
        tests = [self.not_default(f, f"m.{f.attribute}") for f in self.fields(struct)]
        out = [f"def {self.function_name('is_default', struct)}(m: {struct.name}) -> bool:"]
        for test in tests:
            out += [f"    if {test}:", "        return False"]
        return "\n".join(out + ["    return True"]) + "\n"

    def compare(self, struct: Struct) -> None:
        """Note that the struct and its nested structs are compared with their defaults."""
        if struct.name not in self.compared:
            self.compared.add(struct.name)
            for f in self.fields(struct):
                if f.struct is not None and not f.is_array:
                    self.compare(f.struct)

    def not_default(self, f: Field, value: str) -> str:
        if f.default == "null":
            return f"{value} is not None"
        if f.is_array:
            return f"{value} is None or len({value}) > 0" if f.nullable else f"len({value}) > 0"
        if f.is_struct:
            assert f.struct is not None
            self.compare(f.struct)
            other = f"not {self.function_name('is_default', f.struct)}({value})"
            return f"{value} is None or {other}" if f.nullable else other
        if f.type == "bool":
            return value if self.default_source(f) == "False" else f"not {value}"
        return f"{value} != {self.default_source(f)}"

    def write_value(self, f: Field, value: str, context: Versions) -> list[str]:
        if f.is_array:
            return self.write_array(f, value, context)
        if f.struct is not None:
            return self.write_single(f, value)
        return self.write_primitive(f.type, f, value, context)

    def write_single(self, f: Field, value: str) -> list[str]:
        assert f.struct is not None
        call = self.function_name("encode", f.struct)
        if self.has_splices(f.struct):
            raise SchemaError(f"{f.name}: records are only written in lists of structs")
        if not f.nullable:
            return [f"{call}(w, {value}, version)"]
        local = f"s_{f.attribute}"
        # Null is -1, or 0 in a tagged field, as decode_single reads it.
        none = "write_int8(w, -1)" if f.tag < 0 else "w.append(0)"
        return [
            f"{local} = {value}",
            f"if {local} is None:",
            f"    {none}",
            "else:",
            "    w.append(1)",
            f"    {call}(w, {local}, version)",
        ]

    def write_primitive(self, kind: str, f: Field, value: str, context: Versions) -> list[str]:
        if kind == "bool":
            return [f"w.append(1 if {value} else 0)"]
        if kind in ("int16", "int32", "int64"):
            return [f"write_i{kind[3:]}_be(w, {value})"]
        if kind not in ("string", "bytes", "records"):
            return [f"write_{kind}(w, {value})"]
        flexible = self.flexible_condition(f, context)
        nullable = bool(f.nullable.within(context)) if not f.is_array else False
        word = "nullable_" if nullable else ""
        arguments = f"(w, {value})"
        if self.is_spliced(f):
            if not nullable:
                raise SchemaError(f"{f.name}: records that cannot be null")
            arguments = f"(w, {value}, splices)"
            kind = "text" if kind == "string" else kind
        compact, plain = f"write_compact_{word}{kind}{arguments}", f"write_{word}{kind}{arguments}"
        lines = [compact] if flexible is None else [plain] if flexible == "False" else []
        if not lines:
            lines = [f"if {flexible}:", f"    {compact}", "else:", f"    {plain}"]
        if nullable and not f.nullable.covers(context):
            lines = [
                f"if {value} is None and not ({f.nullable.condition(context)}):",
                f'    raise EncodeError(f"{f.name} is null at version {{version}}")',
            ] + lines
        elif f.nullable and not nullable and not f.is_array:
            # Nullable in some versions, but not in those that write it.
            raise SchemaError(f"{f.name}: nullable only at versions in which it does not exist")
        return lines

    def write_array(self, f: Field, value: str, context: Versions) -> list[str]:
        local = f"a_{f.attribute}"
        flexible = self.flexible_condition(f, context)
        lines = [f"{local} = {value}"]
        compact, plain = f"write_compact_array_len(w, len({local}))", f"write_i32_be(w, len({local}))"
        count = [compact] if flexible is None else [plain] if flexible == "False" else []
        if not count:
            count = [f"if {flexible}:", f"    {compact}", "else:", f"    {plain}"]
        item = f"x_{f.attribute}"
        if f.struct is not None:
            more = ", splices" if self.has_splices(f.struct) else ""
            loop = [
                f"for {item} in {local}:",
                f"    {self.function_name('encode', f.struct)}(w, {item}, version{more})",
            ]
        else:
            loop = [f"for {item} in {local}:"]
            loop += ["    " + line for line in self.write_primitive(f.element, f, item, context)]
        if not f.nullable:
            return lines + count + loop
        null_compact, null_plain = "w.append(0)", "write_i32_be(w, -1)"
        null = [null_compact] if flexible is None else [null_plain] if flexible == "False" else []
        if not null:
            null = [f"if {flexible}:", f"    {null_compact}", "else:", f"    {null_plain}"]
        if not f.nullable.covers(context):
            condition = f.nullable.condition(context)
            null = [
                f"if not ({condition}):",
                f'    raise EncodeError(f"{f.name} is null at version {{version}}")',
            ] + null
        return (
            lines
            + [f"if {local} is None:"]
            + ["    " + x for x in null]
            + ["else:"]
            + ["    " + x for x in count + loop]
        )

    def encode_tags(self, body: list[str], tagged: list[Field]) -> None:
        if self.flexible == "False":
            for f in tagged:
                raise SchemaError(f"{f.name}: tagged field of a message without flexible versions")
            return
        lines: list[str] = []
        if not tagged:
            lines.append("w.append(0)")
        else:
            conditions = []
            for f in sorted(tagged, key=lambda t: t.tag):
                condition = f.tagged.condition(self.valid.within(self.message.flexible))
                test = self.not_default(f, f"m.{f.attribute}")
                if condition:
                    test = f"{condition} and ({test})" if " or " in test else f"{condition} and {test}"
                conditions.append((f, test))
            lines.append("n_tags: i64 = 0")
            for _, test in conditions:
                lines += [f"if {test}:", "    n_tags += 1"]
            lines.append("write_uvarint(w, n_tags)")
            for f, test in conditions:
                lines += [f"if {test}:"] + ["    " + line for line in self.encode_tag(f)]
        if self.flexible is None:
            body += lines
        else:
            body.append(f"if {self.flexible}:")
            body += ["    " + line for line in lines]
            for f in tagged:
                if not f.ignorable:
                    body.append(f"elif {self.not_default(f, f'm.{f.attribute}')}:")
                    body.append(f'    raise EncodeError(f"{f.name} has no place in version {{version}}")')

    def encode_tag(self, f: Field) -> list[str]:
        context = f.tagged.within(self.valid)
        inner = _to_tag_writer(self.write_value(f, f"m.{f.attribute}", context))
        return (
            [f"write_uvarint(w, {f.tag})", "t = BytesWriter()"]
            + inner
            + ["write_uvarint(w, len(t))", "w.write(t.getvalue())"]
        )


def _to_tag_writer(lines: list[str]) -> list[str]:
    """Redirect generated write calls from the message's writer to the writer of one tagged field."""
    return [line.replace("(w, ", "(t, ").replace("w.append(", "t.append(") for line in lines]
