"""Members of one consumer group, for `bench.members`: they join all at once and beat until all agree.

    members_child.py HOST PORT MEMBERS

Prints one line of JSON. The members share CONNECTIONS connections. Each sends its next heartbeat as soon as the one
before is answered, as clients do while they have something to tell: that they own what they were given, or no longer
own what they were asked to give up. The clock runs from the first join to the moment when every member is in the
group's last epoch and every partition has an owner.
"""

from __future__ import annotations

import json
import sys
import time

from bench.workload import Client, create_topic, decode, request_frame
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

CONNECTIONS = 16
GROUP = "members"
TOPIC = "members"
DEADLINE_S = 120.0
REBALANCE_TIMEOUT_MS = 60_000


class Member:
    def __init__(self, number: int) -> None:
        self.member_id = f"member-{number:05}"
        self.epoch = 0
        self.owned: list[int] = []
        self.told: list[int] | None = None

    def request(self, topic_id: bytes) -> bytes:
        body = ConsumerGroupHeartbeatRequest(GROUP, self.member_id, self.epoch)
        if self.epoch == 0:
            body.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            body.subscribed_topic_names = [TOPIC]
            body.topic_partitions = []
        elif self.told != self.owned:
            body.topic_partitions = [OwnedTopicPartitions(topic_id, self.owned)] if self.owned else []
            self.told = self.owned
        return request_frame(apis.CONSUMER_GROUP_HEARTBEAT, 1, body)

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.error_code:
            raise RuntimeError(f"{self.member_id}: error {answer.error_code}, {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = sorted(p for topic in answer.assignment.topic_partitions for p in topic.partitions)
            self.told = None


def main() -> None:
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    clients = [Client(host, port) for _ in range(CONNECTIONS)]
    create_topic(clients[0], TOPIC, count)
    asked = MetadataRequest([MetadataRequestTopic(b"\0" * 16, TOPIC)])
    topic_id = clients[0].call(apis.METADATA, 12, asked, MetadataResponse).topics[0].topic_id
    members = [Member(number) for number in range(count)]
    shares = [members[number::CONNECTIONS] for number in range(CONNECTIONS)]
    frames = [b"".join(member.request(topic_id) for member in share) for share in shares]
    sent = 0
    began = time.perf_counter()
    rounds = 0
    while True:
        for client, data in zip(clients, frames, strict=True):
            client.socket.sendall(data)
        for client, share in zip(clients, shares, strict=True):
            for member in share:
                size = client.read(4)
                frame = size + client.read(int.from_bytes(size, "big"))
                answer = decode(apis.CONSUMER_GROUP_HEARTBEAT, 1, frame)
                assert isinstance(answer, ConsumerGroupHeartbeatResponse)
                member.take(answer)
        sent += count
        rounds += 1
        last = max(member.epoch for member in members)
        if min(member.epoch for member in members) == last:
            owned = sorted(partition for member in members for partition in member.owned)
            if owned == list(range(count)):
                break
        if time.perf_counter() - began > DEADLINE_S:
            raise RuntimeError(f"no agreement after {DEADLINE_S:.0f} s and {rounds} rounds")
        frames = [b"".join(member.request(topic_id) for member in share) for share in shares]
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "rounds": rounds, "heartbeats": sent, "epoch": last}))


if __name__ == "__main__":
    main()
