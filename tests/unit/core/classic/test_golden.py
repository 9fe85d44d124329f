"""The conversations recorded from a real broker, held with the classic group handlers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoord.protocol import apis
from tests.harness import schema_json
from tests.unit.core.classic.classic_rig import Rig

BROKER = Path(__file__).resolve().parents[3] / "golden" / "broker"

HANDLED = {
    "JoinGroup": apis.JOIN_GROUP,
    "SyncGroup": apis.SYNC_GROUP,
    "Heartbeat": apis.HEARTBEAT,
    "LeaveGroup": apis.LEAVE_GROUP,
    "DescribeGroups": apis.DESCRIBE_GROUPS,
    "ListGroups": apis.LIST_GROUPS,
    "DeleteGroups": apis.DELETE_GROUPS,
}
SCRIPTS = [
    "delete_groups",
    "describe_groups",
    "empty_group_id",
    "join_errors",
    "list_groups",
    "static_members",
    "two_members",
    "unknown_members",
]


def with_symbols(value: Any, symbols: dict[str, str], to_ids: bool) -> Any:
    """Member ids in place of `<member-1>` and the other way round, anywhere in a message."""
    if isinstance(value, dict):
        return {k: with_symbols(v, symbols, to_ids) for k, v in value.items()}
    if isinstance(value, list):
        return [with_symbols(v, symbols, to_ids) for v in value]
    if isinstance(value, str):
        for symbol, member_id in symbols.items():
            value = value.replace(symbol, member_id) if to_ids else value.replace(member_id, symbol)
    return value


def learn(expected: Any, actual: Any, symbols: dict[str, str]) -> None:
    """A symbol that is new in an expected answer stands for what the answer really says there."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            learn(value, actual.get(key), symbols)
    elif isinstance(expected, list) and isinstance(actual, list):
        for one, other in zip(expected, actual, strict=False):
            learn(one, other, symbols)
    elif isinstance(expected, str) and isinstance(actual, str):
        if expected.startswith("<") and expected.endswith(">") and expected not in symbols:
            symbols[expected] = actual


def sorted_lists(value: Any) -> Any:
    """Groups and members come in the order of a hash map; members' order is nobody's promise."""
    if isinstance(value, dict):
        return {k: sorted_lists(v) for k, v in value.items()}
    if isinstance(value, list):
        return sorted((sorted_lists(v) for v in value), key=lambda v: json.dumps(v, sort_keys=True))
    return value


class Conversation:
    def __init__(self) -> None:
        self.rig = Rig()
        self.symbols: dict[str, str] = {}
        self.waiting: list[tuple[int, dict[str, Any]]] = []

    def run_step(self, step: dict[str, Any]) -> None:
        request = with_symbols(step["request"], self.symbols, to_ids=True)
        if step["api"] == "OffsetCommit":
            self.commit(request, step["response"])
            return
        if step["api"] not in HANDLED:
            return
        name = f"{step['api']}Request"
        body = schema_json.build(name, step["version"], request)
        request_id = self.rig.send(HANDLED[step["api"]], step["version"], body, "script")
        self.rig.sleep(0)
        self.waiting.append((request_id, step))
        self.check_answered()

    def commit(self, request: dict[str, Any], response: dict[str, Any]) -> None:
        """Accepted commits make groups and are signs of life; what they store is for the offset store."""
        codes = [part["errorCode"] for topic in response["topics"] for part in topic["partitions"]]
        if not any(codes):
            group = self.rig.store.get_or_create(request["groupId"])
            if request["memberId"]:
                self.rig.store.touch_member(group, request["memberId"], self.rig.now_ms)

    def check_answered(self) -> None:
        for request_id, step in list(self.waiting):
            if not self.rig.is_parked(request_id):
                self.waiting.remove((request_id, step))
                self.check(request_id, step)

    def check(self, request_id: int, step: dict[str, Any]) -> None:
        assert "response" in step, f"{step['step']}: the broker did not answer this"
        response = self.rig.replies[request_id].response
        assert response is not None
        actual = schema_json.render(f"{step['api']}Response", step["version"], response)
        learn(step["response"], actual, self.symbols)
        shown = with_symbols(actual, self.symbols, to_ids=False)
        assert sorted_lists(shown) == sorted_lists(step["response"]), step["step"]


def steps_of(script: str) -> Iterator[dict[str, Any]]:
    yield from json.loads((BROKER / f"{script}.json").read_text())["steps"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_answers_are_those_of_a_real_broker(script: str) -> None:
    conversation = Conversation()
    for step in steps_of(script):
        conversation.run_step(step)
    unanswered = [step["step"] for _, step in conversation.waiting if "response" in step]
    assert unanswered == []
