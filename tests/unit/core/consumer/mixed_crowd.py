"""Clients of both protocols on one group, as far as a coordinator notices them, and who processes what.

`owned` is what a client processes right now. A client of the classic protocol that assigns cooperatively keeps it
while it joins again, an eager one gives all up first; one of the new protocol follows each answer. No two clients may
ever own the same partition: that is what `Crowd.check` looks at after every step.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import cast

from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.embedded_protocol import decode_assignment, decode_subscription
from kcoord.core.groups.members import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message
from tests.scenarios.actor import Actor
from tests.scenarios.embedded import assignment, subscription
from tests.scenarios.runner import Scenario

GROUP = "g"
TOPIC = "t"
SESSION_MS = 45_000
REBALANCE_MS = 300_000
INSTANCES = ["one", "two"]
# After these a client of the classic protocol joins again with what it has.
RETRIABLE = (errors.REBALANCE_IN_PROGRESS, errors.UNKNOWN_SERVER_ERROR, errors.COORDINATOR_NOT_AVAILABLE)


class Client(ABC):
    """What both kinds have in common: a name, an instance id perhaps, and what they process."""

    def __init__(self, crowd: Crowd, name: str, instance: str | None) -> None:
        self.crowd = crowd
        self.name = name
        self.instance = instance
        self.actor = Actor(name, 1)
        self.member_id = ""
        self.owned: set[int] = set()
        self.is_dead = False
        # It left for a while (epoch -2) and may come back under the same id, or never.
        self.is_away = False

    def send(self, api_key: int, body: Message) -> int:
        version = apis.APIS[api_key].max_version
        return self.crowd.scenario.send(self.actor, api_key, version, body, self.name)

    def answer_to(self, request_id: int) -> Message | None:
        return self.crowd.scenario.replies.get(request_id)

    def die(self) -> None:
        self.owned = set()
        self.is_dead = True

    @abstractmethod
    def step(self, is_lost: bool) -> None:
        """One request, or a look whether the last one was answered; a lost answer is not read."""

    @abstractmethod
    def leave(self) -> None:
        """Stops, and says so."""


class NewClient(Client):
    """A member of the new protocol. It always says what it owns."""

    def __init__(self, crowd: Crowd, name: str, instance: str | None) -> None:
        super().__init__(crowd, name, instance)
        self.member_id = name
        self.epoch = JOIN_EPOCH
        # It did not hear the last answer, so it says everything again and is told everything again.
        self.is_unsure = False

    def step(self, is_lost: bool) -> None:
        is_full = self.epoch == JOIN_EPOCH or self.is_unsure
        topic_id = self.crowd.topic_id
        owned = [OwnedTopicPartitions(topic_id, sorted(self.owned))] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            self.member_id,
            self.epoch,
            self.instance,
            None,
            REBALANCE_MS if is_full else -1,
            [TOPIC] if is_full else None,
            None,
            None,
            owned,
        )
        response = self.answer_to(self.send(apis.CONSUMER_GROUP_HEARTBEAT, request))
        self.is_unsure = is_lost
        if is_lost:
            return
        answer = cast(ConsumerGroupHeartbeatResponse, response)
        error = answer.error_code
        if error == errors.UNKNOWN_SERVER_ERROR:
            # What it led to could not be stored.
            self.is_unsure = True
        elif error == errors.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = {p for t in answer.assignment.topic_partitions for p in t.partitions}
        elif error in (errors.UNKNOWN_MEMBER_ID, errors.FENCED_MEMBER_EPOCH):
            self.owned = set()
            self.epoch = JOIN_EPOCH
        else:
            # UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, GROUP_ID_NOT_FOUND: final for a consumer.
            self.crowd.errors[error] = self.crowd.errors.get(error, 0) + 1
            self.die()

    def go_away(self) -> None:
        """A static member stops and says that it will be back."""
        self.owned = set()
        self.is_away = True
        request = ConsumerGroupHeartbeatRequest(GROUP, self.member_id, STATIC_LEAVE_EPOCH, self.instance)
        self.send(apis.CONSUMER_GROUP_HEARTBEAT, request)
        self.epoch = JOIN_EPOCH

    def change_instance(self, instance: str) -> None:
        """It joins again under another instance id, which may be that of one that is away."""
        self.owned = set()
        self.epoch = JOIN_EPOCH
        self.instance = instance

    def leave(self) -> None:
        self.die()
        if self.epoch > JOIN_EPOCH:
            request = ConsumerGroupHeartbeatRequest(GROUP, self.member_id, LEAVE_EPOCH, self.instance)
            self.send(apis.CONSUMER_GROUP_HEARTBEAT, request)


class ClassicClient(Client):
    def __init__(self, crowd: Crowd, name: str, instance: str | None) -> None:
        super().__init__(crowd, name, instance)
        self.generation = -1
        self.protocol: str | None = None
        self.must_join = True
        self.must_sync = False
        self.shares: dict[str, set[int]] = {}
        self.join_id = 0
        self.sync_id = 0

    # ---- steps

    def step(self, is_lost: bool) -> None:
        if self.crowd.scenario.closed & {self.join_id, self.sync_id}:
            self.forget_requests()
        if self.join_id:
            self._joined(is_lost)
        elif self.sync_id:
            self._synced(is_lost)
        elif self.must_join:
            self._join()
            self._joined(is_lost)
        elif self.must_sync:
            self._sync()
            self._synced(is_lost)
        else:
            self._beat(is_lost)

    def forget_requests(self) -> None:
        """The server has restarted: what waits will not be answered."""
        if self.join_id or self.sync_id:
            self.join_id = self.sync_id = 0
            self._rejoin()

    def _rejoin(self) -> None:
        self.must_join = True
        self.must_sync = False

    def _lose(self) -> None:
        """Its generation is over without it."""
        self.owned = set()
        self.generation = -1
        self._rejoin()

    def _fail(self, error: int) -> None:
        if error in RETRIABLE:
            self._rejoin()
        elif error == errors.ILLEGAL_GENERATION:
            self._lose()
        elif error == errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._lose()
        else:
            self.crowd.errors[error] = self.crowd.errors.get(error, 0) + 1
            self.die()

    # ---- requests

    def _join(self) -> None:
        if not self.crowd.is_cooperative:
            self.owned = set()
        owned = "+".join(f"{TOPIC}/{p}" for p in sorted(self.owned))
        version = 2 if self.crowd.is_cooperative else 0
        data = subscription([TOPIC], version, owned, self.generation)
        self.join_id = self.send(
            apis.JOIN_GROUP,
            JoinGroupRequest(
                GROUP,
                SESSION_MS,
                REBALANCE_MS,
                self.member_id,
                self.instance,
                "consumer",
                [JoinGroupRequestProtocol(name, data) for name in self.crowd.protocols],
            ),
        )

    def _joined(self, is_lost: bool) -> None:
        response = self.answer_to(self.join_id)
        if response is None:
            return
        self.join_id = 0
        answer = cast(JoinGroupResponse, response)
        if answer.error_code == errors.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif is_lost:
            # It joins again, with what it knew.
            pass
        elif answer.error_code == errors.NONE:
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.protocol = answer.protocol_name
            self.must_join = False
            self.must_sync = True
            self.shares = {}
            if answer.leader == self.member_id:
                self.shares = self.crowd.assign(answer)
        else:
            self._fail(answer.error_code)

    def _sync(self) -> None:
        shares = [
            SyncGroupRequestAssignment(member_id, assignment("+".join(f"{TOPIC}/{p}" for p in sorted(share)) or "/"))
            for member_id, share in self.shares.items()
        ]
        self.sync_id = self.send(
            apis.SYNC_GROUP,
            SyncGroupRequest(GROUP, self.generation, self.member_id, self.instance, "consumer", self.protocol, shares),
        )

    def _synced(self, is_lost: bool) -> None:
        response = self.answer_to(self.sync_id)
        if response is None:
            return
        self.sync_id = 0
        answer = cast(SyncGroupResponse, response)
        if is_lost:
            self._rejoin()
        elif answer.error_code == errors.NONE:
            self.must_sync = False
            assigned: set[int] = set()
            if answer.assignment:
                for of_topic in decode_assignment(answer.assignment).assigned_partitions:
                    assigned.update(of_topic.partitions)
            gives_up = bool(self.owned - assigned)
            self.owned = assigned
            if gives_up and self.crowd.is_cooperative:
                self._rejoin()
        else:
            self._fail(answer.error_code)

    def _beat(self, is_lost: bool) -> None:
        request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance)
        response = self.answer_to(self.send(apis.HEARTBEAT, request))
        if not is_lost and cast(HeartbeatResponse, response).error_code != errors.NONE:
            self._fail(cast(HeartbeatResponse, response).error_code)

    def leave(self) -> None:
        self.die()
        if self.member_id:
            self.send(
                apis.LEAVE_GROUP,
                LeaveGroupRequest(GROUP, "", [MemberIdentity(self.member_id, self.instance)]),
            )


def check_group(group: ConsumerGroup, topic_id: bytes, partitions: int) -> None:
    """The index of static members says what the members say, and every partition is meant for one member."""
    instances = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
    assert group.static_members == instances
    meant: list[int] = []
    for member_id in group.targets:
        assert member_id in group.members, f"a target for {member_id}, who is not there"
        meant += group.target(member_id).get(topic_id, [])
    assert len(meant) == len(set(meant)), f"meant for two: {sorted(meant)}"
    if group.members and group.epoch == group.assignment_epoch:
        assert sorted(meant) == list(range(partitions)), f"only {sorted(meant)} are meant for somebody"


class Crowd:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_cooperative = self.random.random() < 0.6
        self.protocols = ["cooperative-sticky"] if self.is_cooperative else ["range"]
        self.scenario = Scenario()
        policy = self.random.choice(["bidirectional", "bidirectional", "bidirectional", "upgrade", "downgrade"])
        interval = self.random.choice(["0", "1s"])
        self.scenario.run(
            f"config group_consumer_migration_policy={policy} group_consumer_assignment_interval_ms={interval}"
        )
        self.partitions = self.random.randint(2, 5)
        self.scenario.run(f"topic {TOPIC} partitions={self.partitions}")
        self.topic_id = self.scenario.printer.topic_ids[TOPIC]
        self.clients: list[Client] = []
        self.names = 0
        # Fashion: which kind comes, while the other one goes.
        self.favoured: type[Client] = NewClient
        self.errors: dict[int, int] = {}
        self.kinds: dict[str, int] = {}

    # ---- what happens

    def step(self) -> None:
        r = self.random
        self.scenario.lines = []
        choice = r.random()
        live = self.clients
        if r.random() < 0.02:
            self.favoured = ClassicClient if self.favoured is NewClient else NewClient
        if (choice < 0.07 and len(live) < 5) or not live:
            self.come(None)
        elif choice < 0.1 and len(live) < 5:
            self.come(r.choice(INSTANCES))
        elif choice < 0.2:
            others = [client for client in live if not isinstance(client, self.favoured)]
            r.choice(others if others and r.random() < 0.9 else live).leave()
        elif choice < 0.21:
            # It is gone without a word; its session will end.
            r.choice(live).die()
        elif choice < 0.23:
            self.restart()
        elif choice < 0.26:
            self.away(r.choice(live))
        elif choice < 0.265:
            self.wait_for_the_dead()
        elif choice < 0.29:
            self.scenario.advance(r.choice([100, 1000, 3000]))
        else:
            client = r.choice(live)
            self.scenario.refuses = r.random() < 0.02
            if not client.is_away:
                client.step(r.random() < 0.1)
            self.scenario.advance(r.choice([0, 0, 0, 10, 100]))
        self.scenario.refuses = False
        self.clients = [client for client in self.clients if not client.is_dead]
        self.check()

    def away(self, client: Client) -> None:
        """A member of the new protocol leaves for a while or comes back, or takes another instance id."""
        if not isinstance(client, NewClient):
            return
        if client.is_away:
            client.is_away = False
            client.step(False)
            if self.random.random() < 0.3:
                # It is killed right after it came back.
                client.die()
        elif client.instance is not None and client.epoch > JOIN_EPOCH and self.random.random() < 0.6:
            client.go_away()
        else:
            instance = self.random.choice(INSTANCES)
            for other in self.clients:
                # Two processes with one instance id are a mistake of their operator; one of the two goes.
                if other is not client and other.instance == instance:
                    other.die()
            client.change_instance(instance)

    def wait_for_the_dead(self) -> None:
        """Sessions of those who are gone without a word end, while everybody else says that they are there."""
        for _ in range(SESSION_MS // 5_000 + 2):
            for client in self.clients:
                if not client.is_away:
                    client.step(False)
            self.clients = [client for client in self.clients if not client.is_dead]
            self.scenario.lines = []
            self.scenario.advance(5_000)
            self.check()
        for client in self.clients:
            if client.is_away:
                # Nobody waits for it any more.
                client.die()
        self.clients = [client for client in self.clients if not client.is_dead]
        self.scenario.lines = []

    def come(self, instance: str | None) -> None:
        if instance is not None:
            # The process of this instance is restarted, perhaps with the other protocol.
            for client in self.clients:
                if client.instance == instance:
                    client.die()
        self.names += 1
        name = f"m{self.names}"
        kind = self.favoured if self.random.random() < 0.85 else self.random.choice([NewClient, ClassicClient])
        self.clients.append(kind(self, name, instance))

    def restart(self) -> None:
        self.scenario.run("restart")
        for client in self.clients:
            if isinstance(client, ClassicClient):
                client.forget_requests()

    def assign(self, joined: JoinGroupResponse) -> dict[str, set[int]]:
        """A classic leader's assignment: who says that it has a partition keeps it, the rest goes to who has least."""
        shares: dict[str, set[int]] = {}
        free = set(range(self.partitions))
        for member in joined.members:
            subscribed = decode_subscription(member.metadata)
            mine = {p for t in subscribed.owned_partitions for p in t.partitions} & free
            free -= mine
            shares[member.member_id] = mine
        for partition in sorted(free):
            poorest = min(shares, key=lambda member_id: (len(shares[member_id]), member_id))
            shares[poorest].add(partition)
        return shares

    # ---- what must hold

    def check(self) -> None:
        for line in self.scenario.lines:
            assert not line.startswith(("DIGEST", "TIMERS", "INVARIANT")), line
        owners: dict[int, str] = {}
        for client in self.clients:
            for partition in client.owned:
                assert partition not in owners, f"{partition} is with {owners[partition]} and with {client.name}"
                owners[partition] = client.name
        store = self.scenario.core.groups
        assert not (GROUP in store.groups and GROUP in store.consumer_groups)
        kind = "none"
        if GROUP in store.groups:
            kind = "classic"
        elif GROUP in store.consumer_groups:
            group = store.consumer_groups[GROUP]
            kind = "mixed" if 0 < group.classic_members < len(group.members) else "consumer"
            check_group(group, self.topic_id, self.partitions)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def settle(self) -> None:
        """Nothing happens any more but what clients do by themselves: at the end everything is with somebody."""
        for client in self.clients:
            if client.is_away:
                client.die()
        self.clients = [client for client in self.clients if not client.is_dead]
        for _ in range(150):
            for client in self.clients:
                client.step(False)
                self.check()
            self.clients = [client for client in self.clients if not client.is_dead]
            self.scenario.lines = []
            self.scenario.advance(1000)
            self.check()
        owned = {partition for client in self.clients for partition in client.owned}
        assert not self.clients or owned == set(range(self.partitions)), f"only {sorted(owned)} are with somebody"
