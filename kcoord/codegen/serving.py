"""The object `serving` of a request schema, which declares how kcoord serves the API, and its checks.

| key | meaning |
|---|---|
| `handler` | the call that serves the API, see below |
| `rank` | frequent requests are dispatched first: 1 before 2 before those without a rank |
| `protocol` | `consumer`: the response is UNSUPPORTED_VERSION if the consumer protocol is disabled |
| `entropy` | whether the handler creates identifiers, and so gets random bytes |
| `appends` | whether it may append many bytes, and so waits while the open commit is large |
| `needsSpace` | whether it is refused while the disk is full; implies `appends` |
| `durable` | data plane only: whether its response waits for the commit that is open when it is handled |
| `frame` | `control` (default), `group` or `produce`: which `frame.*.max.bytes` bounds the request |
| `elements` | the setting of the core that bounds the elements of its arrays besides `request_elements_max` |
| `advertisedMin` | the lowest version that ApiVersions lists, if it is not the lowest one that is served |
| `refusal` | the response with an error for the whole request: its fields, or the name of a function |

`advertisedMin` is for Produce, which Kafka serves from version 3 on and lists from 0: old releases of librdkafka detect
features by the presence of low versions (KAFKA-18659).

A handler is a call, which is copied into the generated dispatch, with `request`, `body` and `now` as its arguments. It
starts with its plane: `core.` for attributes of `Core`, `plane.` for attributes of `DataPlane`. A function of the engine
needs no object: `log_dirs.handle_describe_log_dirs(plane, body)` is a function in `kcoord/engine/log_dirs.py`.

A refusal lists the fields of the response that differ from their defaults: `"error"` for the error code, a number, `""`
or null, `{"each": "Topics", ...}` for a list with an element for each of the request's topics, `[{...}]` for a list of
one element. In an element, `"@Name"` is that field of the request's element, and `"@"` is the element itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FRAMES = ("control", "group", "produce")
CORE, DATA = "core", "data"
ARGUMENTS = {"request", "body", "now", "plane", "plane.topics.features", "request.version"}
FLAGS = ("entropy", "appends", "needsSpace", "durable")
KEYS = {"handler", "rank", "protocol", "frame", "elements", "advertisedMin", "refusal", *FLAGS}
# APIs without a rank come after all APIs with a rank.
RANK_LAST = 1000
HANDLER = re.compile(r"(?P<path>[a-z_]+(?:\.[a-z_]+)+)\((?P<arguments>[a-z_., ]*)\)")

Refusal = dict[str, object] | str


class ServingError(Exception):
    """`serving` is invalid. The loader adds the name of the file to the message."""


@dataclass(frozen=True)
class Serving:
    """How an API is served. `path` is the handler without its arguments."""

    plane: str
    path: tuple[str, ...]
    arguments: tuple[str, ...]
    rank: int
    protocol: str
    entropy: bool
    appends: bool
    needs_space: bool
    durable: bool
    frame: str
    elements: str
    advertised_min: int
    refusal: Refusal

    @property
    def is_function(self) -> bool:
        """Whether the handler is a function of a module of the engine."""
        return self.plane == DATA and self.path[0] != "plane"


def parse_serving(raw: object) -> Serving:
    """Check the object `serving` of a request schema. Raises ServingError."""
    if not isinstance(raw, dict):
        raise ServingError("serving must be an object")
    if unknown := set(raw) - KEYS:
        raise ServingError(f"serving: unknown key {min(unknown)!r}")
    for key in ("handler", "refusal"):
        if key not in raw:
            raise ServingError(f"serving: {key} is missing")
    for key in FLAGS:
        if not isinstance(raw.get(key, False), bool):
            raise ServingError(f"serving: {key} must be true or false")
    path, arguments = _handler(str(raw["handler"]))
    plane = CORE if path[0] == "core" else DATA
    refusal = raw["refusal"]
    if not isinstance(refusal, dict) and not (isinstance(refusal, str) and refusal.isidentifier()):
        raise ServingError("serving: refusal must be an object with fields, or the name of a function")
    frame = raw.get("frame", FRAMES[0])
    if frame not in FRAMES:
        raise ServingError(f"serving: frame must be one of {', '.join(FRAMES)}")
    protocol = raw.get("protocol", "")
    if protocol not in ("", "consumer") or (protocol and plane != CORE):
        raise ServingError("serving: protocol can only be consumer, and only in the core")
    durable = raw.get("durable", False)
    if durable and plane != DATA:
        raise ServingError(
            "serving: durable is for the data plane; responses of the core always wait for their records"
        )
    needs_space = raw.get("needsSpace", False)
    return Serving(
        plane=plane,
        path=path,
        arguments=arguments,
        rank=int(raw.get("rank", RANK_LAST)),
        protocol=protocol,
        entropy=raw.get("entropy", False),
        appends=raw.get("appends", False) or needs_space,
        needs_space=needs_space,
        durable=durable,
        frame=frame,
        elements=str(raw.get("elements", "")),
        advertised_min=int(raw.get("advertisedMin", -1)),
        refusal=refusal,
    )


def _handler(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match = HANDLER.fullmatch(text)
    if match is None:
        raise ServingError(f"serving: handler {text!r} is not a call such as core.groups.handle_it(request, body, now)")
    path = tuple(match["path"].split("."))
    arguments = tuple(argument.strip() for argument in match["arguments"].split(","))
    if unknown := set(arguments) - ARGUMENTS:
        raise ServingError(f"serving: handler {text!r} has the unknown argument {min(unknown)!r}")
    if len(path) != 3 and not (len(path) == 2 and path[0] not in ("core", "plane")):
        raise ServingError(f"serving: handler {text!r} must be core.X.Y, plane.X.Y or MODULE.FUNCTION")
    return path, arguments
