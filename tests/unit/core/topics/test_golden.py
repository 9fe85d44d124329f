"""The conversations about topics and configurations recorded from a real broker, held with our handlers.

What we answer otherwise is named in `DIFFERENCES`, with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from tests.harness import schema_json
from tests.unit.core.admin.admin_rig import HOST, PORT, AdminRig

BROKER = Path(__file__).resolve().parents[3] / "golden" / "broker"
SCRIPTS = [
    "alter_configs",
    "cluster",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_configs",
    "describe_topic_partitions",
    "find_coordinator",
    "idempotent_producer",
    "list_config_resources",
    "metadata",
]
NO_ID = schema_json.uuid_text(bytes(16))
KEYS = {api.name: key for key, api in apis.APIS.items()}

# (script, step): why our answer is another one.
DIFFERENCES: dict[tuple[str, str], str] = {
    ("describe_configs", "a group"): "share and streams groups are not here, nor are their configurations",
    ("describe_configs", "client metrics"): "there are no client metrics subscriptions",
    (
        "describe_configs",
        "keys of this broker",
    ): "the rig has no settings of its own, the broker had a node id",
    (
        "find_coordinator",
        "key type 2, key 'g:AAAAAAAAAAAAAAAAAAAAZQ:0'",
    ): "no share groups, so no coordinator of one",
    ("list_config_resources", "list resources"): "internal topics are there from the start",
    ("list_config_resources", "list types [2]"): "internal topics are there from the start",
    ("list_config_resources", "list types [2, 4]"): "internal topics are there from the start",
    ("metadata", "neither id nor name"): "a broker's own failure there, a bad request here",
    ("metadata", "auto creation"): "created and shown in one answer",
    ("metadata", "auto creation of bad names"): "created and shown in one answer",
    ("metadata", "a name that collides"): "an error at once instead of never coming into being",
}


def is_timed_out(step: dict[str, Any]) -> bool:
    """A broker does nothing in no time; we are done at once."""
    return step["api"] in ("CreateTopics", "DeleteTopics", "CreatePartitions") and (
        step["request"].get("timeoutMs", 60000) <= 0
    )


def normal(value: Any, symbols: dict[Any, str]) -> Any:
    if isinstance(value, dict):
        return {key: normal_field(key, item, symbols) for key, item in value.items()}
    if isinstance(value, list):
        items = [normal(item, symbols) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return symbols.get(value, value) if isinstance(value, str) else value


def normal_field(key: str, value: Any, symbols: dict[Any, str]) -> Any:
    # Texts are for people: whether there is one has to agree, not its words.
    if key in ("errorMessage", "documentation"):
        return "a text" if value else value
    if key == "port":
        return "<port>" if value == PORT else value
    if key == "topicId":
        return value if value == NO_ID else "<a topic id>"
    if key == "producerId" and isinstance(value, int) and value >= 0:
        return "<producer id>"
    if key in ("configs", "synonyms") and isinstance(value, list):
        # A broker sets min.insync.replicas on itself when it is formatted (KIP-966).
        value = [item for item in value if item.get("name") != "min.insync.replicas"]
    return normal(value, symbols)


class Conversation:
    def __init__(self, script: str) -> None:
        self.script = script
        self.rig = AdminRig()
        self.seen: set[tuple[str, str]] = set()
        self.known: dict[str, str] = {}
        if script == "delete_topics":
            # An earlier script had left this one on the broker.
            self.rig.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("x" * 249, 1, 1)]))

    def symbols(self) -> dict[str, str]:
        """What the recorded names of things stand for by now, those that are gone included."""
        known = self.known
        known["<host>"] = HOST
        for topic in self.rig.topics.topics.values():
            known[f"<id of {topic.name}>"] = schema_json.uuid_text(topic.topic_id)
        known["<cluster id>"] = self.rig.config.cluster_id
        return dict(known)

    def run_step(self, step: dict[str, Any]) -> None:
        key = KEYS.get(step.get("api", ""))
        if key is None or key not in self.rig.handlers or is_timed_out(step):
            return
        before = self.symbols()
        request = json.loads(json.dumps(step["request"]))
        for symbol, text in before.items():
            request = json.loads(json.dumps(request).replace(symbol, text))
        request = json.loads(json.dumps(request).replace('"<producer id>"', "7"))
        body = schema_json.build(f"{step['api']}Request", step["version"], request)
        response = self.rig.ask(key, step["version"], body)
        actual = schema_json.render(f"{step['api']}Response", step["version"], response)
        names = {text: symbol for symbol, text in {**before, **self.symbols()}.items()}
        ours = normal(actual, names)
        theirs = normal(step["response"], {})
        if (self.script, step["step"]) in DIFFERENCES:
            if ours != theirs:
                self.seen.add((self.script, step["step"]))
        else:
            assert ours == theirs, step["step"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_answers_are_those_of_a_real_broker(script: str) -> None:
    conversation = Conversation(script)
    for step in json.loads((BROKER / f"{script}.json").read_text())["steps"]:
        conversation.run_step(step)
    assert conversation.seen == {key for key in DIFFERENCES if key[0] == script}
