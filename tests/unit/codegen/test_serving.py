"""What a request schema says of serving its API: checked when it is loaded, and handled by what exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.codegen.emit_serving import emit_serving
from kcoord.codegen.generate import HEADER, served_apis
from kcoord.codegen.schema import SchemaError, load_all, load_message
from kcoord.codegen.serving import Serving
from kcoord.core.outcome import Now
from kcoord.engine.api_classes import DATA_PLANE_APIS
from kcoord.protocol import apis
from tests.harness.engine import REPOSITORY, open_memory_engine

SERVED = [m for m in load_all(REPOSITORY / "schemas") if m.serving is not None]
TOPIC = {"name": "Name", "type": "string", "versions": "0+"}
TOPICS = {"name": "Topics", "type": "[]Asked", "versions": "0+", "fields": [TOPIC]}
CODE = {"name": "ErrorCode", "type": "int16", "versions": "0+"}
RESULTS = {"name": "Results", "type": "[]Result", "versions": "0+", "fields": [CODE, TOPIC]}
SERVING = {"handler": "core.things.handle(request, body, now)", "refusal": {"Results": {"each": "Topics"}}}


def messages(path: Path, serving: object, topics: dict[str, Any] = TOPICS) -> dict[str, str]:
    """What is generated for an API that is served like this."""
    common = {"apiKey": 99, "validVersions": "0", "flexibleVersions": "0+"}
    request = {"name": "ThingRequest", "type": "request", "fields": [topics], **common}
    if serving is not None:
        request["serving"] = serving
    response = {"name": "ThingResponse", "type": "response", "fields": [RESULTS], **common}
    for raw in (request, response):
        (path / f"{raw['name']}.json").write_text(json.dumps(raw))
    loaded = [load_message(path / f"Thing{kind}.json") for kind in ("Request", "Response")]
    return emit_serving(served_apis({"thing": loaded}), HEADER)


@pytest.mark.parametrize(
    ("serving", "reason"),
    [
        (None, "has no serving, so it has no handler"),
        ([], "serving must be an object"),
        ({**SERVING, "cost": 1}, "unknown key 'cost'"),
        ({"handler": SERVING["handler"]}, "refusal is missing"),
        ({**SERVING, "handler": "core.things.handle"}, "is not a call"),
        ({**SERVING, "handler": "core.handle(body)"}, "must be core.X.Y"),
        ({**SERVING, "handler": "core.things.handle(session)"}, "unknown argument 'session'"),
        ({**SERVING, "entropy": "yes"}, "entropy must be true or false"),
        ({**SERVING, "frame": "huge"}, "frame must be one of control, group, produce"),
        ({**SERVING, "durable": True}, "durable is for the data plane"),
        ({**SERVING, "protocol": "share"}, "protocol can only be consumer"),
        ({**SERVING, "refusal": ["error"]}, "refusal must be an object"),
        ({**SERVING, "refusal": {"Errors": "error"}}, "ThingResponse has no field Errors"),
        ({**SERVING, "refusal": {"Results": {"each": "Groups"}}}, "the request has no field Groups"),
        ({**SERVING, "refusal": {"Results": {"each": "Topics", "Name": "@Id"}}}, "the request has no field Id"),
        ({**SERVING, "refusal": {"Results": "all"}}, "Results cannot be 'all'"),
    ],
)
def test_a_mistake_is_reported_with_its_file(tmp_path: Path, serving: object, reason: str) -> None:
    with pytest.raises(SchemaError, match=r"ThingRequest\.json: .*" + reason.replace("(", r"\(")):
        messages(tmp_path, serving)


def test_a_list_that_may_be_null_needs_a_function(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="may be null"):
        messages(tmp_path, SERVING, {**TOPICS, "nullableVersions": "0+"})


def test_a_refusal_lists_what_the_request_asks_about(tmp_path: Path) -> None:
    refusal = {"Results": {"each": "Topics", "Name": "@Name", "ErrorCode": "error"}}
    text = messages(tmp_path, {**SERVING, "refusal": refusal})["core/refusals.py"]
    assert "    for asked in body.topics:\n" in text
    assert "        results.append(thing.Result(name=asked.name, error_code=error_code))\n" in text
    one = messages(tmp_path, {**SERVING, "refusal": {"Results": [{"ErrorCode": "error"}]}})["core/refusals.py"]
    assert "return thing.ThingResponse(results=[thing.Result(error_code=error_code)])" in one


@pytest.mark.parametrize("message", SERVED, ids=lambda message: message.name)
def test_every_handler_exists_and_takes_these_arguments(message: Any) -> None:
    serving: Serving = message.serving
    engine = open_memory_engine(Now(1_000, 1_700_000_000_000))
    if serving.is_function:
        handler: Any = importlib.import_module(f"kcoord.engine.{serving.path[0]}")
    else:
        handler = {"core": engine.core, "plane": engine.data_plane}[serving.path[0]]
    for name in serving.path[1:]:
        handler = getattr(handler, name)
    assert len(inspect.signature(handler).parameters) == len(serving.arguments)


def test_every_api_of_the_table_is_dispatched_once() -> None:
    found: list[str] = []
    for name in ("core/dispatch.py", "engine/dispatch.py"):
        tree = ast.parse((REPOSITORY / "kcoord" / name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Attribute):
                found.append(node.comparators[0].attr)
    keys = [getattr(apis, name) for name in found]
    assert sorted(keys) == sorted(apis.APIS)
    assert {
        message.api_key for message in SERVED if message.serving and message.serving.plane == "data"
    } == DATA_PLANE_APIS
    # The ones that come most often.
    assert found[:4] == ["OFFSET_COMMIT", "HEARTBEAT", "CONSUMER_GROUP_HEARTBEAT", "OFFSET_FETCH"]
