"""Client-side assignors over a socket: the example of the documentation as it stands there, kill -9 included."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kcoord.protocol.consumer_group_heartbeat import (
    ClientAssignor,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess, clean_environment

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "client-assignors.md"
# The lines that the tests read are those of debugging.
AT_ONCE = ("--set", "group.consumer.assignment.interval.ms=0", "--set", "logging.level=debug")


def example() -> str:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


def create_topic(bootstrap: str) -> None:
    with Probe(bootstrap) as probe:
        topic = CreatableTopic("t", 4, 1)
        answer = probe.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest([topic]), CreateTopicsResponse)
        assert answer.topics[0].error_code == 0


def test_the_example_works_as_described(tmp_path: Path) -> None:
    script = tmp_path / "in_turn.py"
    script.write_text(example())
    with ServerProcess(None, *AT_ONCE) as server:
        create_topic(server.bootstrap)
        ran = subprocess.run(
            [sys.executable, str(script), server.bootstrap, "t"],
            capture_output=True, text=True, timeout=110, cwd=Path.cwd(), env=pythonpath(), check=False,
        )  # fmt: skip
        assert server.stop() == 0
        lines = server.lines("consumer_group_assignment")
    assert ran.stdout.splitlines() == ["a [0, 2] 2", "b [1, 3] 2"], ran.stderr
    assert {line["assignor"] for line in lines} == {"in-turn"}


def test_the_example_of_the_client_works_as_described(tmp_path: Path) -> None:
    """The one of docs/client.md."""
    document = DOCUMENT.with_name("client.md").read_text()
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "members.py" in text]
    script = tmp_path / "members.py"
    script.write_text(example)
    with ServerProcess(None, *AT_ONCE) as server:
        with Probe(server.bootstrap) as probe:
            topic = CreateTopicsRequest([CreatableTopic("t", 8, 1)])
            assert probe.ask(apis.CREATE_TOPICS, 7, topic, CreateTopicsResponse).topics[0].error_code == 0
        ran = subprocess.run(
            [sys.executable, str(script), server.bootstrap, "t"],
            capture_output=True, text=True, timeout=110, cwd=Path.cwd(), env=pythonpath(), check=False,
        )  # fmt: skip
        assert server.stop() == 0
        lines = server.lines("consumer_group_assignment")
    assert ran.stdout.splitlines() == ["2 6"], ran.stderr
    assert {line["assignor"] for line in lines} == {"by-weight"}


def pythonpath() -> dict[str, str]:
    """A script in another folder finds the package where this process found it."""
    environment = clean_environment()
    environment["PYTHONPATH"] = str(Path(apis.__file__).resolve().parents[2])
    return environment


@pytest.fixture
def member_class() -> Any:
    names: dict[str, Any] = {"__name__": "in_turn"}
    exec(compile(example(), str(DOCUMENT), "exec"), names)
    return names["Member"]


def test_a_group_continues_after_kill_9(tmp_path: Path, member_class: Any) -> None:
    with ServerProcess(tmp_path, *AT_ONCE) as server:
        create_topic(server.bootstrap)
        with Probe(server.bootstrap) as probe:
            members = [member_class(probe, "g", name, "t") for name in "ab"]
            for _ in range(6):
                for member in members:
                    member.beat()
            listed = probe.ask(apis.API_VERSIONS, 4, ApiVersionsRequest("x", "1"), ApiVersionsResponse)
        assert apis.CONSUMER_GROUP_HEARTBEAT in [one.api_key for one in listed.api_keys]
        assert max(one.api_key for one in listed.api_keys) < 10000
        before = [(member.epoch, member.owned, member.metadata) for member in members]
        assert sorted(p for _, owned, _ in before for ps in owned.values() for p in ps) == [0, 1, 2, 3]
        server.kill()
    with ServerProcess(tmp_path, *AT_ONCE) as server, Probe(server.bootstrap) as probe:
        for member in members:
            member.probe = probe
            answer = member.beat()
            assert answer.assignment is None and not answer.should_compute_assignment
        assert [(member.epoch, member.owned, member.metadata) for member in members] == before
        # The list is known still: what changes in it asks for a new assignment, the same one does not.
        for reason, should in ((0, False), (9, True)):
            request = ConsumerGroupHeartbeatRequest("g", "a", members[0].epoch)
            request.client_assignors = [ClientAssignor("in-turn", 1, 1, reason, 1, b"")]
            response = probe.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, ConsumerGroupHeartbeatResponse)
            assert response.error_code == 0 and response.should_compute_assignment == should
        members[0].compute()
        for member in members:
            member.beat()
            assert member.epoch > before[0][0] and member.metadata == b"2"
        assert server.stop() == 0
        causes = [line["cause"] for line in server.lines("consumer_group_epoch")]
    assert causes == ["client_assignors_changed"]
