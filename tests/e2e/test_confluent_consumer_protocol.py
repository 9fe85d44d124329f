"""confluent-kafka (librdkafka) with group.protocol=consumer (KIP-848) against a server process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess, clean_environment
from tests.e2e.test_confluent import produce, read
from tests.harness.ports import own_port
from tests.harness.present import present

# A group sets a shorter session for itself. Heartbeats are frequent so that nobody waits for them.
SETTINGS: dict[str, object] = {
    # A test reads the lines of single epochs.
    "logging.level": "debug",
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 100,
    "group.consumer.regex.min.refresh.interval.ms": 500,
}
ARGUMENTS = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
DEADLINE_S = 60.0
GROUP_RESOURCE = 32
# A member in a process of its own, which says so once it has partitions.
MEMBER = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
one = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"})
one.subscribe([topic])
while True:
    one.poll(0.1)
    if one.assignment():
        print("assigned", flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data: Path = tmp_path_factory.mktemp("consumer-protocol") / "data"
    with ServerProcess(data, *ARGUMENTS) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def bootstrap(server: ServerProcess) -> str:
    return server.bootstrap


def consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer",
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0,
            "topic.metadata.refresh.interval.ms": 500, "reconnect.backoff.max.ms": 200, **settings,
        }
    )  # fmt: skip


def create(bootstrap: str, **topics: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name.replace("_", "-"), count) for name, count in topics.items()]
    for future in admin.create_topics(wanted).values():
        future.result(DEADLINE_S)
    return admin


def partitions(one: Consumer) -> list[str]:
    return sorted(f"{part.topic}-{part.partition}" for part in one.assignment())


def named(topic: str, count: int) -> list[str]:
    return [f"{topic}-{number}" for number in range(count)]


def until(what: str, members: list[Consumer], is_there: Callable[[], bool]) -> None:
    """Let all members poll until it is so."""
    end = time.monotonic() + DEADLINE_S
    while not is_there():
        assert time.monotonic() < end, (what, [partitions(one) for one in members])
        for one in members:
            message = one.poll(0.01)
            assert message is None or message.error() is None, message.error()


def settle(members: list[Consumer], wanted: list[str]) -> None:
    """Until they own `wanted` together, each about as many, and the coordinator knows of it."""

    def is_there() -> bool:
        shares = [partitions(one) for one in members]
        sizes = [len(share) for share in shares]
        return sorted(part for share in shares for part in share) == wanted and max(sizes) - min(sizes) <= 1

    until(f"shares of {wanted}", members, is_there)


def describe(bootstrap: str, group: str) -> DescribedGroup:
    with Probe(bootstrap) as probe:
        request = ConsumerGroupDescribeRequest([group], False)
        answer = probe.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, request, ConsumerGroupDescribeResponse)
    return answer.groups[0]


def epochs(bootstrap: str, group: str) -> tuple[int, int, dict[str, int]]:
    """The group's, its target assignment's and its members'."""
    found = describe(bootstrap, group)
    return found.group_epoch, found.assignment_epoch, {one.member_id: one.member_epoch for one in found.members}


def set_group_config(bootstrap: str, group: str, name: str, value: str) -> None:
    """confluent-kafka cannot name a group as a resource."""
    resource = AlterConfigsResource(GROUP_RESOURCE, group, [AlterableConfig(name, 0, value)])
    with Probe(bootstrap) as probe:
        request = IncrementalAlterConfigsRequest([resource], False)
        answer = probe.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go(bootstrap: str, assignor: str) -> None:
    topic = group = f"crowd-{assignor}"
    admin = create(bootstrap, **{topic: 6})
    members: list[Consumer] = []
    for _ in range(4):
        one = consumer(bootstrap, group, **{"group.remote.assignor": assignor})
        one.subscribe([topic])
        members.append(one)
        settle(members, named(topic, 6))
    until("a stable group", members, lambda: describe(bootstrap, group).group_state == "Stable")
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert (described.state.name, described.type, described.partition_assignor) == (
        "STABLE", ConsumerGroupType.CONSUMER, assignor,
    )  # fmt: skip
    shares = sorted(len(member.assignment.topic_partitions) for member in described.members)
    assert shares == [1, 1, 2, 2]
    assert [member.target_assignment.topic_partitions for member in described.members] == [
        member.assignment.topic_partitions for member in described.members
    ]
    listed = admin.list_consumer_groups().result(DEADLINE_S).valid
    assert [one.type for one in listed if one.group_id == group] == [ConsumerGroupType.CONSUMER]
    for _ in range(3):
        members.pop(0).close()
        settle(members, named(topic, 6))
    assert len(describe(bootstrap, group).members) == 1
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    members.pop().close()
    assert describe(bootstrap, group).group_state == "Empty"
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    assert group not in [one.group_id for one in admin.list_consumer_groups().result(DEADLINE_S).valid]


def test_an_unknown_assignor_is_refused(bootstrap: str) -> None:
    produce(bootstrap, "unknown-assignor", [b"0"])
    one = consumer(bootstrap, "unknown-assignor", **{"group.remote.assignor": "dice"})
    one.subscribe(["unknown-assignor"])
    end = time.monotonic() + DEADLINE_S
    error = None
    while error is None:
        assert time.monotonic() < end
        message = one.poll(0.1)
        error = message.error() if message is not None else None
    assert error.name() == "_FATAL" and "assignor or its version range is not supported" in str(error), error
    one.close()


def test_topics_by_expression_that_grow_and_appear(bootstrap: str) -> None:
    admin = create(bootstrap, regex_a=1, regex_b=2, other_regex=1)
    members = [consumer(bootstrap, "expressions") for _ in range(2)]
    for one in members:
        one.subscribe(["^regex-.*"])
    settle(members, ["regex-a-0", "regex-b-0", "regex-b-1"])
    admin.create_partitions([NewPartitions("regex-a", 3)])["regex-a"].result(DEADLINE_S)
    settle(members, [*named("regex-a", 3), *named("regex-b", 2)])
    create(bootstrap, regex_c=1)
    settle(members, [*named("regex-a", 3), *named("regex-b", 2), "regex-c-0"])
    admin.delete_topics(["regex-b"])["regex-b"].result(DEADLINE_S)
    settle(members, [*named("regex-a", 3), "regex-c-0"])
    # Another expression, then names.
    members[0].subscribe(["^other-.*"])
    until("the other topic", members, lambda: partitions(members[0]) == ["other-regex-0"])
    settle(members[1:], [*named("regex-a", 3), "regex-c-0"])
    members[0].subscribe(["regex-a"])
    settle(members[:1], partitions(members[0]))
    until("a share of the names", members, lambda: 0 < len(partitions(members[0])) < 4)
    for one in members:
        one.close()


def test_a_topic_that_appears_later(bootstrap: str) -> None:
    one = consumer(bootstrap, "too-early")
    one.subscribe(["late"])
    end = time.monotonic() + DEADLINE_S
    while not describe(bootstrap, "too-early").members:
        one.poll(0.02)
        assert time.monotonic() < end
    create(bootstrap, late=2)
    while partitions(one) != named("late", 2):
        one.poll(0.02)  # which may tell that there is no such topic yet
        assert time.monotonic() < end
    one.close()


def test_a_group_resumes_where_it_was(bootstrap: str) -> None:
    produce(bootstrap, "consumer-resume", [str(number).encode() for number in range(10)])
    one = consumer(bootstrap, "consumer-resume")
    one.subscribe(["consumer-resume"])
    assert read(one, 4) == [b"0", b"1", b"2", b"3"]
    one.commit(offsets=[TopicPartition("consumer-resume", 0, 4, "note")], asynchronous=False)
    one.close()
    one = consumer(bootstrap, "consumer-resume", **{"enable.auto.commit": True})
    (committed,) = one.committed([TopicPartition("consumer-resume", 0)], timeout=DEADLINE_S)
    assert (committed.offset, committed.metadata) == (4, "note")
    one.subscribe(["consumer-resume"])
    assert read(one, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    one.close()  # commits
    one = consumer(bootstrap, "consumer-resume")
    assert one.committed([TopicPartition("consumer-resume", 0)], timeout=DEADLINE_S)[0].offset == 10
    one.close()


def test_static_members(bootstrap: str) -> None:
    group = "consumer-static"
    create(bootstrap, **{group: 4})

    def member(instance: str) -> Consumer:
        one = consumer(bootstrap, group, **{"group.instance.id": instance})
        one.subscribe([group])
        return one

    members = [member("a"), member("b")]
    settle(members, named(group, 4))
    until("a stable group", members, lambda: describe(bootstrap, group).group_state == "Stable")
    group_epoch, _, _ = epochs(bootstrap, group)
    share = partitions(members[1])
    members.pop().close()
    # It is away for now: nobody gets its partitions, and it has them at once when it is back.
    (away,) = [one for one in describe(bootstrap, group).members if one.instance_id == "b"]
    assert away.member_epoch == -2
    members.append(member("b"))
    until("the same share", members, lambda: partitions(members[1]) == share)
    assert epochs(bootstrap, group)[0] == group_epoch
    assert len(describe(bootstrap, group).members) == 2

    # One that takes a name that is in use is told, and changes nothing.
    thief = member("b")
    end = time.monotonic() + DEADLINE_S
    error = None
    while error is None:
        assert time.monotonic() < end
        for one in members:
            message = one.poll(0.01)
            assert message is None or message.error() is None
        message = thief.poll(0.05)
        error = message.error() if message is not None else None
    assert error.name() == "_FATAL" and "instance ID is still used" in str(error), error
    thief.close()
    assert epochs(bootstrap, group)[0] == group_epoch
    settle(members, named(group, 4))
    for one in members:
        one.close()


def test_a_killed_member_is_missed_after_the_group_s_session(server: ServerProcess) -> None:
    bootstrap, group = server.bootstrap, "killed-member"
    create(bootstrap, **{group: 2})
    set_group_config(bootstrap, group, "consumer.session.timeout.ms", "10000")
    one = consumer(bootstrap, group)
    one.subscribe([group])
    settle([one], named(group, 2))
    other = subprocess.Popen(
        [sys.executable, "-c", MEMBER, bootstrap, group, group], stdout=subprocess.PIPE, env=clean_environment()
    )
    printed: list[bytes] = []
    assert other.stdout is not None
    # Read beside the polling: the session is short, and what one member waits for may need the other to go on.
    reader = threading.Thread(
        target=lambda stream: printed.append(stream.readline()), args=(other.stdout,), daemon=True
    )
    reader.start()
    try:
        until("two shares", [one], lambda: len(partitions(one)) == 1 and bool(printed))
        assert printed == [b"assigned\n"]
        (killed,) = [member for member in epochs(bootstrap, group)[2] if member != one.memberid()]
    finally:
        other.kill()
        other.wait()
        if other.stdout is not None:
            other.stdout.close()
    settle([one], named(group, 2))
    assert list(epochs(bootstrap, group)[2]) == [one.memberid()]
    one.close()

    def causes() -> list[object]:
        lines = [line for line in server.lines("consumer_group_epoch") if line["group"] == group]
        return [line["cause"] for line in lines if line.get("member") == killed]

    until("the line of it", [], lambda: len(causes()) == 2)
    assert causes() == ["member_joined", "session_timeout"]


def test_members_continue_after_a_kill_of_the_server(tmp_path: Path) -> None:
    """No commit is lost, no member joins again, nothing moves."""
    group, count = "over-a-kill", 4
    revoked: list[object] = []
    lost: list[object] = []
    committed: dict[int, int] = {}
    processed: list[bytes] = []

    def drive(members: list[Consumer], total: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while len(set(processed)) < total:
            assert time.monotonic() < end, len(set(processed))
            for one in members:
                message = one.poll(0.005)
                if message is None or message.error() is not None:
                    continue
                processed.append(present(message.value()))
                try:
                    for done in one.commit(message=message, asynchronous=False):
                        if done.error is None:
                            committed[done.partition] = max(committed.get(done.partition, 0), done.offset)
                except KafkaException:
                    pass  # the server is away; what was not committed is not promised

    def send(bootstrap: str, first: int, size: int) -> None:
        produce(bootstrap, group, [str(number).encode() for number in range(first, first + size)], **spread)

    # Values go to all partitions.
    spread = {"partitioner": "random", "sticky.partitioning.linger.ms": 0}
    with ServerProcess(tmp_path / "data", *ARGUMENTS, listen=f"127.0.0.1:{own_port()}") as server:
        bootstrap = server.bootstrap
        create(bootstrap, **{group: count})
        members = [consumer(bootstrap, group) for _ in range(2)]
        for one in members:
            one.subscribe(
                [group],
                on_revoke=lambda _, parts: revoked.extend(parts),
                on_lost=lambda _, parts: lost.extend(parts),
            )
        settle(members, named(group, count))
        until("a stable group", members, lambda: describe(bootstrap, group).group_state == "Stable")
        revoked.clear()  # the first member gave half to the second
        send(bootstrap, 0, 100)
        drive(members, 100)
        before = epochs(bootstrap, group)
        shares = [partitions(one) for one in members]
        send(bootstrap, 100, 20)
        drive(members, 110)
        server.kill()
    sent = 120
    for _ in range(2):
        with ServerProcess(tmp_path / "data", *ARGUMENTS, listen=bootstrap) as server:
            assert epochs(bootstrap, group) == before
            with_commits = [TopicPartition(group, number) for number in range(count)]
            stored = {part.partition: part.offset for part in members[0].committed(with_commits, timeout=DEADLINE_S)}
            assert all(stored[number] >= offset for number, offset in committed.items()), (stored, committed)
            send(bootstrap, sent, 50)
            sent += 50
            drive(members, sent)
            assert [partitions(one) for one in members] == shares
            assert epochs(bootstrap, group) == before
            assert (revoked, lost) == ([], [])
            server.kill()
    for one in members:
        one.close()
    assert {int(value) for value in processed} == set(range(sent))
