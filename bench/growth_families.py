"""What `bench.growth` measures: for each quantity that grows, an engine of that size, and what it takes for requests.

Each function builds one engine and returns microseconds of CPU time by name of the figure. A figure is for one request,
unless its name says for what.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench import open_log, workload
from bench.crowds import SESSION_TIMEOUT_MS, ClassicCrowd, ConsumerCrowd, Meter
from bench.in_process import IN_FLIGHT
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_record, encode_record
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kcoord.protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kcoord.protocol.header import decode_response_header
from kcoord.protocol.list_groups import ListGroupsRequest, ListGroupsResponse
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kcoord.wire.primitives import Reader
from kcoord.wire.record_batch import BatchBuilder, decode_records, parse_header

Figures = dict[str, float]

COMMIT: Final = "OffsetCommit"
FETCH: Final = "OffsetFetch"
HEARTBEAT: Final = "Heartbeat"
CONSUMER_HEARTBEAT: Final = "ConsumerGroupHeartbeat"
LIST: Final = "ListGroups, per group"
DESCRIBE_GROUP: Final = "DescribeGroups, per group"
DESCRIBE: Final = "DescribeGroups, per member"
CONSUMER_DESCRIBE: Final = "ConsumerGroupDescribe, per member"
AGAIN: Final = ", the same ten"
JOIN: Final = "join of all, per member"
REBALANCE: Final = "one more member, per member"
EXPIRY: Final = "expiry of all, per member"
FETCH_ALL: Final = "OffsetFetch of all, per offset"
START: Final = "start, per offset"
START_GROUPS: Final = "start, per group"

# Partitions of a request that commits or fetches offsets.
PARTITIONS: Final = workload.PARTITIONS
AGAIN_REQUESTS: Final = 10
# Groups of a DescribeGroups.
DESCRIBED: Final = 100
# Small groups are measured many times, so that all figures are of at least so many members.
MEMBERS_MIN: Final = 200
# Groups whose records are in a batch.
GROUPS_PER_BATCH: Final = 100
# Partitions that one request creates at most.
PARTITIONS_ADDED: Final = 9_000
# Elements of an answer.
ELEMENTS_MAX: Final = 100_000_000
# A whole answer is measured several times, too.
ANSWERS: Final = 5
# For the offsets of many groups, so many each. Their topics are those of open_log.
OFFSETS_PER_GROUP: Final = 100
OFFSETS_PER_COMMIT: Final = 100
# Longer than the session timeout of consumer groups.
CONSUMER_SESSION_MS: Final = 60_000
# Partitions of a topic for commits.
PRESENT_MAX: Final = 1_000


@dataclass(frozen=True)
class Effort:
    """How many requests a figure is measured with, and how many times. The best time counts."""

    requests: int = 20_000
    rounds: int = 5


@contextmanager
def collected() -> Any:
    """The garbage collector is as in a server that has just started: what is there is not looked at again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def per_request(meter: Meter, frames: Sequence[bytes], effort: Effort) -> float:
    """Microseconds for each of these requests, which arrive 32 at a time, in random order. The groups of neighbours in
    memory do not follow each other, then.
    """
    chooser = random.Random(1)
    chosen = [frames[chooser.randrange(len(frames))] for _ in range(effort.requests)]
    pieces = [b"".join(chosen[at : at + IN_FLIGHT]) for at in range(0, len(chosen), IN_FLIGHT)]
    check_answers(meter, frames[0])

    def send() -> None:
        for piece in pieces:
            meter.send(piece)

    with collected():
        return min(meter.timed(send) for _ in range(effort.rounds)) / len(chosen) * 1e6


def near_and_far(meter: Meter, name: str, frames: Sequence[bytes], effort: Effort) -> Figures:
    """The figure for all of these requests, and for the same few again and again, whose data the caches have. If only
    the first one grows, then memory makes the difference, and not a search.
    """
    return {
        name: per_request(meter, frames, effort),
        name + AGAIN: per_request(meter, frames[:AGAIN_REQUESTS], effort),
    }


def check_answers(meter: Meter, frame: bytes) -> None:
    """The request succeeds. Its answer without an error has no error code, and those of partitions are zero, too."""
    answer = workload.decode(int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big"), meter.send(frame))
    for code in error_codes(answer):
        workload.check(code, type(answer).__name__)


def error_codes(message: Any) -> Iterable[int]:
    for name in message.FIELDS:
        value = getattr(message, name)
        if name == "error_code":
            yield value
        elif isinstance(value, list) and value and hasattr(value[0], "FIELDS"):
            for one in value:
                yield from error_codes(one)


def per_item(meter: Meter, api_key: int, version: int, request: Any, kind: type[Any]) -> tuple[float, Any]:
    """Microseconds for a request with a large answer, and the answer."""
    frame = workload.request_frame(api_key, version, request)
    answers: list[bytes] = []

    def ask() -> None:
        answer = meter.send(frame)
        while not answer:
            answer = meter.send(b"")
        answers[:] = [answer]

    with collected():
        best = min(meter.timed(ask) for _ in range(ANSWERS))
    # Our clients refuse messages of so many elements.
    reader = Reader(answers[0], 4, ELEMENTS_MAX)
    decode_response_header(reader, apis.APIS[api_key].response_header_version(version))
    answer = apis.decode_response(api_key, reader, version)
    assert isinstance(answer, kind)
    for code in error_codes(answer):
        workload.check(code, kind.__name__)
    return best * 1e6, answer


def create_topics(meter: Meter, partitions: dict[str, int]) -> dict[str, bytes]:
    """Returns their ids."""
    topics = [CreatableTopic(name, min(count, PARTITIONS_ADDED), 1) for name, count in partitions.items()]
    answer = meter.call(19, 7, CreateTopicsRequest(topics, 30_000, False), CreateTopicsResponse)
    for topic in answer.topics:
        workload.check(topic.error_code, f"create {topic.name}")
    for name, count in partitions.items():
        for end in range(2 * PARTITIONS_ADDED, count + PARTITIONS_ADDED, PARTITIONS_ADDED):
            more = CreatePartitionsTopic(name, min(end, count), None)
            added = meter.call(37, 3, CreatePartitionsRequest([more], 30_000), CreatePartitionsResponse)
            workload.check(added.results[0].error_code, f"add partitions to {name}")
    return {topic.name: topic.topic_id for topic in answer.topics}


def commit_frame(
    group_id: str, epoch: int, member_id: str, topic: str, partitions: Iterable[int], version: int = 8
) -> bytes:
    numbers = [OffsetCommitRequestPartition(each, 1000 + each, 0, "") for each in partitions]
    topics = [OffsetCommitRequestTopic(topic, partitions=numbers)]
    body = OffsetCommitRequest(group_id, epoch, member_id, None, topics=topics)
    return workload.request_frame(apis.OFFSET_COMMIT, version, body)


def fetch_frame(group_id: str, topic: str, partitions: Iterable[int]) -> bytes:
    topics = [OffsetFetchRequestTopics(topic, partition_indexes=list(partitions))]
    body = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=topics)])
    return workload.request_frame(apis.OFFSET_FETCH, 8, body)


# --- groups


def classic_groups(count: int, effort: Effort) -> Figures:
    """Groups of the classic protocol with a member and five offsets each."""
    storage = MemoryStorage()
    first = Meter(storage)
    create_topics(first, {workload.TOPIC: PARTITIONS})
    crowd = ClassicCrowd(first, group_name(0), workload.TOPIC)
    crowd.join(1)
    crowd.sync()
    member = (crowd.generation, crowd.member_ids[0])
    check_answers(first, commit_frame(crowd.group_id, *member, workload.TOPIC, range(PARTITIONS)))
    write_groups(first, count)
    meter, load_us = load(storage)
    figures = {START_GROUPS: load_us / count}
    frames: dict[str, list[bytes]] = {COMMIT: [], FETCH: [], HEARTBEAT: []}
    for group_id in random.Random(1).sample(
        [group_name(number) for number in range(count)], min(count, effort.requests)
    ):
        frames[COMMIT].append(commit_frame(group_id, *member, workload.TOPIC, range(PARTITIONS)))
        frames[FETCH].append(fetch_frame(group_id, workload.TOPIC, range(PARTITIONS)))
        crowd.group_id = group_id
        frames[HEARTBEAT] += crowd.heartbeats()
    for name, of_name in frames.items():
        figures |= near_and_far(meter, name, of_name, effort)
    listed, answer = per_item(meter, apis.LIST_GROUPS, 5, ListGroupsRequest(), ListGroupsResponse)
    workload.check(0 if len(answer.groups) == count else -1, "ListGroups")
    chosen = sample(count, DESCRIBED)
    request = DescribeGroupsRequest(chosen)
    described, _ = per_item(meter, apis.DESCRIBE_GROUPS, 5, request, DescribeGroupsResponse)
    return figures | {LIST: listed / count, DESCRIBE_GROUP: described / len(chosen)}


def consumer_groups(count: int, effort: Effort) -> Figures:
    """Groups of the consumer protocol with a member each."""
    storage = MemoryStorage()
    first = Meter(storage)
    topic_id = create_topics(first, {workload.TOPIC: PARTITIONS})[workload.TOPIC]
    crowd = ConsumerCrowd(first, group_name(0), workload.TOPIC, topic_id, PARTITIONS)
    crowd.join(1)
    write_groups(first, count)
    meter, load_us = load(storage)
    member = crowd.members[0]
    crowd.heartbeats()
    frames: list[bytes] = []
    for member.group_id in sample(count, effort.requests):
        frames += crowd.heartbeats()
    return {START_GROUPS: load_us / count} | near_and_far(meter, CONSUMER_HEARTBEAT, frames, effort)


def group_name(number: int) -> str:
    return f"group-{number:06}"


def sample(groups: int, most: int) -> list[str]:
    """The names of some groups, in random order."""
    return [group_name(number) for number in random.Random(1).sample(range(groups), min(groups, most))]


def write_groups(meter: Meter, count: int) -> None:
    """Write more groups like the only one there is, and stop the engine. Their records differ in the name only."""
    meter.exchange_all([])
    log = offsets_log(meter)
    records: list[tuple[Any, Any]] = []
    data = log.storage.read_bytes(f"{log.name}/{0:020}.log")
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        for record in decode_records(data, position, header, len(data)):
            assert record.key is not None
            records.append(decode_record(record.key, record.value))
        position += header.size
    batches: list[tuple[bytes, int]] = []
    for first in range(1, count, GROUPS_PER_BATCH):
        builder = BatchBuilder()
        for number in range(first, min(first + GROUPS_PER_BATCH, count)):
            for key, value in records:
                setattr(key, "group" if hasattr(key, "group") else "group_id", group_name(number))
                builder.append(meter.now().wall_ms, *encode_record(key, value))
        written = int(builder.count)
        batches.append((builder.build(0, 0), written))
    open_log.fill(meter.engine.journal, log, batches, log.end_offset + sum(number for _, number in batches))
    meter.engine.stop()


def offsets_log(meter: Meter) -> PartitionLog:
    log = meter.engine.directory.get("__consumer_offsets", 0)
    if log is None:
        raise RuntimeError("there is no log of offsets")
    return log


# --- members


def classic_members(count: int, effort: Effort) -> Figures:
    """A group of the classic protocol: members that join at once, work, get one more, and all expire."""
    copies = max(MEMBERS_MIN // count, 1)
    meter = Meter()
    create_topics(meter, {workload.TOPIC: PARTITIONS})
    crowds = [ClassicCrowd(meter, group_name(number), workload.TOPIC) for number in range(copies)]

    def join(more: int) -> None:
        for crowd in crowds:
            present = len(crowd.member_ids)
            crowd.join(more)
            if present:
                crowd.rejoin(present)
            crowd.sync()

    figures: Figures = {}
    members = count * copies
    figures[JOIN] = cpu_us(meter, lambda: join(count)) / members
    one = crowds[0]
    figures[HEARTBEAT] = per_request(meter, one.heartbeats(), effort)
    commits = [
        commit_frame(one.group_id, one.generation, member_id, workload.TOPIC, range(PARTITIONS))
        for member_id in one.member_ids
    ]
    figures[COMMIT] = per_request(meter, commits, effort)
    request = DescribeGroupsRequest([one.group_id])
    described, answer = per_item(meter, apis.DESCRIBE_GROUPS, 5, request, DescribeGroupsResponse)
    workload.check(0 if len(answer.groups[0].members) == count else -1, "DescribeGroups")
    figures[DESCRIBE] = described / count
    figures[REBALANCE] = cpu_us(meter, lambda: join(1)) / members
    expire = cpu_us(meter, lambda: meter.sleep(SESSION_TIMEOUT_MS + 1))
    for crowd in crowds:
        group = meter.engine.core.groups.get(crowd.group_id)
        workload.check(-1 if group is None or group.members else 0, "expiry")
    return figures | {EXPIRY: expire / (members + copies)}


def consumer_members(count: int, effort: Effort) -> Figures:
    """The same with the consumer protocol, and two partitions for each member."""
    copies = max(MEMBERS_MIN // count, 1)
    meter = Meter()
    topic_id = create_topics(meter, {workload.TOPIC: max(2 * count, PARTITIONS)})[workload.TOPIC]
    crowds = [
        ConsumerCrowd(meter, group_name(number), workload.TOPIC, topic_id, max(2 * count, PARTITIONS))
        for number in range(copies)
    ]

    def join(more: int) -> None:
        for crowd in crowds:
            crowd.join(more)

    figures: Figures = {}
    members = count * copies
    figures[JOIN] = cpu_us(meter, lambda: join(count)) / members
    one = crowds[0]
    one.heartbeats()
    figures[CONSUMER_HEARTBEAT] = per_request(meter, one.heartbeats(), effort)
    commits = [
        commit_frame(one.group_id, member.epoch, member.member_id, workload.TOPIC, range(PARTITIONS), 9)
        for member in one.members
    ]
    figures[COMMIT] = per_request(meter, commits, effort)
    request = ConsumerGroupDescribeRequest([one.group_id])
    kind = ConsumerGroupDescribeResponse
    described, answer = per_item(meter, apis.CONSUMER_GROUP_DESCRIBE, 1, request, kind)
    workload.check(0 if len(answer.groups[0].members) == count else -1, "ConsumerGroupDescribe")
    figures[CONSUMER_DESCRIBE] = described / count
    figures[REBALANCE] = cpu_us(meter, lambda: join(1)) / members
    expire = cpu_us(meter, lambda: meter.sleep(CONSUMER_SESSION_MS))
    for crowd in crowds:
        workload.check(-1 if meter.engine.core.groups.consumer_groups[crowd.group_id].members else 0, "expiry")
    return figures | {EXPIRY: expire / (members + copies)}


def cpu_us(meter: Meter, work: Callable[[], None]) -> float:
    """Microseconds that the engine takes while this runs; what members do meanwhile does not count."""
    before = meter.cpu_s
    with collected():
        work()
    return (meter.cpu_s - before) * 1e6


# --- offsets


def offsets_of_a_group(count: int, effort: Effort) -> Figures:
    """A group without members that has this many offsets, in four topics."""
    storage = MemoryStorage()
    write_offsets(storage, count, 1)
    meter, load_us = load(storage)
    figures = {START: load_us / count} | per_offset(meter, count, 1, effort)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_name(0), topics=None)])
    fetched, answer = per_item(meter, apis.OFFSET_FETCH, 8, request, OffsetFetchResponse)
    found = sum(len(topic.partitions) for topic in answer.groups[0].topics)
    workload.check(0 if found == count else -1, "OffsetFetch")
    return figures | {FETCH_ALL: fetched / count}


def offsets_of_groups(count: int, effort: Effort) -> Figures:
    """Groups without members that have a hundred offsets each, in four of 200 topics."""
    storage = MemoryStorage()
    groups = max(count // OFFSETS_PER_GROUP, 1)
    write_offsets(storage, count, groups)
    meter, load_us = load(storage)
    return {START: load_us / count} | per_offset(meter, count, groups, effort)


def write_offsets(storage: MemoryStorage, count: int, groups: int) -> None:
    """Write a log with offsets, as after a clean stop."""
    meter = Meter(storage)
    meter.exchange_all([])
    log = offsets_log(meter)
    batches = open_log.commits(count, groups, OFFSETS_PER_COMMIT)
    open_log.fill(meter.engine.journal, log, batches, log.end_offset + count)
    meter.engine.stop()


def load(storage: MemoryStorage) -> tuple[Meter, float]:
    """Open an engine, as a server does that starts. Returns its microseconds."""
    gc.collect()
    gc.disable()
    started = time.process_time()
    meter = Meter(storage)
    load_us = (time.process_time() - started) * 1e6
    gc.enable()
    return meter, load_us


def per_offset(meter: Meter, count: int, groups: int, effort: Effort) -> Figures:
    """Requests of one of the offsets each."""
    chooser = random.Random(1)
    per_group = count // groups
    stored = [
        (group_name(group), *open_log.place(group, number, per_group))
        for group, number in ((chooser.randrange(groups), chooser.randrange(per_group)) for _ in range(effort.requests))
    ]
    fetches = [fetch_frame(group_id, topic, [partition]) for group_id, topic, partition in stored]
    # Only offsets of partitions that exist can be committed. The log has offsets of many more.
    topics = sorted({topic for _, topic, _ in stored})
    present = min(max(per_group // open_log.TOPICS_PER_GROUP, 1), PRESENT_MAX)
    create_topics(meter, dict.fromkeys(topics, present))
    commits = [commit_frame(group_id, -1, "", topic, [partition % present]) for group_id, topic, partition in stored]
    return near_and_far(meter, FETCH, fetches, effort) | near_and_far(meter, COMMIT, commits, effort)


@dataclass(frozen=True)
class Family:
    """Figures at several sizes of one quantity; `quantity` is its name in the plural."""

    quantity: str
    sizes: tuple[int, ...]
    measure: Callable[[int, Effort], Figures]


FAMILIES: Final[dict[str, Family]] = {
    "classic groups": Family("groups", (10, 1_000, 100_000), classic_groups),
    "consumer groups": Family("groups", (10, 1_000, 100_000), consumer_groups),
    "classic members": Family("members", (1, 10, 100, 1_000, 10_000), classic_members),
    "consumer members": Family("members", (1, 10, 100, 1_000, 10_000), consumer_members),
    "offsets of a group": Family("offsets", (1, 100, 10_000, 1_000_000), offsets_of_a_group),
    "offsets of groups": Family("offsets", (100, 10_000, 1_000_000), offsets_of_groups),
}
