"""Generates modules from `serving`: the dispatch of the core and of the data plane, the classes of APIs, the refusals."""

from __future__ import annotations

from dataclasses import dataclass

from kcoord.codegen.schema import Field, Message, SchemaError, Struct, snake_case
from kcoord.codegen.serving import CORE, DATA, Serving

# The names of the variables for elements of the request, at each depth of lists.
ELEMENTS = ("asked", "inner")


@dataclass(frozen=True)
class ServedApi:
    """A served API, with the schemas of its request and its response."""

    module: str
    request: Message
    response: Message
    serving: Serving

    @property
    def constant(self) -> str:
        return f"apis.{snake_case(self.request.name.removesuffix('Request')).upper()}"


def emit_serving(served: list[ServedApi], header: str) -> dict[str, str]:
    """Path below kcoord/ of each module -> its text. `served` is in the order of API keys. Raises SchemaError."""
    return {
        "core/dispatch.py": _core_dispatch(served, header),
        "core/refusals.py": _refusals(served, header),
        "engine/api_classes.py": _api_classes(served, header),
        "engine/dispatch.py": _data_dispatch(served, header),
    }


def _ranked(served: list[ServedApi], plane: str) -> list[ServedApi]:
    of_plane = [api for api in served if api.serving.plane == plane]
    return sorted(of_plane, key=lambda api: (api.serving.rank, api.request.api_key))


def _request_imports(served: list[ServedApi]) -> list[str]:
    used = [api for api in served if "body" in api.serving.arguments]
    return sorted(f"from kcoord.protocol.{api.module} import {api.request.name}" for api in used)


def _call(api: ServedApi) -> str:
    arguments = [f"cast({api.request.name}, request.body)" if a == "body" else a for a in api.serving.arguments]
    path = api.serving.path[-1:] if api.serving.is_function else api.serving.path
    return f"{'.'.join(path)}({', '.join(arguments)})"


# ---- dispatch


def _core_dispatch(served: list[ServedApi], header: str) -> str:
    ranked = _ranked(served, CORE)
    out = [
        header.format(about="Sends each request of the core to its handler, the most frequent ones first."),
        "from typing import cast\n",
        "from kcoord.core.coordinator import Core",
        "from kcoord.core.outcome import Now, Outcome, Request",
        "from kcoord.core.refusals import error_response",
        "from kcoord.protocol import apis, errors",
        *_request_imports(ranked),
        "",
        "",
        "def handle_request(core: Core, request: Request, now: Now) -> Outcome:",
        '    """Handle a request of any API but those of the data plane."""',
        "    key = request.api_key",
    ]
    for api in ranked:
        out.append(f"    if key == {api.constant}:")
        if api.serving.protocol:
            out += ["        if not core.serves_consumer_protocol:", "            return _unsupported(request)"]
        out.append(f"        return {_call(api)}")
    out += ['    raise KeyError(f"no handler for api key {key}")', UNSUPPORTED]
    return "\n".join(out)


UNSUPPORTED = '''

def _unsupported(request: Request) -> Outcome:
    """The response for a listed API whose protocol is disabled, as a broker's."""
    out = Outcome()
    response = error_response(request.api_key, request.version, request.body, errors.UNSUPPORTED_VERSION)
    out.reply(request.request_id, response)
    return out
'''


def _data_dispatch(served: list[ServedApi], header: str) -> str:
    ranked = _ranked(served, DATA)
    functions = sorted(".".join(api.serving.path) for api in ranked if api.serving.is_function)
    out = [
        header.format(about="Sends each request of the data plane to its handler, the most frequent ones first."),
        "from typing import cast\n",
        "from kcoord.core.outcome import Now, Request",
        *(f"from kcoord.engine.{path.partition('.')[0]} import {path.partition('.')[2]}" for path in functions),
        "from kcoord.engine.data_plane import DataPlane",
        "from kcoord.protocol import apis",
        *_request_imports(ranked),
        "from kcoord.wire.message import Message",
        "",
        "",
        "def handle_data(plane: DataPlane, request: Request, now: Now) -> Message | None:",
        '    """Answer a request. None: it is parked, such as a fetch that waits, a Produce whose records are checked in a',
        '    thread, or a request that takes more than a turn."""',
        "    key = request.api_key",
    ]
    for api in ranked:
        out += [f"    if key == {api.constant}:", f"        return {_call(api)}"]
    out += ['    raise KeyError(f"no handler for api key {key}")', ""]
    return "\n".join(out)


# ---- classes of APIs


def _api_classes(served: list[ServedApi], header: str) -> str:
    out = [
        header.format(about="The properties of APIs that the engine and the server need, besides the handlers."),
        "from typing import Final\n",
        "from kcoord.core.config import CoreConfig",
        "from kcoord.protocol import apis",
        "",
    ]
    for name, why, chosen in (
        ("DATA_PLANE_APIS", "Served without the core.", [a for a in served if a.serving.plane == DATA]),
        (
            "ENTROPY_APIS",
            "Their handlers create identifiers, and get random bytes.",
            [a for a in served if a.serving.entropy],
        ),
        (
            "WRITING_APIS",
            "Refused while the disk is full. Heartbeats, leaves and reads are still handled.",
            [a for a in served if a.serving.needs_space],
        ),
        (
            "APPENDING_APIS",
            "They may append many bytes, and wait while the open commit is large. Other APIs are handled meanwhile.",
            [a for a in served if a.serving.appends],
        ),
        (
            "DURABLE_APIS",
            "Their responses from the data plane wait for the commit that is open when they are created.",
            [a for a in served if a.serving.durable],
        ),
        ("GROUP_FRAME_APIS", "Bounded by `frame.group.max.bytes`.", [a for a in served if a.serving.frame == "group"]),
        (
            "PRODUCE_FRAME_APIS",
            "Bounded by `frame.produce.max.bytes`.",
            [a for a in served if a.serving.frame == "produce"],
        ),
    ):
        out += [f"# {why}", f"{name}: Final = frozenset(", "    ("]
        out += [f"        {api.constant}," for api in chosen]
        out += ["    )", ")"]
    bounded = [api for api in served if api.serving.elements]
    out += ["# The settings that bound the elements of a request, if not `request.elements.max`."]
    out += ["ELEMENTS_SETTINGS: Final[dict[int, str]] = {"]
    out += [f'    {api.constant}: "{api.serving.elements.replace("_", ".")}",' for api in bounded]
    out += ["}", "", "", "def elements_max(config: CoreConfig, api_key: int) -> int:"]
    out += ['    """How many elements the arrays of a request may have together."""']
    for api in bounded:
        out += [f"    if api_key == {api.constant}:"]
        out += [f"        return max(config.{api.serving.elements}, config.request_elements_max)"]
    out += ["    return config.request_elements_max", ""]
    return "\n".join(out)


# ---- refusals


def _refusals(served: list[ServedApi], header: str) -> str:
    special = sorted({a.serving.refusal for a in served if isinstance(a.serving.refusal, str)})
    described = [api for api in served if isinstance(api.serving.refusal, dict)]
    out = [
        header.format(
            about="Error responses for whole requests, in the format of each API.\n\n"
            "If a response has no top-level error, every topic, partition, group or resource of the request gets the error."
        ),
        "from typing import cast\n",
        "from kcoord.core.special_refusals import (",
        *(f"    {name}," for name in special),
        ")",
        "from kcoord.protocol import apis",
        *(f"from kcoord.protocol import {api.module}" for api in described),
        "from kcoord.wire.message import Message",
        "",
        "",
        "def error_response(api_key: int, version: int, body: Message, error_code: int) -> Message:",
        '    """Return the response of this API and version that refuses all of `body`.',
        "",
        "    A Produce request with acks=0 has no response; the caller checks this. Raises TypeError for a body that is not a",
        "    request of a served API.",
        '    """',
    ]
    functions: list[str] = []
    for api in served:
        refusal = api.serving.refusal
        out.append(f"    if api_key == {api.constant}:")
        if isinstance(refusal, str):
            out.append(f"        return {refusal}(version, body, error_code)")
        elif "each" not in str(refusal):
            builder = _RefusalBuilder(api)
            out.append(f"        return {builder.value_of(refusal, api.response.root, None, '')}")
        else:
            out.append(f"        return _{api.module}(cast({api.module}.{api.request.name}, body), error_code)")
            functions += ["", "", *_RefusalBuilder(api).function(refusal)]
    out += ['    raise TypeError(f"no error answer for API {api_key}: {type(body).__name__}")', *functions, ""]
    return "\n".join(out)


class _RefusalBuilder:
    """The source of the code that creates the error response of one API."""

    def __init__(self, api: ServedApi) -> None:
        self.api = api
        self.lines: list[str] = []
        self.names: list[str] = []

    def fail(self, text: str) -> SchemaError:
        return SchemaError(f"{self.api.request.path.name}: refusal: {text}")

    def function(self, refusal: dict[str, object]) -> list[str]:
        request = self.api.request
        head = f"def _{self.api.module}(body: {self.api.module}.{request.name}, error_code: int) -> Message:"
        value = self.value_of(refusal, self.api.response.root, request.root, "body")
        return [head, *self.lines, f"    return {value}"]

    def value_of(self, fields: dict[str, object], made: Struct, asked: Struct | None, source: str) -> str:
        """The call that creates `made`; lists are filled before it. `source` is the request's element."""
        known = {field.name: field for field in made.fields}
        arguments = []
        for name, value in fields.items():
            if name == "each":
                continue
            if name not in known:
                raise self.fail(f"{made.name} has no field {name}")
            arguments.append(f"{known[name].attribute}={self._field(known[name], value, asked, source)}")
        return f"{self.api.module}.{made.name}({', '.join(arguments)})"

    def _field(self, field: Field, value: object, asked: Struct | None, source: str) -> str:
        if isinstance(value, dict):
            return self._list(field, value, asked, source)
        if isinstance(value, list):
            if field.struct is None:
                raise self.fail(f"{field.name} is not a list of structures")
            return f"[{', '.join(self.value_of(one, field.struct, None, '') for one in value)}]"
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
        if value == "error":
            return "error_code"
        if value == "@" and source:
            return source
        if isinstance(value, str) and value.startswith("@"):
            return f"{source}.{self._asked(asked, value[1:]).attribute}"
        if value == "":
            return '""'
        raise self.fail(f"{field.name} cannot be {value!r}")

    def _asked(self, asked: Struct | None, name: str) -> Field:
        for field in asked.fields if asked is not None else ():
            if field.name == name:
                return field
        raise self.fail(f"the request has no field {name} at this level")

    def _list(self, field: Field, value: dict[str, object], asked: Struct | None, source: str) -> str:
        over = self._asked(asked, str(value.get("each")))
        if not field.is_array or field.struct is None or not over.is_array:
            raise self.fail(f"{field.name} and {over.name} must be lists")
        depth = ELEMENTS.index(source) + 1 if source in ELEMENTS else 0
        if depth == len(ELEMENTS):
            raise self.fail(f"{field.name} is too deep")
        name, element, indent = self._name(field.attribute), ELEMENTS[depth], " " * (4 * depth + 4)
        self.lines.append(f"{indent}{name}: list[{self.api.module}.{field.struct.name}] = []")
        if over.nullable:
            raise self.fail(f"{over.name} may be null; use the name of a function")
        self.lines.append(f"{indent}for {element} in {source}.{over.attribute}:")
        made = self.value_of(value, field.struct, over.struct, element)
        self.lines.append(f"{indent}    {name}.append({made})")
        return name

    def _name(self, name: str) -> str:
        """Return a name that the function does not use yet."""
        while name in self.names:
            name += "_"
        self.names.append(name)
        return name
