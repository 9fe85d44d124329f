"""Emits the table of APIs, and encoding and decoding by API key.

A client uses a few APIs and should start quickly, so `apis.py` imports the module of an API when the API is used for
the first time. A server uses all of them, and spends its time there: `server_codec.py` imports every module and calls
their functions directly, which is a plain C call in native code.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kcoord.codegen.schema import Message, SchemaError, Versions, snake_case

NEVER_FLEXIBLE: Final = 32767


class ApiRow(NamedTuple):
    """An API, served or not, and the module of its messages."""

    key: int
    name: str
    module: str
    valid: Versions
    flexible: Versions
    is_served: bool
    advertised_min: int


def api_rows(by_module: dict[str, list[Message]]) -> list[ApiRow]:
    """All APIs in the order of their keys. Raises SchemaError if a request and its response do not fit together."""
    rows: list[ApiRow] = []
    for module, members in by_module.items():
        requests = [m for m in members if m.type == "request"]
        responses = [m for m in members if m.type == "response"]
        if len(requests) != len(responses):
            raise SchemaError(f"{module}: a request without a response, or the reverse")
        for request, response in zip(requests, responses, strict=True):
            if (request.valid, request.flexible, request.api_key, request.served) != (
                response.valid,
                response.flexible,
                response.api_key,
                response.served,
            ):
                raise SchemaError(f"{module}: request and response differ in versions, api key or being served")
            assert request.api_key is not None
            name = request.name.removesuffix("Request")
            lowest = advertised_min(request)
            rows.append(ApiRow(request.api_key, name, module, request.valid, request.flexible, request.served, lowest))
    return sorted(rows)


def advertised_min(request: Message) -> int:
    """The lowest version that ApiVersions lists."""
    if request.serving is not None and request.serving.advertised_min >= 0:
        return request.serving.advertised_min
    return request.valid.low


def apis_module(rows: list[ApiRow], header: str) -> str:
    out = [
        header.format(about="The table of APIs, and encoding and decoding by API key."),
        "from collections.abc import Callable",
        "from typing import Any, Final, final",
        "",
        "from kcoord.wire.message import Message",
        "from kcoord.wire.primitives import BytesWriter, DecodeError, EncodeError, Reader",
        "",
    ]
    out += [f"{snake_case(row.name).upper()}: Final = {row.key}" for row in rows]
    out += ["", "", API_CLASS, "", "APIS: Final[dict[int, Api]] = {"]
    for row in rows:
        flexible = row.flexible.low if row.flexible else NEVER_FLEXIBLE
        out.append(
            f'    {row.key}: Api({row.key}, "{row.name}", {row.valid.low}, {row.valid.high}, {flexible}, '
            f"{row.advertised_min}, {row.is_served}),"
        )
    out += ["}", "", "", CODEC_CLASS, "", "def _load(api_key: int) -> Codec:"]
    out += ['    """Import the module of an API. Raises DecodeError for an unknown api key."""']
    for row in rows:
        name = snake_case(row.name)
        out += [
            f"    if api_key == {row.key}:",
            f"        from kcoord.protocol import {row.module}",
            "        return Codec(",
            f"            {row.module}.{row.name}Request, {row.module}.{row.name}Response,",
            f"            {row.module}.decode_{name}_request, {row.module}.decode_{name}_response,",
            f"            {row.module}.encode_{name}_request, {row.module}.encode_{name}_response,",
            "        )",
        ]
    out += ['    raise DecodeError(f"unknown api key {api_key}")', "", FUNCTIONS]
    return "\n".join(out)


def server_codec_module(rows: list[ApiRow], header: str) -> str:
    about = (
        "Decoding of requests and encoding of responses, for a server: with direct calls into every module.\n"
        "`apis` has the same for clients, and imports a module when it is used."
    )
    out = [header.format(about=about)]
    out += [f"from kcoord.protocol import {row.module}" for row in rows]
    out += [
        "from kcoord.wire.message import Message",
        "from kcoord.wire.primitives import BytesWriter, DecodeError, EncodeError, Reader",
        "",
        "",
        "def decode_request(api_key: int, r: Reader, version: int) -> Message:",
        '    """Decode the body of a request. Raises DecodeError, also for an unknown api key."""',
    ]
    for row in rows:
        out += [
            f"    if api_key == {row.key}:",
            f"        return {row.module}.decode_{snake_case(row.name)}_request(r, version)",
        ]
    out += [
        '    raise DecodeError(f"unknown api key {api_key}")',
        "",
        "",
        "def encode_response(w: BytesWriter, api_key: int, m: Message, version: int) -> None:",
        '    """Encode the body of a response. Raises EncodeError."""',
    ]
    for row in rows:
        out += [
            f"    if api_key == {row.key} and isinstance(m, {row.module}.{row.name}Response):",
            f"        {row.module}.encode_{snake_case(row.name)}_response(w, m, version)",
            "        return",
        ]
    out += ['    raise EncodeError(f"{type(m).__name__} does not belong to api key {api_key}")', ""]
    return "\n".join(out)


API_CLASS = '''@final
class Api:
    """One API: its key, its name and its version ranges.

    `advertised_min_version` is what ApiVersions lists; requests are accepted from `min_version` on. An API that is
    not `served` has a codec but no handler: it is not listed, and its requests are refused like those of an unknown API.
    """

    def __init__(
        self,
        key: int,
        name: str,
        min_version: int,
        max_version: int,
        flexible_version: int,
        advertised_min_version: int,
        served: bool,
    ) -> None:
        self.key = key
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_version = flexible_version
        self.advertised_min_version = advertised_min_version
        self.served = served

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_version else 1

    def response_header_version(self, version: int) -> int:
        # Clients read the ApiVersions response before they know which versions the server supports (KIP-511).
        return 1 if version >= self.flexible_version and self.key != 18 else 0

'''

CODEC_CLASS = '''@final
class Codec:
    """The messages of one API, and the functions that decode and encode them."""

    def __init__(
        self,
        request_type: type[Message],
        response_type: type[Message],
        decode_request: Callable[[Reader, int], Message],
        decode_response: Callable[[Reader, int], Message],
        encode_request: Callable[[BytesWriter, Any, int], None],
        encode_response: Callable[[BytesWriter, Any, int], None],
    ) -> None:
        self.request_type = request_type
        self.response_type = response_type
        self.decode_request = decode_request
        self.decode_response = decode_response
        self.encode_request = encode_request
        self.encode_response = encode_response


# The APIs that were used.
_CODECS: Final[dict[int, Codec]] = {}


def codec_of(api_key: int) -> Codec:
    """The codec of an API, imported when it is used for the first time. Raises DecodeError for an unknown api key."""
    codec = _CODECS.get(api_key)
    if codec is None:
        codec = _load(api_key)
        _CODECS[api_key] = codec
    return codec

'''

FUNCTIONS = '''
def decode_request(api_key: int, r: Reader, version: int) -> Message:
    """Decode the body of a request. Raises DecodeError, also for an unknown api key."""
    return codec_of(api_key).decode_request(r, version)


def decode_response(api_key: int, r: Reader, version: int) -> Message:
    """Decode the body of a response. Raises DecodeError, also for an unknown api key."""
    return codec_of(api_key).decode_response(r, version)


def encode_request(w: BytesWriter, api_key: int, m: Message, version: int) -> None:
    """Encode the body of a request. Raises EncodeError."""
    if api_key not in APIS or not isinstance(m, codec_of(api_key).request_type):
        raise EncodeError(f"{type(m).__name__} does not belong to api key {api_key}")
    codec_of(api_key).encode_request(w, m, version)


def encode_response(w: BytesWriter, api_key: int, m: Message, version: int) -> None:
    """Encode the body of a response. Raises EncodeError."""
    if api_key not in APIS or not isinstance(m, codec_of(api_key).response_type):
        raise EncodeError(f"{type(m).__name__} does not belong to api key {api_key}")
    codec_of(api_key).encode_response(w, m, version)
'''
