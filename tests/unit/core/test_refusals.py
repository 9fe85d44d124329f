"""Every API has an error answer in every version, and it can be encoded."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.refusals import error_response
from kcoord.protocol import apis, errors
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader
from tests.harness import schema_json

CASES = [(api.key, version) for api in apis.APIS.values() for version in range(api.min_version, api.max_version + 1)]


def one_of_each(fields: tuple[schema_json.Field, ...], version: int) -> dict[str, Any]:
    """A message with one element in every array: an error answer has to list what can be listed."""
    made: dict[str, Any] = {}
    for field in fields:
        if version in field.versions and field.is_array:
            is_number = field.element in schema_json.INT_RANGES
            made[field.key] = [one_of_each(field.fields, version) if field.fields else 3 if is_number else "t"]
        elif version in field.versions and field.type == "string":
            made[field.key] = "t"
    return made


def some_request(api_key: int, version: int) -> Message:
    name = f"{apis.APIS[api_key].name}Request"
    partial = one_of_each(schema_json.schemas()[name].fields, version)
    request: Message = schema_json.build(name, version, schema_json.fill(name, version, partial))
    return request


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_error_answers_of_every_version_encode_and_carry_the_code(api_key: int, version: int) -> None:
    body = some_request(api_key, version)
    response = error_response(api_key, version, body, errors.NOT_COORDINATOR)
    w = BytesWriter()
    apis.encode_response(w, api_key, response, version)
    reader = Reader(w.getvalue())
    decoded = apis.decode_response(api_key, reader, version)
    assert reader.end - reader.pos == 0
    assert f"error_code={errors.NOT_COORDINATOR}" in repr(decoded)


@pytest.mark.parametrize("version", range(apis.APIS[apis.OFFSET_FETCH].min_version, 11))
def test_an_error_of_partitions_stays_with_them_in_offset_fetch(version: int) -> None:
    """A client handles an error of the group in another way: UNSTABLE_OFFSET_COMMIT is never one."""
    body = some_request(apis.OFFSET_FETCH, version)
    response: Any = error_response(apis.OFFSET_FETCH, version, body, errors.UNSTABLE_OFFSET_COMMIT)
    group = response.groups[0] if version >= 8 else response
    assert response.error_code == group.error_code == errors.NONE
    [topic] = group.topics
    [part] = topic.partitions
    assert (part.partition_index, part.committed_offset, part.error_code) == (3, -1, errors.UNSTABLE_OFFSET_COMMIT)


def test_an_unknown_api_version_is_answered_with_the_versions_of_api_versions() -> None:
    body = schema_json.build("ApiVersionsRequest", 0, {})
    response = error_response(apis.API_VERSIONS, 0, body, errors.UNSUPPORTED_VERSION)
    assert "api_key=18" in repr(response)


def test_a_body_that_is_not_a_request_is_an_internal_error() -> None:
    with pytest.raises(TypeError):
        error_response(99, 0, Message(), errors.NOT_COORDINATOR)
