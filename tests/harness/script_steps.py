"""Steps that many scripts begin with."""

from __future__ import annotations

import base64
from typing import Any

from tests.harness import schema_json
from tests.harness.session import Session


def versions(api: str) -> range:
    """Every version of the API's requests."""
    return schema_json.schemas()[f"{api}Request"].versions


def create_topic(s: Session, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    listed = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    topic = {"name": name, "numPartitions": partitions, "replicationFactor": 1, "configs": listed}
    s.call(f"create topic {name}", "CreateTopics", 7, {"topics": [topic]})
    wait_for_topic(s, name, partitions)


def wait_for_topic(s: Session, name: str, partitions: int) -> None:
    """Asks, unrecorded, until the new topic's partitions are listed and answer as leaders."""
    every = [{"partitionIndex": index, "timestamp": -1} for index in range(partitions)]
    for _ in range(400):
        with s.unrecorded():
            listed = s.call("wait", "Metadata", 12, {"topics": [{"name": name}], "allowAutoTopicCreation": False})
            ends = s.call("wait", "ListOffsets", 7, {"replicaId": -1, "topics": [{"name": name, "partitions": every}]})
        parts = ends["topics"][0]["partitions"]
        if listed["topics"][0]["errorCode"] == 0 and all(part["errorCode"] == 0 for part in parts):
            return
    raise TimeoutError(f"topic {name} did not come up")


def wait_for_coordinator(s: Session) -> None:
    """Asks for a group's coordinator, unrecorded, until its topic exists and is loaded."""
    for _ in range(400):
        with s.unrecorded():
            found = s.call("wait", "FindCoordinator", 0, {"key": "warm-up"})
            probe = s.call("wait", "Heartbeat", 0, {"groupId": "warm-up", "generationId": 1, "memberId": "x"})
        if found["errorCode"] == 0 and probe["errorCode"] == 25:
            return
    raise TimeoutError("no group coordinator came up")


def wait_for_config(s: Session, kind: int, name: str, key: str, value: str | None) -> None:
    """Until DescribeConfigs shows the value that was set on a resource; None: until nothing is set on it."""
    sources = {2: 1, 32: 8, 4: 2 if name else 3}
    resource = {"resourceType": kind, "resourceName": name, "configurationKeys": [key]}
    with s.unrecorded():
        for _ in range(400):
            answer = s.call("", "DescribeConfigs", 4, {"resources": [resource], "includeSynonyms": True}, on="wait")
            synonyms = [one for shown in answer["results"][0]["configs"] for one in shown["synonyms"]]
            found = [one["value"] for one in synonyms if one["source"] == sources[kind]]
            if found == ([] if value is None else [value]):
                return
    raise TimeoutError(f"{key} of {name!r} does not become {value}")


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def protocol(name: str = "range", metadata: bytes = b"meta") -> dict[str, str]:
    return {"name": name, "metadata": b64(metadata)}


def join_request(group: str, member: str = "", **fields: Any) -> dict[str, Any]:
    """A JoinGroup request with ordinary values for what is not given."""
    request: dict[str, Any] = {
        "groupId": group,
        "memberId": member,
        "protocolType": "consumer",
        "protocols": [protocol()],
        "sessionTimeoutMs": 30000,
        "rebalanceTimeoutMs": 30000,
    }
    request.update(fields)
    return request


def stable_member(s: Session, group: str, on: str = "a", **fields: Any) -> tuple[str, int]:
    """Joins and syncs one member into a group of its own; member id and generation."""
    first = s.call("join without a member id", "JoinGroup", 4, join_request(group, **fields), on)
    member = first["memberId"]
    joined = s.call("join with the member id", "JoinGroup", 4, join_request(group, member, **fields), on)
    generation = joined["generationId"]
    sync = {
        "groupId": group,
        "generationId": generation,
        "memberId": member,
        "assignments": [{"memberId": member, "assignment": b64(b"assignment")}],
    }
    s.call("sync as leader", "SyncGroup", 3, sync, on)
    return member, generation


def commit_request(group: str, topic: str, partition: int = 0, offset: int = 5, **fields: Any) -> dict[str, Any]:
    """A standalone OffsetCommit of one partition."""
    part = {"partitionIndex": partition, "committedOffset": offset, "committedMetadata": "note"}
    request: dict[str, Any] = {
        "groupId": group,
        "generationIdOrMemberEpoch": -1,
        "topics": [{"name": topic, "partitions": [part]}],
    }
    request.update(fields)
    return request
