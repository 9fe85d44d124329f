"""Conversations about consumer groups (KIP-848), and the records that the coordinator wrote meanwhile.

Adds to `Session` what these need: waiting by the clock (`pause`), symbols for member ids that the server made, an order
for lists that come from hash maps, and the batches of `__consumer_offsets` in the same normalised form as the answers:

    {"records": [{"type": "ConsumerGroupMetadata", "version": 0, "key": {...}, "value": {...}}, ...]}

one object per batch, in the order of the log; a tombstone has the value None and no version. Of what is random in a
record, ids are symbols as in answers, metadata hashes are numbered by appearance (`<hash 1>`), times are `<now>`.
Records of one batch and kind that follow each other are ordered by member, since brokers keep members in hash maps.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kcoord.log.reader import DamagedBytes, read_batches
from kcoord.log.serde import UnknownRecord, decode_record
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record
from tests.harness import schema_json
from tests.harness.session import KcoordCodec, Session

DECOMPRESSED_BYTES_MAX = 1 << 24
# Numbers that count from an unknown start or are a hash over random ids.
TIMES = ("assignmentTimestamp", "commitTimestamp", "expireTimestamp", "currentStateTimestamp", "timestamp")
# The tombstones that take a member out of a group.
REMOVAL = ("ConsumerGroupCurrentMemberAssignment", "ConsumerGroupTargetAssignmentMember", "ConsumerGroupMemberMetadata")
# Lists without an order, and what their elements are ordered by.
UNORDERED = {
    "topicPartitions": ("topicName", "topicId"),
    "assignedPartitions": ("topicName", "topicId"),
    "partitionsPendingRevocation": ("topicName", "topicId"),
    "topics": ("name", "topic", "topicId"),
    "groups": ("groupId",),
    "responses": ("memberId",),
}


class ConsumerSession(Session):
    """A recorded conversation whose groups' records can be asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.groups: dict[str, bool] = {}
        self._hashes: dict[int, str] = {}
        self._in_records = False

    def pause(self, seconds: float) -> None:
        """Lets that much time go by for the broker."""
        time.sleep(seconds)

    def send(self, step: str, api: str, version: int, request: dict[str, Any], on: str = "a") -> Any:
        for group in (request.get("groupId"), *(request.get("groupsNames") or [])):
            if isinstance(group, str):
                self.groups[group] = True
        return super().send(step, api, version, request, on)

    def drop_last_step(self) -> None:
        """Forgets the last call: one of several that waited for something."""
        self._steps.pop()

    def _learn(self, api: str, request: Any, response: Any) -> None:
        super()._learn(api, request, response)
        if api == "ConsumerGroupHeartbeat":
            member = response["memberId"]
            if member and member != request["memberId"] and member not in self._symbols:
                self._members += 1
                self.symbol(member, f"member-{self._members}")

    def _normal(self, key: str, value: Any) -> Any:
        if isinstance(value, dict) and value.get("assignmentEpochs"):
            pairs = sorted(zip(value["partitions"], value["assignmentEpochs"], strict=True))
            value = {**value, "partitions": [p[0] for p in pairs], "assignmentEpochs": [p[1] for p in pairs]}
        made = super()._normal(key, value)
        if isinstance(made, list) and key == "partitions" and all(isinstance(item, int) for item in made):
            return sorted(made)
        if isinstance(made, list) and key in UNORDERED and all(isinstance(item, dict) for item in made):
            fields = UNORDERED[key]
            return sorted(made, key=lambda item: [str(item.get(field)) for field in fields])
        if isinstance(made, list) and key == "subscribedTopicNames" and not self._in_records:
            return sorted(made)
        return made

    def _normal_text(self, key: str, value: str) -> Any:
        if key in ("assignment", "memberAssignment") and value:
            return classic_assignment(value)
        return super()._normal_text(key, value)

    def _normal_number(self, key: str, value: int) -> int | str:
        if key in TIMES and value > 1_700_000_000_000:
            return "<now>"
        if key == "metadataHash" and value:
            return self._hashes.setdefault(value, f"<hash {len(self._hashes) + 1}>")
        return super()._normal_number(key, value)

    # ---- records

    def batches(self, stored: Iterable[list[Record]]) -> list[dict[str, Any]]:
        """What was stored for the groups that this session named, normalised; `stored` are the records by batch."""
        made = []
        self._in_records = True
        for records in stored:
            typed = [record for record in map(typed_record, records) if group_of(record) in self.groups]
            if typed:
                normal: list[dict[str, Any]] = [self._normal("", record) for record in typed]
                made.append({"records": by_member(normal)})
        self._in_records = False
        return made


def classic_assignment(text: str) -> Any:
    """What a classic consumer is given, in words and with its topics in order; what is none stays base64."""
    data = base64.b64decode(text)
    version = int.from_bytes(data[:2], "big", signed=True)
    if version not in schema_json.schemas()["ConsumerProtocolAssignment"].versions:
        return text
    try:
        value: dict[str, Any] = KcoordCodec().decode("ConsumerProtocolAssignment", version, data[2:])
    except (ValueError, DecodeError):
        return text
    value["assignedPartitions"].sort(key=lambda item: str(item["topic"]))
    return {"version": version, **value}


def typed_record(record: Record) -> dict[str, Any]:
    """A record of `__consumer_offsets` in the JSON form of Kafka's converters."""
    assert record.key is not None
    key, value = decode_record(record.key, record.value)
    if isinstance(key, UnknownRecord):
        return {"type": f"unknown {key.record_type}", "key": {}, "value": None}
    key_name = type(key).__name__
    typed: dict[str, Any] = {"type": key_name.removesuffix("Key"), "key": schema_json.render(key_name, 0, key)}
    if record.value is None or value is None:
        return {**typed, "value": None}
    version = int.from_bytes(record.value[:2], "big", signed=True)
    name = type(value).__name__
    rendered = schema_json.render(name, version, value)
    if rendered.get("version"):
        rendered["version"] = "<metadata offset>"
    return {**typed, "version": version, "value": rendered}


def group_of(record: dict[str, Any]) -> str:
    group: str = record["key"].get("groupId", record["key"].get("group", ""))
    return group


def by_member(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of one kind, and of values or tombstones alone, in the order of their members; removed members, too."""
    if len(records) > len(REMOVAL) and removed(records[: len(REMOVAL)]):
        count = len(REMOVAL)
        while removed(records[count : count + len(REMOVAL)]):
            count += len(REMOVAL)
        members = [records[at : at + len(REMOVAL)] for at in range(0, count, len(REMOVAL))]
        members.sort(key=lambda of_member: place_of(of_member[0]))
        return [record for of_member in members for record in of_member] + by_member(records[count:])
    runs: list[list[dict[str, Any]]] = []
    for record in records:
        if runs and kind_of(runs[-1][0]) == kind_of(record):
            runs[-1].append(record)
        else:
            runs.append([record])
    return [record for run in runs for record in sorted(run, key=place_of)]


def removed(records: list[dict[str, Any]]) -> bool:
    """Whether these are the tombstones of one member that goes."""
    is_one = len({record["key"].get("memberId") for record in records}) == 1
    return is_one and tuple(record["type"] for record in records if record["value"] is None) == REMOVAL


def kind_of(record: dict[str, Any]) -> tuple[str, bool]:
    return record["type"], record["value"] is None


def place_of(record: dict[str, Any]) -> tuple[str, ...]:
    key = record["key"]
    return tuple(str(key.get(field, "")) for field in ("memberId", "regularExpression", "topic", "partition"))


def read_log(directory: Path) -> list[list[Record]]:
    """The records of a partition's directory by batch."""
    found = []
    for item in read_batches(str(directory)) if directory.exists() else ():
        if isinstance(item, DamagedBytes):
            raise ValueError(f"cannot read {directory}: {item.reason}")
        if not item.header.is_control:
            found.append(item.records(DECOMPRESSED_BYTES_MAX))
    return found
