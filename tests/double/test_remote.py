"""The controls over HTTP: what a test in another language does with a server that it has started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kcoord.protocol import apis
from kcoord.testing.remote.openapi import describe
from kcoord.testing.remote.operations import METHODS, OPERATIONS
from tests.e2e.process import clean_environment, kcoord_command

WAIT_S = 30.0


class Remote:
    """A process with controls, as a launcher in any language would use it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            kcoord_command("serve", "--profile", "test", "--control", "127.0.0.1:0", *arguments),
            stdout=subprocess.PIPE, text=True, env=clean_environment(),
        )  # fmt: skip
        assert self.process.stdout is not None
        _, _, self.url, self.token = self.process.stdout.readline().split()
        self.bootstrap = self.process.stdout.readline().split()[2]

    def call(self, operation: str, **body: Any) -> Any:
        status, document = self.post(f"/v1/{operation}", json.dumps(body).encode(), self.token)
        assert status == 200, document
        return document["result"]

    def error(self, operation: str, **body: Any) -> tuple[int, str]:
        status, document = self.post(f"/v1/{operation}", json.dumps(body).encode(), self.token)
        return status, document.get("error", "")

    def post(self, path: str, data: bytes | None, token: str) -> tuple[int, Any]:
        request = urllib.request.Request(self.url + path, data, {"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT_S)


@pytest.fixture(scope="module")
def shared() -> Iterator[Remote]:
    remote = Remote("--set", "control.clock=virtual")
    yield remote
    assert remote.stop() == 0


@pytest.fixture
def remote(shared: Remote) -> Remote:
    shared.call("reset")
    return shared


def produce(remote: Remote) -> None:
    producer = Producer({"bootstrap.servers": remote.bootstrap})
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0


def test_a_rule(remote: Remote) -> None:
    rule = remote.call("fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders", times=2)
    produce(remote)
    assert remote.call("wait_rule", id=rule["id"], hits=2)["hits"] == 2
    requests = remote.call("requests", api="Produce")
    assert [one["errors"] for one in requests] == [["NOT_LEADER_OR_FOLLOWER"], ["NOT_LEADER_OR_FOLLOWER"], []]
    assert requests[0]["rule"] == "fail NOT_LEADER_OR_FOLLOWER"
    assert requests[0]["request"]["topic_data"]
    remote.call("remove_rule", id=rule["id"])
    assert remote.call("faults") == []


def test_records_and_offsets(remote: Remote) -> None:
    assert remote.call("produce", topic="orders", value="1") == [{"partition": 0, "offset": 0}]
    given = [
        {"value": {"item": "book"}, "headers": {"source": "test"}},
        {"value": {"base64": "AAEC"}, "key": "other"},
        None,
    ]
    written = remote.call("produce", topic="orders", value=given, key="customer-7", timestamp_ms=7)
    assert [one["offset"] for one in written] == [1, 2, 3]
    found = [(one["key"], one["value"]) for one in remote.call("records", topic="orders", start=1)]
    key = {"base64": "Y3VzdG9tZXItNw=="}
    assert found == [
        (key, {"base64": "eyJpdGVtIjoiYm9vayJ9"}),
        ({"base64": "b3RoZXI="}, {"base64": "AAEC"}),
        (key, None),
    ]
    assert remote.error("produce", topic="orders", value={"vlaue": 1})[0] == 400
    assert "[0]: unknown field 'vlaue'" in remote.error("produce", topic="orders", value={"vlaue": 1})[1]
    offsets = [{"topic": "orders", "partition": 0, "offset": 2}]
    remote.call("commit", group="billing", offsets=offsets)
    assert remote.call("committed", group="billing") == offsets
    assert remote.error("commit", group="billing", offsets=[1])[0] == 400


def test_an_answer_of_one_s_own(remote: Remote) -> None:
    remote.call("create_topic", name="orders")
    remote.call("answer", api="Metadata", change={"controller_id": -1})
    rule = remote.call("answer", api="Metadata", change={"brokers.port": "one"})
    Producer({"bootstrap.servers": remote.bootstrap}).list_topics(timeout=WAIT_S)
    Producer({"bootstrap.servers": remote.bootstrap}).list_topics(timeout=WAIT_S)
    assert remote.call("requests", api="Metadata")[0]["answer"]["controller_id"] == -1
    assert "; failed: " in remote.call("rule", id=rule["id"])["rule"]
    assert remote.error("answer", api="Metadata", change={"nothing": 1})[0] == 400


def test_a_phantom_member(remote: Remote) -> None:
    remote.call("create_topic", name="orders", partitions=2)
    phantom = remote.call("phantom", group="billing", topics=["orders"], protocol="consumer")
    assert remote.call("phantom_wait_assigned", id=phantom["id"], partitions=2)["assignment"] == [
        {"topic": "orders", "partition": 0},
        {"topic": "orders", "partition": 1},
    ]
    remote.call("wait_stable", group="billing", members=1)
    assert remote.call("phantom_go_silent", id=phantom["id"])["is_silent"]
    remote.call("expire_member", group="billing", client_id=phantom["client_id"])
    remote.call("wait_empty", group="billing")
    remote.call("phantom_resume", id=phantom["id"])
    remote.call("wait_stable", group="billing", members=1)
    assert remote.call("phantom_leave", id=phantom["id"])["is_over"]
    assert remote.error("phantom_state", id=0) == (400, "there is no phantom 0")
    status, text = remote.error("create_topic", name="orders")
    assert status == 409 and "TOPIC_ALREADY_EXISTS" in text


def test_waits_and_state(remote: Remote) -> None:
    produce(remote)
    consumer = Consumer({"bootstrap.servers": remote.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = None
    while message is None:
        message = consumer.poll(1)
    remote.call("wait_stable", group="billing", members=1)
    consumer.commit(asynchronous=False)
    remote.call("wait_committed", group="billing", topic="orders", partition=0, offset=1)
    assert remote.call("committed", group="billing") == [{"topic": "orders", "partition": 0, "offset": 1}]
    assert remote.call("lag", group="billing") == 0
    assert remote.call("state", group="billing") == "Stable"
    consumer.close()
    remote.call("wait_empty", group="billing")
    remote.call("advance", seconds=8 * 24 * 3600)
    assert remote.call("committed", group="billing") == []


def test_a_state_that_lasts(remote: Remote) -> None:
    state = remote.call("coordinator_loading", group="billing")
    assert len(remote.call("faults")) > 5
    remote.call("end", id=state["id"])
    assert remote.call("faults") == []


def test_a_failed_wait_says_what_was_seen(remote: Remote) -> None:
    status, text = remote.error("wait_stable", group="billing", timeout=0.1)
    assert status == 408
    assert "waited 0.1 s for group 'billing' to be Stable" in text and "state: Dead" in text


@pytest.mark.parametrize(
    ("operation", "body", "message"),
    [
        ("fail", {"api": "Produce"}, "fail needs error"),
        ("fail", {"api": "Produce", "error": "NO"}, "there is no error 'NO'"),
        ("fail", {"api": "Produced", "error": "NOT_COORDINATOR"}, "there is no API 'Produced'"),
        ("fail", {"error": "NOT_COORDINATOR", "grup": "billing"}, "fail has no parameter 'grup'"),
        ("fail", {"error": 3}, "error is of type string, not 3"),
        ("delay", {"seconds": True}, "seconds is no boolean"),
        ("wait_stable", {"group": "billing", "timeout": 1e9}, "timeout is between 0 and 600 seconds"),
        ("rule", {"id": 99}, "there is no rule 99"),
        ("end", {}, "end needs the id that it is about"),
        ("expire_member", {"group": "billing"}, "0 members of the group 'billing' match"),
        ("offer", {"kafka_release": "1.0"}, "kafka_release is one of"),
        ("end_of_world", {}, "there is no operation 'end_of_world'"),
    ],
)
def test_mistakes(remote: Remote, operation: str, body: dict[str, Any], message: str) -> None:
    status, text = remote.error(operation, **body)
    assert status == 400
    assert message in text


def test_without_the_token_nothing_works(remote: Remote) -> None:
    for path, data in (("/v1/faults", b"{}"), ("/openapi.json", None)):
        status, document = remote.post(path, data, "guess")
        assert status == 401 and "Authorization" in document["error"]


def test_what_is_no_request(remote: Remote) -> None:
    assert remote.post("/v1/faults", b"[]", remote.token)[0] == 400
    assert remote.post("/v1/faults", b"{", remote.token)[0] == 400
    assert remote.post("/v2/faults", b"{}", remote.token)[0] == 404
    assert remote.post("/", None, remote.token)[0] == 404


def test_the_description_is_served_and_complete(remote: Remote) -> None:
    status, document = remote.post("/openapi.json", None, remote.token)
    assert status == 200
    assert document == json.loads(json.dumps(describe()))
    assert document["openapi"] == "3.1.0"
    assert {f"/v1/{name}" for name in METHODS} <= document["paths"].keys()
    for path, item in document["paths"].items():
        schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert item["post"]["summary"], path
        assert set(schema.get("required", [])) <= schema["properties"].keys(), path
    assert apis.APIS[apis.FETCH].name in OPERATIONS["offer"].parameters


def test_the_state_of_the_server(remote: Remote) -> None:
    remote.call("create_topic", name="orders", partitions=2, configs={"retention.ms": -1})
    remote.call("seed", source={"topics": {"events": {"records": ["one", {"key": "k", "value": "two"}]}}})
    assert remote.call("topics") == {"events": 1, "orders": 2}
    records = remote.call("records", topic="events")
    assert [one["offset"] for one in records] == [0, 1]
    assert records[1]["key"] == {"base64": "aw=="}
    remote.call("delete_topic", name="orders")
    assert remote.call("topics") == {"events": 1}
    status, text = remote.error("seed", source={"topic": {}})
    assert status == 400 and "topic" in text


def test_states_to_come_back_to_and_kills() -> None:
    remote = Remote()
    produce(remote)
    snapshot = remote.call("snapshot")
    produce(remote)
    assert len(remote.call("records", topic="orders")) == 2
    remote.call("restore", id=snapshot["id"])
    assert len(remote.call("records", topic="orders")) == 1
    remote.call("kill")
    assert remote.error("state", group="billing")[0] == 409
    remote.call("start")
    assert len(remote.call("records", topic="orders")) == 1
    produce(remote)
    remote.call("restart")
    assert len(remote.call("records", topic="orders")) == 2
    assert remote.error("restore", id=99) == (400, "there is no snapshot 99")
    assert remote.stop() == 0


def test_a_cluster() -> None:
    """The process tells the addresses of its brokers, the first one first."""
    remote = Remote("--set", "control.brokers=3")
    assert remote.call("brokers") == [1, 2, 3]
    producer = Producer({"bootstrap.servers": remote.bootstrap})
    assert sorted(producer.list_topics(timeout=WAIT_S).brokers) == [1, 2, 3]
    stopped = remote.call("coordinator", group="billing")
    remote.call("stop_broker", node_id=stopped)
    assert remote.call("coordinator", group="billing") != stopped
    remote.call("move_coordinator", group="billing", node_id=next(iter(remote.call("brokers"))))
    assert remote.error("stop_broker", node_id=9) == (400, "there is no broker 9; there are 1, 2, 3")
    assert remote.stop() == 0
    done = subprocess.run(
        kcoord_command("serve", "--profile", "test", "--control", "127.0.0.1:0", "--listen", "127.0.0.1:1",
                       "--set", "control.brokers=3"),
        capture_output=True, text=True, env=clean_environment(), timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "3 brokers need as many listeners, there are 1" in done.stderr


def test_a_token_of_one_s_own_and_an_address_in_use(remote: Remote) -> None:
    mine = Remote("--set", "control.token=secret")
    assert mine.token == "secret"
    assert mine.call("faults") == []
    address = mine.url.removeprefix("http://")
    done = subprocess.run(
        kcoord_command("serve", "--profile", "test", "--control", address),
        capture_output=True, text=True, env=clean_environment(), timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "control: " in done.stderr
    assert mine.stop() == 0


@pytest.mark.parametrize("control", [[], ["--control", "127.0.0.1:0"]], ids=["plain", "control"])
def test_the_server_ends_with_its_parent(control: list[str]) -> None:
    command = kcoord_command("serve", "--profile", "test", "--exit-with-parent", *control)
    # The parent starts the server, tells its process id once it is ready, and ends.
    code = (
        "import subprocess, sys; "
        f"child = subprocess.Popen({command!r}, stdout=subprocess.PIPE, text=True); "
        "line = child.stdout.readline()\n"
        "while not line.startswith('kcoord ready'): line = child.stdout.readline()\n"
        "print(child.pid, line.split()[2], flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=WAIT_S,
        check=True,
    )
    _, address = done.stdout.split()
    end = time.monotonic() + WAIT_S
    health = kcoord_command("health", "--bootstrap", address)
    while subprocess.run(health, capture_output=True, env=clean_environment(), check=False).returncode == 0:
        assert time.monotonic() < end
        time.sleep(0.1)
