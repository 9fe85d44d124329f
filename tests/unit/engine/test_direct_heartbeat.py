"""The direct path of heartbeats against the generic one: the same answers, byte for byte, the same state and timers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from tests.harness.engine import Client, decode_answer, finish_turn, read_answers, request_frame, take_output
from tests.harness.engine_twins import TOPICS, Twin

STEPS = 100
SECOND = "second-0123456789abcdef"


class BeatTwin(Twin):
    """A twin whose members send many heartbeats, between joins, leaves, new subscriptions and expired sessions."""

    def __init__(self, seed: int, is_direct: bool, partitions: int) -> None:
        super().__init__(seed, is_direct, partitions, 0.5)
        self.heartbeats = self.engine.turn.direct_heartbeats
        self.heartbeats.is_on = is_direct
        # The direct path takes no random bytes, so they must not depend on how many were taken before.
        self.engine.intake.entropy = lambda size: random.Random(self.mono_ms).randbytes(size)

    def beat(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.5:
            return self.beat_of("classic", rng.randint(0, 4))
        return self.beat_of("consumer", rng.randint(0, 1))

    def beat_of(self, protocol: str, version: int) -> bytes:
        rng = self.rng
        member_id, epoch = self.members[protocol]
        if rng.random() < 0.1:
            member_id, epoch = rng.choice([("nobody", epoch), (member_id, epoch + 1), (member_id, epoch - 1), ("", 0)])
        group = rng.choice(("classic", "consumer", "absent", "")) if rng.random() < 0.05 else protocol
        body: Any
        if protocol == "classic":
            body = HeartbeatRequest(group, epoch, member_id)
            if version >= 3 and rng.random() < 0.3:
                body.group_instance_id = rng.choice(("static", "static", "other"))
            api_key = apis.HEARTBEAT
        else:
            body = ConsumerGroupHeartbeatRequest(group, member_id, epoch)
            if rng.random() < 0.1:
                body = self.unusual(body, version)
            api_key = apis.CONSUMER_GROUP_HEARTBEAT
        frame = request_frame(api_key, version, body, rng.randint(0, 1 << 30))
        if rng.random() < 0.01:
            cut = rng.randint(14, len(frame) - 4)
            frame = cut.to_bytes(4, "big") + frame[4 : 4 + cut]
        return frame

    def unusual(self, body: ConsumerGroupHeartbeatRequest, version: int) -> ConsumerGroupHeartbeatRequest:
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            body.subscribed_topic_names = rng.sample(TOPICS, rng.randint(1, 2))
        elif kind == 1:
            body.instance_id = "instance"
        elif kind == 2:
            body.rack_id = rng.choice(("r1", "r2"))
        elif kind == 3:
            body.rebalance_timeout_ms = rng.choice((10_000, 20_000))
        elif kind == 4:
            body.server_assignor = rng.choice(("range", "uniform"))
        elif version >= 1:
            body.subscribed_topic_regex = rng.choice(("", "a.*"))
        return body

    def change(self) -> None:
        """Something else happens to a group."""
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            self.send(apis.CONSUMER_GROUP_HEARTBEAT, 1, self.joining(SECOND))
        elif kind == 1:
            self.send(apis.CONSUMER_GROUP_HEARTBEAT, 1, ConsumerGroupHeartbeatRequest("consumer", SECOND, -1))
        elif kind == 2:
            member_id = self.members["consumer"][0]
            self.send(apis.CONSUMER_GROUP_HEARTBEAT, 1, self.joining(member_id))
        elif kind == 3:
            protocols = [JoinGroupRequestProtocol("range", b"\x00")]
            join = JoinGroupRequest("classic", 9_000, 9_000, "", "x", "consumer", protocols)
            # It waits for the first member to join again, and its connection with it.
            Client(self.engine).send(apis.JOIN_GROUP, 5, join, self.now())
        elif kind == 4:
            self.send(apis.LEAVE_GROUP, 4, LeaveGroupRequest("classic", "", [MemberIdentity("", "x")]))
        else:
            self.mono_ms += 31_000
            self.engine.fire_timers(self.now())
        finish_turn(self.engine, self.now())
        self.follow()

    def joining(self, member_id: str) -> ConsumerGroupHeartbeatRequest:
        names = self.rng.sample(TOPICS, self.rng.randint(1, 2))
        body = ConsumerGroupHeartbeatRequest("consumer", member_id, 0, None, None, 30_000, names)
        body.topic_partitions = []
        return body

    def follow(self) -> None:
        """Learn the epochs that the members have now, as they would from their answers."""
        groups = self.engine.core.groups
        member_id, _ = self.members["consumer"]
        consumer = groups.consumer_groups.get("consumer")
        if consumer is not None and member_id in consumer.members:
            self.members["consumer"] = (member_id, consumer.members[member_id].member_epoch)
        classic = groups.get("classic")
        if classic is not None and "static" in classic.static_members:
            self.members["classic"] = (classic.static_members["static"], classic.generation_id)

    def step(self) -> None:
        kind = self.rng.random()
        if kind > 0.9 or self.client.session.close_reason:
            super().step()
            return
        self.mono_ms += self.rng.choice((0, 1, 700, 3000))
        if kind > 0.85:
            self.change()
        else:
            data = b"".join(self.beat() for _ in range(self.rng.choice((1, 1, 3, 8))))
            self.engine.receive(self.client.session, data, self.now())
            if self.rng.random() < 0.7:
                finish_turn(self.engine, self.now())
                self.follow()
        self.said.append(take_output(self.client.session))


@pytest.mark.parametrize("seed", range(16))
def test_both_paths_do_the_same(seed: int) -> None:
    partitions = 1 if seed % 2 else 3
    direct, generic = BeatTwin(seed, True, partitions), BeatTwin(seed, False, partitions)
    for _ in range(STEPS):
        direct.step()
        generic.step()
        assert direct.said == generic.said
        assert direct.engine.next_deadline_ms() == generic.engine.next_deadline_ms()
    direct.end()
    generic.end()
    assert direct.said == generic.said
    assert direct.state() == generic.state()
    assert timers_of(direct) == timers_of(generic)
    assert direct.heartbeats.handled > 10
    assert generic.heartbeats.handled == 0


def timers_of(twin: Twin) -> dict[str, dict[str, tuple[int, int]]]:
    by_group = twin.engine.core.groups.timers.by_group
    return {
        group: {member: (one.deadline_ms, one.armed_ms) for member, one in members.items()}
        for group, members in by_group.items()
    }


def steady() -> BeatTwin:
    twin = BeatTwin(1, True, 1)
    assert twin.heartbeats.handled == 0
    return twin


@pytest.mark.parametrize("version", range(5))
def test_a_classic_heartbeat_is_direct(version: int) -> None:
    twin = steady()
    member_id, generation_id = twin.members["classic"]
    twin.mono_ms += 500
    answer = twin.ask(apis.HEARTBEAT, version, HeartbeatRequest("classic", generation_id, member_id))
    assert (answer.error_code, twin.heartbeats.handled) == (errors.NONE, 1)
    assert timers_of(twin)["classic"][member_id][0] == twin.mono_ms + 30_000


@pytest.mark.parametrize("version", [0, 1])
def test_a_consumer_heartbeat_is_direct_and_waits_for_its_epoch(version: int) -> None:
    twin = steady()
    member_id, epoch = twin.members["consumer"]
    beat = ConsumerGroupHeartbeatRequest("consumer", member_id, epoch)
    # The group's newest record is not written yet.
    group = twin.engine.core.groups.consumer_groups["consumer"]
    group.end_offset = twin.engine.commits.logs[group.log].next_offset + 1
    other = Client(twin.engine)
    frame = request_frame(apis.CONSUMER_GROUP_HEARTBEAT, version, beat)
    twin.engine.receive(other.session, frame, twin.now())
    assert twin.heartbeats.handled == 1
    assert [chunk.wait_seq for chunk in other.session.chunks] == [twin.engine.commits.open_seq]
    group.end_offset = 0
    twin.engine.receive(twin.client.session, frame, twin.now())
    finish_turn(twin.engine, twin.now())
    answer = decode_answer(apis.CONSUMER_GROUP_HEARTBEAT, version, read_answers(take_output(twin.client.session))[0][1])
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (errors.NONE, epoch, None)
    assert answer.heartbeat_interval_ms == 5000


def test_another_client_takes_the_generic_path() -> None:
    """A member that comes with another client id is written anew."""
    twin = steady()
    member_id, epoch = twin.members["consumer"]
    group = twin.engine.core.groups.consumer_groups["consumer"]
    group.members[member_id].client_id = "another"
    twin.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, ConsumerGroupHeartbeatRequest("consumer", member_id, epoch))
    assert twin.heartbeats.handled == 0
    assert group.members[member_id].client_id != "another"
