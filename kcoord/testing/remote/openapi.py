"""The OpenAPI description of the HTTP interface."""

from __future__ import annotations

from typing import Any

from kcoord import __version__
from kcoord.testing.remote.operations import OPERATIONS, RULE_OPERATIONS, Operation

ERRORS = {
    "400": "the request is wrong",
    "401": "the token is missing or wrong",
    "404": "there is no such path",
    "408": "a wait has failed; the message shows what the server has seen",
    "409": "the server is not in a state in which this is possible",
    "413": "the request is too large",
}


def describe() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths = {f"/v1/{one.name}": {"post": _operation(one)} for one in OPERATIONS.values()}
    properties = {
        "id": {"type": "integer"},
        "hits": {"type": "integer", "default": 1},
        "timeout": {"type": "number", "default": 10.0},
    }
    for name, text in RULE_OPERATIONS.items():
        needed = {each: properties[each] for each in (properties if name == "wait_rule" else ("id",))}
        schema = {"type": "object", "properties": needed, "required": ["id"], "additionalProperties": False}
        paths[f"/v1/{name}"] = {"post": _post(name, text, schema)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kcoord test controls",
            "version": __version__,
            "description": "Each operation is a method of the pytest fixture; docs/testing.md explains them.",
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": paths,
    }


def _operation(one: Operation) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {each.name: each.schema for each in one.parameters.values()},
        "required": [each.name for each in one.parameters.values() if each.is_required],
        "additionalProperties": False,
    }
    return _post(one.name, one.doc, schema)


def _post(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = text.partition("\n")
    responses: dict[str, Any] = {
        "200": {
            "description": "done",
            "content": {"application/json": {"schema": {"type": "object", "required": ["result"]}}},
        }
    }
    for code, words in ERRORS.items():
        error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
        responses[code] = {"description": words, "content": {"application/json": {"schema": error}}}
    return {
        "operationId": name,
        "summary": summary,
        "description": rest.strip(),
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": responses,
    }
