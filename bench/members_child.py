"""Members of one consumer group, for `bench.members`: they join all at once and beat until all agree.

    members_child.py HOST PORT MEMBERS WARM_UP_GROUPS WARM_UP_MEMBERS

Prints one line of JSON. The members share CONNECTIONS connections. Each sends its next heartbeat as soon as it receives
the response to the last one, as clients do while they have something to report: assigned or revoked partitions. The
time is measured from the first join until all members are in the same epoch, every partition has one owner, and the
members' numbers of partitions differ by at most one. Without the last condition a group would count as ready while the
first member has all partitions and the others wait for the next assignment.

Three steps come before that and are not measured. The child creates the topic. One member of another group waits until
it is assigned all partitions: a broker may take seconds to create them, and its coordinator learns of them last. Then
groups of WARM_UP_MEMBERS join on the same topic in the same way, and leave.
"""

from __future__ import annotations

import json
import sys
import time

from bench.workload import Client, check, create_topic, decode, request_frame
from kcoord.protocol import apis, consumer_group_heartbeat, errors
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

CONNECTIONS = 16
GROUP = "members"
TOPIC = "members"
# The limit of each wait. A broker that computes an assignment for each of 5,000 joins takes long on a busy machine.
DEADLINE_S = 300.0
REBALANCE_TIMEOUT_MS = 60_000
# The pause before the next request for a coordinator or a topic that does not exist yet.
WAIT_S = 0.05
LEAVE = -1
# The errors of a broker that creates or loads its offsets topic, or does not know a new topic yet.
NOT_YET = (
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.LEADER_NOT_AVAILABLE,
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
)


class Member:
    def __init__(self, group_id: str, number: int, topic: str = TOPIC) -> None:
        self.group_id = group_id
        self.topic = topic
        self.member_id = f"member-{number:05}"
        self.epoch = 0
        self.owned: list[int] = []
        self.reported: list[int] | None = None

    def request(self, topic_id: bytes) -> bytes:
        return request_frame(apis.CONSUMER_GROUP_HEARTBEAT, 1, self.body(topic_id))

    def body(self, topic_id: bytes) -> ConsumerGroupHeartbeatRequest:
        body = ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, self.epoch)
        if self.epoch == 0:
            body.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            body.subscribed_topic_names = [self.topic]
            body.topic_partitions = []
        elif self.reported != self.owned:
            body.topic_partitions = [OwnedTopicPartitions(topic_id, self.owned)] if self.owned else []
            self.reported = self.owned
        return body

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.error_code:
            raise RuntimeError(f"{self.member_id}: error {answer.error_code}, {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = sorted(p for topic in answer.assignment.topic_partitions for p in topic.partitions)
            self.reported = None

    def leave(self, client: Client) -> None:
        body = ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, LEAVE)
        answer = client.call(apis.CONSUMER_GROUP_HEARTBEAT, 1, body, ConsumerGroupHeartbeatResponse)
        check(answer.error_code, "leave")


def wait(began: float, what: str) -> None:
    """Pause. Raises RuntimeError if DEADLINE_S has passed."""
    if time.perf_counter() - began > DEADLINE_S:
        raise RuntimeError(f"no {what} after {DEADLINE_S:.0f} s")
    time.sleep(WAIT_S)


def find_coordinator(client: Client, group_id: str) -> None:
    """Return when the group has a coordinator: a broker creates its offsets topic at the first request."""
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
    began = time.perf_counter()
    while True:
        found = client.call(apis.FIND_COORDINATOR, 4, asked, FindCoordinatorResponse).coordinators[0]
        if found.error_code not in NOT_YET:
            check(found.error_code, "FindCoordinator")
            return
        wait(began, "coordinator")


def make_topic(client: Client, name: str, partitions: int) -> bytes:
    """Create a topic. Returns its id when each partition has a leader and the coordinator knows all of them."""
    create_topic(client, name, partitions)
    asked = MetadataRequest([MetadataRequestTopic(b"\0" * 16, name)], allow_auto_topic_creation=False)
    began = time.perf_counter()
    while True:
        topic = client.call(apis.METADATA, 12, asked, MetadataResponse).topics[0]
        if topic.error_code not in NOT_YET:
            check(topic.error_code, "Metadata")
            if sum(partition.leader_id >= 0 for partition in topic.partitions) == partitions:
                wait_for_assignment(client, name, topic.topic_id, partitions)
                return topic.topic_id
        wait(began, "leaders")


def wait_for_assignment(client: Client, topic: str, topic_id: bytes, partitions: int) -> None:
    """Return when the coordinator assigns all partitions of a topic to the one member of a group."""
    group_id = f"first-{topic}"
    find_coordinator(client, group_id)
    member = Member(group_id, 0, topic)
    began = time.perf_counter()
    while len(member.owned) < partitions:
        answer = decode(apis.CONSUMER_GROUP_HEARTBEAT, 1, client.exchange(member.request(topic_id)))
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if answer.error_code not in NOT_YET:
            member.take(answer)
        if len(member.owned) < partitions:
            wait(began, "assignment of all partitions")
    member.leave(client)


def join(clients: list[Client], group_id: str, topic_id: bytes, count: int, partitions: int) -> dict[str, float]:
    """Let `count` members join at once. Returns the figures. The members then leave, unless the group is GROUP."""
    find_coordinator(clients[0], group_id)
    members = [Member(group_id, number) for number in range(count)]
    shares = [members[number :: len(clients)] for number in range(len(clients))]
    frames = [b"".join(member.request(topic_id) for member in share) for share in shares]
    rounds = 0
    began = time.perf_counter()
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
        rounds += 1
        last = max(member.epoch for member in members)
        if min(member.epoch for member in members) == last:
            owned = sorted(partition for member in members for partition in member.owned)
            shares_held = [len(member.owned) for member in members]
            if owned == list(range(partitions)) and max(shares_held) - min(shares_held) <= 1:
                break
        if time.perf_counter() - began > DEADLINE_S:
            raise RuntimeError(f"no agreement after {DEADLINE_S:.0f} s and {rounds} rounds")
        frames = [b"".join(member.request(topic_id) for member in share) for share in shares]
    seconds = time.perf_counter() - began
    if group_id != GROUP:
        for member in members:
            member.leave(clients[0])
    return {"seconds": seconds, "rounds": rounds, "heartbeats": rounds * count, "epoch": last}


def main() -> None:
    host, port, count, warm_up_groups, warm_up_members = sys.argv[1], *(int(text) for text in sys.argv[2:])
    clients = [Client(host, port) for _ in range(CONNECTIONS)]
    topic_id = make_topic(clients[0], TOPIC, count)
    warm = [
        join(clients, f"warm-up-{number}", topic_id, warm_up_members, count)["seconds"]
        for number in range(warm_up_groups)
    ]
    figures = join(clients, GROUP, topic_id, count, count)
    compiled = not consumer_group_heartbeat.__file__.endswith(".py")
    print(json.dumps({**figures, "warm_up_seconds": warm, "compiled": compiled}))


if __name__ == "__main__":
    main()
