"""Kafka's Java codec against ours: every message of schemas/, every version, seeded random content.

Java turns JSON into bytes; ours must decode them, encode the very same bytes again, and render to the JSON that Java
itself reads from those bytes. A failure prints the message, the version, the seed's style and the JSON.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.harness import schema_json
from tests.harness.session import KcoordCodec
from tests.interop.oracle import Oracle, OracleError

SEED = 20260317
RANDOM_PER_VERSION = 12

# Requests and responses are named after their APIs; a header is read by the server by hand as well.
NAMES = sorted(schema_json.kafkas())


def messages(name: str) -> list[tuple[str, int, dict[str, Any]]]:
    """(style, version, JSON) for every version of the message."""
    made = []
    for version in schema_json.schemas()[name].versions:
        rng = random.Random(f"{SEED} {name} {version}")
        for style in schema_json.STYLES:
            for _ in range(RANDOM_PER_VERSION if style == "random" else 1):
                made.append((style, version, schema_json.random_message(name, version, rng, style)))
        made += [(shown, version, value) for shown, value in schema_json.nullable_samples(name, version)]
    return made


@pytest.mark.parametrize("name", NAMES)
def test_same_bytes_and_same_content_as_java(name: str, oracle: Oracle) -> None:
    codec = KcoordCodec()
    made = messages(name)
    encoded = oracle.encode_many([(name, version, value) for _, version, value in made])
    refused = [str(e) for e in encoded if isinstance(e, OracleError)]
    assert not refused, refused[0]
    bodies = [body for body in encoded if isinstance(body, bytes)]
    read_back = oracle.decode_many([(name, made[i][1], body) for i, body in enumerate(bodies)])
    for (style, version, value), body, java_json in zip(made, bodies, read_back, strict=True):
        what = f"{name} v{version} ({style}): {value}"
        ours = codec.decode(name, version, body)
        assert ours == java_json, what
        assert codec.encode(name, version, ours).hex() == body.hex(), what


@pytest.mark.parametrize("name", NAMES)
def test_java_reads_null_empty_and_left_out_as_we_mean_them(name: str, oracle: Oracle) -> None:
    codec = KcoordCodec()
    made = [
        (shown, version, value)
        for version in schema_json.schemas()[name].versions
        for shown, value in schema_json.nullable_samples(name, version)
    ]
    bodies = [codec.encode(name, version, value) for _, version, value in made]
    read = oracle.decode_many([(name, made[i][1], body) for i, body in enumerate(bodies)])
    written = oracle.encode_many([(name, version, value) for _, version, value in made])
    for (shown, version, value), body, java_json, java_body in zip(made, bodies, read, written, strict=True):
        what = f"{name} v{version}: {shown}: {value}"
        assert codec.decode(name, version, body) == java_json, what
        assert java_body == body, what


@pytest.mark.parametrize("name", NAMES)
def test_same_versions_as_java(name: str, oracle: Oracle) -> None:
    """Java reads no version that our schema lacks, and all that it has (Produce 0-2 is advertised, not described)."""
    schema = schema_json.schemas()[name]
    if schema.api_key is None or schema.type not in ("request", "response"):
        return
    api = next(api for api in oracle.apis() if api["key"] == schema.api_key)
    newest = schema.valid.high
    assert schema.valid.low == api["min"], name
    assert newest == api["max"] or (name.startswith("InitProducerId") and newest >= 5), name
    flexible = [version in schema.flexible for version in schema.versions]
    headers = api["requestHeader"] if schema.type == "request" else api["responseHeader"]
    expected = [header == (2 if schema.type == "request" else 1) for header in headers[: len(flexible)]]
    if name != "ApiVersionsResponse":
        assert flexible == expected, name


# Fields with tags of kcoord's own, as the proposal of KIP-848 has them and no release.
ASSIGNOR = {"name": "mine", "minimumVersion": 1, "maximumVersion": 3, "reason": 2, "metadataVersion": 2}
OWN: dict[str, dict[str, Any]] = {
    "ConsumerGroupHeartbeatRequest": {"clientAssignors": [{**ASSIGNOR, "metadataBytes": "AAEC"}]},
    "ConsumerGroupHeartbeatResponse": {"shouldComputeAssignment": True},
    "ConsumerGroupMemberMetadataValue": {"clientAssignors": [{**ASSIGNOR, "metadataBytes": "AAEC"}]},
    "ConsumerGroupTargetAssignmentMemberValue": {"error": 1, "metadataVersion": 2, "metadataBytes": "AAEC"},
    "ConsumerGroupCurrentMemberAssignmentValue": {"error": 1, "metadataVersion": 2, "metadataBytes": "AAEC"},
    "InitProducerIdRequest": {
        "groupAssignment": {
            "groupId": "g",
            "generationId": 3,
            "memberId": "m",
            "groupInstanceId": None,
            "topics": [{"name": "t", "partitions": [0, 2]}],
        }
    },
}


@pytest.mark.parametrize("name", sorted(OWN))
def test_java_skips_kcoords_own_fields(name: str, oracle: Oracle) -> None:
    codec = KcoordCodec()
    least = min(field.versions.low for field in schema_json.schemas()[name].fields if field.is_own)
    for style, version, value in messages(name):
        if version < least:
            continue
        plain = codec.encode(name, version, value)
        ours = codec.encode(name, version, {**value, **OWN[name]})
        assert len(ours) > len(plain)
        assert codec.decode(name, version, ours) == codec.decode(name, version, plain) | OWN[name]
        java_plain, java_ours = oracle.decode_many([(name, version, plain), (name, version, ours)])
        assert java_ours == java_plain, (style, version, value)


def test_every_own_field_is_read_past() -> None:
    own = {schema.name for schema in schema_json.schemas().values() for field in schema.fields if field.is_own}
    assert own == set(OWN)


def test_every_served_api_has_both_schemas() -> None:
    from kcoord.protocol import apis

    for api in apis.APIS.values():
        for kind in ("Request", "Response"):
            schema = schema_json.schemas()[f"{api.name}{kind}"]
            assert schema.api_key == api.key
            assert (schema.valid.low, schema.valid.high) == (api.min_version, api.max_version)
