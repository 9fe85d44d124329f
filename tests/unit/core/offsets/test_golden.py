"""The conversations about offsets recorded from a real broker, held with a whole core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.choices import EMPTY_GROUP_ALLOW
from kcoord.protocol import apis
from tests.harness import schema_json
from tests.scenarios.actor import Actor
from tests.scenarios.runner import Scenario
from tests.unit.core.classic.test_golden import learn, sorted_lists, with_symbols

BROKER = Path(__file__).resolve().parents[3] / "golden" / "broker"
KEYS = {api.name: api.key for api in apis.APIS.values()}
SCRIPTS = ["offset_commit", "offset_fetch", "offset_delete", "empty_group_id"]


class Conversation:
    def __init__(self) -> None:
        self.scenario = Scenario()
        # What released brokers do with the empty group id.
        self.scenario.config.empty_group_id_commit = EMPTY_GROUP_ALLOW
        self.actor = Actor("script", 1)
        self.symbols: dict[str, str] = {}

    def run_step(self, step: dict[str, Any]) -> None:
        api, version = step["api"], step["version"]
        body = schema_json.build(f"{api}Request", version, with_symbols(step["request"], self.symbols, True))
        request_id = self.scenario.send(self.actor, KEYS[api], version, body, "script")
        self.scenario.advance(0)
        assert not [line for line in self.scenario.lines if line.startswith("DIGEST")]
        response = self.scenario.replies[request_id]
        actual = schema_json.render(f"{api}Response", version, response)
        learn(step["response"], actual, self.symbols)
        if not api.startswith("Offset"):
            return
        expected = step["response"]
        actual = with_symbols(actual, self.symbols, False)
        if api == "OffsetFetch":
            # All offsets of a group come in the order of a hash map.
            actual, expected = sorted_lists(actual), sorted_lists(expected)
        assert actual == expected, step["step"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_answers_are_those_of_a_real_broker(script: str) -> None:
    conversation = Conversation()
    for step in json.loads((BROKER / f"{script}.json").read_text())["steps"]:
        conversation.run_step(step)
