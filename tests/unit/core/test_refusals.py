"""Every API has an error answer in every version, and it can be encoded."""

from __future__ import annotations

import pytest

from kcoord.core.refusals import error_response
from kcoord.protocol import apis, errors
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader
from tests.harness import schema_json

CASES = [
    (api.key, version) for api in apis.APIS.values() for version in range(api.min_version, api.max_version + 1)
]


def some_request(api_key: int, version: int) -> Message:
    """A request with one of everything: what an error answer has to list."""
    name = f"{apis.APIS[api_key].name}Request"
    return schema_json.build(name, version, schema_json.fill(name, version, ONE_OF_EACH.get(api_key, {})))


NAMED = {"topics": [{"name": "t"}]}
RESOURCE = {"resources": [{"resourceType": 2, "resourceName": "t"}]}

ONE_OF_EACH: dict[int, dict[str, object]] = {
    apis.PRODUCE: {"topicData": [{"name": "t", "partitionData": [{"index": 3, "records": None}]}]},
    apis.FETCH: {"topics": [{"topic": "t", "partitions": [{"partition": 3}]}]},
    apis.LIST_OFFSETS: {"topics": [{"name": "t", "partitions": [{"partitionIndex": 3}]}]},
    apis.METADATA: NAMED,
    apis.OFFSET_COMMIT: {"topics": [{"name": "t", "partitions": [{"partitionIndex": 3}]}]},
    apis.OFFSET_FETCH: {
        "topics": [{"name": "t", "partitionIndexes": [3]}],
        "groups": [{"groupId": "g"}],
    },
    apis.FIND_COORDINATOR: {"coordinatorKeys": ["g"]},
    apis.DESCRIBE_GROUPS: {"groups": ["g"]},
    apis.DELETE_GROUPS: {"groupsNames": ["g"]},
    apis.CONSUMER_GROUP_DESCRIBE: {"groupIds": ["g"]},
    apis.CREATE_TOPICS: NAMED,
    apis.DELETE_TOPICS: {"topics": [{"name": "t"}], "topicNames": ["t"]},
    apis.DELETE_RECORDS: {"topics": [{"name": "t", "partitions": [{"partitionIndex": 3}]}]},
    apis.OFFSET_FOR_LEADER_EPOCH: {"topics": [{"topic": "t", "partitions": [{"partition": 3}]}]},
    apis.CREATE_PARTITIONS: NAMED,
    apis.DESCRIBE_CONFIGS: RESOURCE,
    apis.INCREMENTAL_ALTER_CONFIGS: RESOURCE,
    apis.DESCRIBE_TOPIC_PARTITIONS: NAMED,
}


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_error_answers_of_every_version_encode_and_carry_the_code(api_key: int, version: int) -> None:
    body = some_request(api_key, version)
    response = error_response(api_key, version, body, errors.NOT_COORDINATOR)
    w = BytesWriter()
    apis.encode_response(w, api_key, response, version)
    reader = Reader(w.getvalue())
    decoded = apis.decode_response(api_key, reader, version)
    assert reader.remaining() == 0
    assert f"error_code={errors.NOT_COORDINATOR}" in repr(decoded)


def test_an_unknown_api_version_is_answered_with_the_versions_of_api_versions() -> None:
    body = schema_json.build("ApiVersionsRequest", 0, {})
    response = error_response(apis.API_VERSIONS, 0, body, errors.UNSUPPORTED_VERSION)
    assert "api_key=18" in repr(response)


def test_a_body_that_is_no_request_is_our_own_bug() -> None:
    with pytest.raises(TypeError):
        error_response(99, 0, Message(), errors.NOT_COORDINATOR)
