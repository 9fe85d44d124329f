"""What the clients of a workload were promised by some moment, and whether an engine that came back keeps it."""

from __future__ import annotations

from typing import Any

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.protocol import apis
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.wire.record_batch import decode_records, parse_header
from tests.crash.workload import PARTITIONS, Event
from tests.harness.engine import Client
from tests.harness.log import batches_of

GROUPS = ("group-0", "group-1")


class Recovered:
    """What an engine found when it opened a log: plain data, to be held against many promises."""

    def __init__(self, engine: Engine, now: Now) -> None:
        topics = engine.core.topics
        self.topics: dict[str, bytes] = {}
        # (topic, partition) -> (log start, values from there on)
        self.records: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
        for name in ("a", "b"):
            topic = topics.get(name)
            if topic is None:
                continue
            self.topics[name] = topic.topic_id
            assert topic.partition_count == PARTITIONS, f"{name} has {topic.partition_count} partitions"
            for partition in range(PARTITIONS):
                log = engine.directory.get(name, partition)
                assert log is not None, f"{name}-{partition} has no directory"
                assert log.topic_id == topic.topic_id
                self.records[name, partition] = (log.log_start_offset, _values(log))
        # group -> committed offsets of the partitions of "a"
        self.commits: dict[str, tuple[int, ...]] = {}
        client = Client(engine)
        for group in GROUPS:
            request = OffsetFetchRequest(group, [OffsetFetchRequestTopic("a", list(range(PARTITIONS)))])
            answer = client.ask(apis.OFFSET_FETCH, 7, request, now)
            self.commits[group] = tuple(p.committed_offset for p in answer.topics[0].partitions)
        answer = client.ask(apis.INIT_PRODUCER_ID, 2, InitProducerIdRequest(None, 1000), now)
        assert answer.error_code == 0
        self.next_producer_id = answer.producer_id

    def content(self) -> tuple[Any, ...]:
        """What clients can see, for comparing."""
        return (self.topics, self.records, self.commits)


def _values(log: Any) -> list[bytes]:
    values: list[bytes] = []
    expected = -1
    for position, data in batches_of(log, log.log_start_offset, log.end_offset):
        header = parse_header(data, position)
        assert expected in (-1, header.base_offset), f"{log!r}: {header.base_offset} after {expected}"
        expected = header.last_offset + 1
        for record in decode_records(data, position, header, 1 << 20):
            if record.offset >= log.log_start_offset:
                values.append(record.value or b"")
    assert len(values) == log.end_offset - log.log_start_offset, f"{log!r} has {len(values)} records"
    return values


class Promises:
    """The first `count` events of a workload, folded."""

    def __init__(self, events: list[Event], count: int) -> None:
        # Instances of topics: (name, round) -> ...
        self.asked: set[tuple[str, int]] = set()
        self.ids: dict[tuple[str, int], bytes] = {}
        self.delete_asked: set[tuple[str, int]] = set()
        self.deleted: set[tuple[str, int]] = set()
        # (name, round, partition) -> batches in the order sent, and the offset up to which they are acknowledged
        self.sent: dict[tuple[str, int, int], list[tuple[bytes, ...]]] = {}
        self.acked: dict[tuple[str, int, int], int] = {}
        self.start_asked: dict[tuple[str, int], int] = {}
        self.start_acked: dict[tuple[str, int], int] = {}
        self.commits: dict[str, list[int]] = {}
        self.committed: dict[str, int] = {}
        self.producer_id = -1
        for event in events[:count]:
            (self._sent if event.is_sent else self._told)(event)

    def _sent(self, event: Event) -> None:
        what = event.what
        if event.kind == "create":
            self.asked.add((what[0], what[1]))
        elif event.kind == "delete":
            self.delete_asked.add((what[0], what[1]))
        elif event.kind == "produce":
            self.sent.setdefault(what[:3], []).append(what[3])
        elif event.kind == "commit":
            self.commits.setdefault(what[0], []).append(what[1])
        elif event.kind == "delete_records":
            self.start_asked[what[0], what[1]] = max(what[2], self.start_asked.get((what[0], what[1]), 0))

    def _told(self, event: Event) -> None:
        what, answer = event.what, event.answer
        if event.kind == "create":
            if answer.topics[0].error_code == 0:
                self.ids[what[0], what[1]] = answer.topics[0].topic_id
        elif event.kind == "delete":
            if answer.responses[0].error_code == 0:
                self.deleted.add((what[0], what[1]))
        elif event.kind == "produce":
            result = answer.responses[0].partition_responses[0]
            if result.error_code == 0:
                self.acked[what[:3]] = result.base_offset + len(what[3])
        elif event.kind == "commit":
            if all(partition.error_code == 0 for partition in answer.topics[0].partitions):
                self.committed[what[0]] = what[1]
        elif event.kind == "delete_records":
            if answer.topics[0].partitions[0].error_code == 0:
                self.start_acked[what[0], what[1]] = max(what[2], self.start_acked.get((what[0], what[1]), 0))
        elif event.kind == "producer":
            if answer.error_code == 0:
                self.producer_id = answer.producer_id

    def broken_by(self, found: Recovered) -> list[str]:
        """Every promise that is not kept, in words."""
        problems: list[str] = []
        for (name, round_), topic_id in self.ids.items():
            is_there = found.topics.get(name) == topic_id
            if not is_there and (name, round_) not in self.delete_asked:
                problems.append(f"topic {name} (instance {round_}) is gone")
            if is_there and (name, round_) in self.deleted:
                problems.append(f"topic {name} (instance {round_}) is back")
        for name, topic_id in found.topics.items():
            rounds = [round_ for (n, round_), known in self.ids.items() if n == name and known == topic_id]
            unknown = [round_ for n, round_ in self.asked if n == name and (n, round_) not in self.ids]
            if not rounds and not unknown:
                problems.append(f"topic {name} was never asked for")
                continue
            for partition in range(PARTITIONS):
                problems += self._broken_records(found, name, (rounds or unknown)[0], partition)
        for group, offsets in found.commits.items():
            sent = self.commits.get(group, [])
            number = self.committed.get(group)
            allowed = sent[sent.index(number) :] if number is not None else [-1, *sent]
            if len(set(offsets)) != 1:
                problems.append(f"{group}: one commit, but offsets {offsets}")
            elif offsets[0] not in allowed:
                problems.append(f"{group}: {number} acknowledged, {offsets[0]} found")
        if found.next_producer_id <= self.producer_id:
            problems.append(f"producer id {found.next_producer_id} was given before")
        return problems

    def _broken_records(self, found: Recovered, name: str, round_: int, partition: int) -> list[str]:
        start, values = found.records[name, partition]
        where = f"{name}-{partition}"
        batches = self.sent.get((name, round_, partition), [])
        flat = [value for batch in batches for value in batch]
        ends = [0]
        for batch in batches:
            ends.append(ends[-1] + len(batch))
        end = start + len(values)
        problems = []
        if values != flat[start:end]:
            problems.append(f"{where}: not the records that were sent")
        if end not in ends:
            problems.append(f"{where}: a batch is half there, the log ends at {end}")
        if end < self.acked.get((name, round_, partition), 0):
            problems.append(f"{where}: ends at {end}, {self.acked[name, round_, partition]} acknowledged")
        if round_ == 1:
            if start > self.start_asked.get((name, partition), 0):
                problems.append(f"{where}: begins at {start}, nobody asked for that")
            if start < self.start_acked.get((name, partition), 0):
                problems.append(f"{where}: begins at {start}, records deleted before are back")
        return problems
