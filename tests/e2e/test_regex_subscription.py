"""A subscription by regular expression (KIP-848) to a server process: threads of its own match it with the topics."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.errors import INVALID_REGULAR_EXPRESSION
from tests.e2e.process import ServerProcess
from tests.harness.engine import decode_answer, request_frame

DEADLINE_S = 60.0


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.stream = self.socket.makefile("rb")

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def ask(self, api_key: int, version: int, body: Any) -> Any:
        self.socket.sendall(request_frame(api_key, version, body))
        size = int.from_bytes(self.stream.read(4), "big")
        return decode_answer(api_key, version, self.stream.read(size)[4:])

    def join(self, member_id: str, regex: str) -> Any:
        body = ConsumerGroupHeartbeatRequest("g", member_id, 0, None, None, 60_000, None, regex, None, [])
        return self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, body)

    def beat(self, member_id: str, epoch: int) -> Any:
        body = ConsumerGroupHeartbeatRequest("g", member_id, epoch, None, None, -1, None, None, None, None)
        return self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, body)


def test_topics_are_matched_in_a_thread(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        client = Client(server.port)
        topics = [CreatableTopic(name, 2, 1) for name in ("orders-eu", "orders-us", "payments")]
        created = client.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics)).topics
        assert [topic.error_code for topic in created] == [0, 0, 0]

        refused = client.join("m", "orders[")
        assert refused.error_code == INVALID_REGULAR_EXPRESSION
        assert "missing closing ]" in refused.error_message

        # Nothing is matched yet when the first answer leaves.
        answer = client.join("m", "orders-.*")
        assert (answer.error_code, answer.assignment.topic_partitions) == (0, [])
        deadline = time.monotonic() + DEADLINE_S
        while answer.assignment is None or not answer.assignment.topic_partitions:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            answer = client.beat("m", answer.member_epoch)
            assert answer.error_code == 0, answer.error_message
        assigned = {part.topic_id: part.partitions for part in answer.assignment.topic_partitions}
        assert assigned == {topic.topic_id: [0, 1] for topic in created[:2]}
        client.close()
        assert server.stop() == 0
