"""The rules about groups: each is broken by hand and found; what a broker and the core write breaks none of them,
whole or compacted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.coordinator import Core
from kcoord.core.groups.consumer import ResolvedRegex
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.records import (
    current_record,
    current_tombstone,
    epoch_record,
    member_record,
    member_tombstone,
    regex_record,
    target_epoch_record,
    target_record,
    target_tombstone,
)
from kcoord.core.outcome import LogId, Outcome
from kcoord.history.invariants import NEVER, GroupInvariants, ProducerEpochs
from kcoord.log.serde import decode_record
from kcoord.protocol.records.consumer_group_metadata import ConsumerGroupMetadataKey
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.topic_record import TopicRecord
from tests.golden.make_broker_answers_consumer import ANSWERS, read
from tests.harness.group_records import (
    LOG,
    Left,
    Pair,
    check,
    compacted,
    offsets_core,
    recorded_pairs,
    whole,
)
from tests.scenarios.runner import Scenario
from tests.scenarios.script import parse_script
from tests.unit.core.consumer.mixed_crowd import Crowd

TOPIC = b"t" * 16
SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def pair(record: Any) -> Pair:
    return record.key, record.value


def epoch(number: int) -> Pair:
    return pair(epoch_record("g", number, 7))


def target_epoch(number: int) -> Pair:
    return pair(target_epoch_record("g", number, 1))


def member(name: str) -> Pair:
    return pair(member_record("g", ConsumerMember(name)))


def target(name: str, *partitions: int) -> Pair:
    return pair(target_record("g", name, {TOPIC: list(partitions)}))


def current(name: str, number: int, *partitions: int, revoking: tuple[int, ...] = ()) -> Pair:
    made = ConsumerMember(name)
    made.member_epoch = number
    made.assigned = {TOPIC: dict.fromkeys(partitions, number)}
    made.revoking = {TOPIC: dict.fromkeys(revoking, number)}
    return pair(current_record("g", made))


def gone(name: str) -> list[Pair]:
    tombstones = (current_tombstone("g", name), target_tombstone("g", name), member_tombstone("g", name))
    return [pair(record) for record in tombstones]


def no_target_epoch() -> Pair:
    return ConsumerGroupTargetAssignmentMetadataKey("g"), None


def no_group() -> Pair:
    return ConsumerGroupMetadataKey("g"), None


def classic(generation: int, *members: str, leader: str | None = None, instance: str | None = None) -> Pair:
    listed = [MemberMetadata(name, instance, "c", "/h", 1, 1, b"", b"") for name in members]
    lead = leader or (members[0] if members else None)
    protocol = "range" if members else None
    return GroupMetadataKey("g"), GroupMetadataValue("consumer", generation, protocol, lead, 1, listed)


def commit() -> Pair:
    return OffsetCommitKey("g", "t", 0), OffsetCommitValue(1)


def without_protocol() -> GroupMetadataValue:
    return GroupMetadataValue("consumer", 4, None, "a", 1, [MemberMetadata("a", None, "c", "/h", 1, 1, b"", b"")])


# Two members, a has partitions 0 and 1 and b has 2, in epoch 3. Offsets 0 to 8.
GROUP: list[Pair] = [
    member("a"),
    member("b"),
    epoch(3),
    target("a", 0, 1),
    target("b", 2),
    target_epoch(3),
    current("a", 3, 0, 1),
    current("b", 3, 2),
    pair(regex_record("g", "t.*", ResolvedRegex(["t"], 1, 1))),
]
ALL_GONE: list[Pair] = [*gone("a"), *gone("b"), no_target_epoch(), no_group()]


def broken(*batches: list[Pair], expect: int = 0) -> list[tuple[str, int]]:
    """(rule, offset) of what is found in these batches behind GROUP."""
    return [(found.rule, found.offset) for found in check(whole([GROUP, *batches]), expect)]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([epoch(2)], [("group epoch", 9)]),
        ([epoch(4), target_epoch(4), target_epoch(3)], [("assignment epoch", 11)]),
        ([target_epoch(4)], [("assignment epoch", 9)]),
        ([current("a", 4, 0, 1)], [("member epoch", 9)]),
        ([current("b", 3, 1, 2)], [("ownership", 9)]),
        ([current("b", 3, 2, revoking=(0,))], [("ownership", 9)]),
        ([current("c", 3, 4)], [("members", 9)]),
        ([target("c", 4)], [("members", 9)]),
        ([pair(member_tombstone("g", "a"))], [("members", 9), ("members", 9)]),
        ([*gone("a"), pair(target_tombstone("g", "b")), no_target_epoch(), no_group()], [("removal", 14)]),
        ([*gone("a"), *gone("b"), no_group()], [("removal", 15)]),
        ([*gone("a"), *gone("b"), target("c"), no_target_epoch(), no_group()], [("removal", 17)]),
        ([classic(4, "a")], [("kind", 9)]),
        ([*ALL_GONE, classic(4, "a"), *GROUP], [("kind", 18)]),
        ([*ALL_GONE, classic(4, "a"), classic(3, "a")], [("generation", 18)]),
        ([*ALL_GONE, classic(-4)], [("generation", 17)]),
        ([*ALL_GONE, (GroupMetadataKey("g"), without_protocol())], [("members", 17)]),
        # Once it is said, what was left is forgotten.
        ([no_target_epoch(), no_group(), classic(4, "a")], [("removal", 10)]),
        ([*ALL_GONE, classic(4, "a", "a")], [("members", 17)]),
        ([*ALL_GONE, classic(4, "a", leader="b")], [("members", 17)]),
        ([*ALL_GONE, classic(4, "a", "b", instance="i")], [("members", 17)]),
    ],
)
def test_each_rule(batch: list[Pair], expected: list[tuple[str, int]]) -> None:
    assert broken(batch) == expected


@pytest.mark.parametrize(
    "batches",
    [
        [],
        # Partition 0 goes from a to b: within a batch the order does not matter.
        [[current("b", 3, 0, 2), current("a", 3, 1)]],
        [[current("a", 3, 1, revoking=(0,))], [epoch(4)], [current("a", 3, 1)], [current("b", 4, 0, 2)]],
        # A member may own what it is giving up, too, and be away (a static one).
        [[current("a", 3, 0, 1, revoking=(0,))], [current("a", -2, 0, 1)]],
        # Gone and new within one batch, with lower epochs.
        [[*ALL_GONE, member("b"), epoch(1), current("b", 1, 0, 1, 2)]],
        [ALL_GONE, [member("b"), epoch(1), current("b", 1, 0, 1, 2)]],
        [[*ALL_GONE, classic(3, "a")], [classic(4)], [(GroupMetadataKey("g"), None), *GROUP]],
        [
            [*ALL_GONE, classic(2147483647, "a")],
            [classic(1, "a")],
            [(GroupMetadataKey("g"), None), classic(0)],
        ],
        # Tombstones for nothing, and offsets without a group.
        [ALL_GONE, ALL_GONE, [(OffsetCommitKey("g", "t", 0), OffsetCommitValue(1))]],
        [ALL_GONE, [(OffsetCommitKey("g", "t", 0), OffsetCommitValue(1))], GROUP],
        # A broker forgot the group when it was empty; the next one's assignment may take its time.
        [
            [*gone("a"), *gone("b"), epoch(4)],
            [(GroupMetadataKey("g"), None), member("c"), epoch(2), target_epoch(2)],
        ],
        [[*gone("a"), *gone("b"), epoch(4), member("c"), epoch(2), current("c", 2)], [target_epoch(2)]],
        [
            [*gone("a"), *gone("b"), epoch(4)],
            [classic(1, "c")],
            [(GroupMetadataKey("g"), None), member("c"), epoch(2)],
        ],
        # A member that is replaced.
        [[*gone("a"), member("c"), target("c", 0, 1), current("c", 3, 0, 1)]],
        [[epoch(2147483647)], [target_epoch(2147483647)]],
    ],
)
def test_what_is_right(batches: list[list[Pair]]) -> None:
    assert broken(*batches) == []


def test_ownership_is_looked_at_between_batches() -> None:
    assert broken([current("b", 3, 0, 2)], [current("a", 3, 1)]) == [("ownership", 9)]
    # Who gave up and who took over is known later on, too.
    steps = [[current("a", 3, 0)], [current("b", 3, 1, 2)], [current("a", 3, 0, 1)]]
    assert broken(*steps) == [("ownership", 11)]


def test_texts_name_the_topic() -> None:
    core = offsets_core()
    core.replay(core.metadata_log, 2, None, TopicRecord("orders", TOPIC))
    (found,) = check(whole([GROUP, [current("b", 3, 1, 2)]]), core=core)
    assert found.text == "orders-1 is owned by both 'b' and 'a' of group 'g'" and found.group == "g"
    (found,) = check(whole([GROUP, [current("b", 3, 1, 2)]]))
    assert found.text.startswith(f"{TOPIC.hex()}-1 is owned by")


def test_a_record_that_cannot_be_replayed_ends_what_is_known_of_its_group() -> None:
    log = whole([GROUP, [(current("b", 3)[0], OffsetCommitValue(1))], [current("c", 9, 0, 1, 2)]])
    (found,) = check(log)
    assert (found.rule, found.offset, found.group) == ("replay", 9, "g")


# --- compacted logs


def test_states_count_from_where_they_are_known() -> None:
    """What compaction leaves of a log that was right is nonsense in between."""
    steps = [[current("a", 3, 1)], [epoch(4), target_epoch(4)], [current("b", 4, 0, 2)], [epoch(5)]]
    log = whole([GROUP, *steps])
    assert check(log) == []
    left = compacted(log, 14)
    nonsense = [("member epoch", 9), ("assignment epoch", 11), ("assignment epoch", 12), ("member epoch", 12)]
    assert [(found.rule, found.offset) for found in check(left)] == nonsense
    assert check(left, expect=14) == []
    assert check(left, expect=100) == [] and check(left, expect=NEVER) == []


def test_what_compaction_took_may_be_the_reason() -> None:
    """Below where states are known, none of these says anything."""
    steps = [
        [epoch(2)],
        [target_epoch(3), target_epoch(2)],
        [no_group()],
        GROUP,
        [classic(4, "a")],
        [member("b")],
    ]
    log = whole([GROUP, *steps])
    found = [violation.rule for violation in check(log)]
    assert found == ["group epoch", "assignment epoch", "removal", "kind", "kind"]
    assert check(log, expect=NEVER) == []


def test_what_is_wrong_at_the_end_of_what_was_compacted_is_found() -> None:
    log = whole([GROUP, [current("b", 3, 1, 2)], [epoch(4)], [epoch(5)]])
    for upto in (10, 11, 12, 100):
        (found,) = check(compacted(log, upto), expect=upto)
        assert (found.rule, found.offset, found.is_of_state) == ("ownership", 9, True)
    assert check(log, expect=NEVER) == []


def test_a_log_that_turns_out_to_be_compacted() -> None:
    rules = GroupInvariants(offsets_core())
    log = whole([GROUP, [current("b", 3, 1, 2)], [commit()], [commit()]])
    found = []
    for end, records in log:
        for offset, key, value in records:
            found += rules.replay(LOG, offset, key, value)
        found += rules.end_batch(LOG, end)
        if end == 10:
            rules.expect(LOG, 12)
    # Said too early, and once more when it is known.
    assert [(violation.rule, violation.offset) for violation in found] == [("ownership", 9), ("ownership", 9)]


def test_after_a_gap_only_records_of_one_key_are_compared() -> None:
    rules = GroupInvariants(offsets_core())
    broken_states = [epoch(5), epoch(1), current("a", 9)]
    log = whole([GROUP, [current("b", 3, 1, 2)], broken_states, [classic(2, "x")], [classic(1, "x")]])
    found = []
    for end, records in log:
        for offset, key, value in records:
            found += rules.replay(LOG, offset, key, value)
        if end == 9:
            rules.lost(LOG)
        found += rules.end_batch(LOG, end)
    found += rules.end_log(LOG)
    assert [(violation.rule, violation.offset) for violation in found] == [("generation", 14)]


def sound(log: list[Left], seed: int, rounds: int) -> None:
    """Nothing is wrong with the log, nor with anything that the cleaner may make of it."""
    assert check(log) == []
    end = log[-1][0] if log else 0
    rng = random.Random(seed)
    for round_number in range(rounds):
        # Up to anywhere, also the middle of a batch: a cleaner whose table is full stops there.
        upto = end if round_number == 0 else rng.randrange(end + 1)
        assert check(compacted(log, upto), expect=upto) == [], upto
        assert check(compacted(log, upto, rng), expect=upto) == [], (upto, seed)


@pytest.mark.parametrize("path", sorted(ANSWERS.glob("*.json.gz")), ids=lambda path: path.name.split(".")[0])
def test_nothing_is_wrong_with_what_a_broker_wrote(path: Path) -> None:
    log = whole(recorded_pairs(read(path.name.removesuffix(".json.gz"))["batches"]))
    sound(log, len(path.name), 12)


class BatchedScenario(Scenario):
    """Keeps what is appended, batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Pair]] = []

    def _append(self, core: Core, log_id: LogId, outcome: Outcome) -> None:
        if repr(log_id) == repr(LOG):
            self.batches.append([pair(record) for record in outcome.records])
        super()._append(core, log_id, outcome)


def batches_of(path: Path) -> tuple[list[list[Pair]], Core]:
    scenario = BatchedScenario()
    for block in parse_script(path.read_text()):
        scenario.run(block.command)
    return scenario.batches, scenario.core


FOLDERS = ("consumer", "migration", "classic", "restart")
FILES = sorted(path for folder in FOLDERS for path in (SCENARIOS / folder).glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(SCENARIOS).as_posix() for path in FILES])
def test_nothing_is_wrong_with_what_the_core_writes(path: Path) -> None:
    batches, core = batches_of(path)
    assert core.topics.partition_count(LOG.topic) == 1
    sound(whole(batches), len(path.name), 6)


@pytest.mark.parametrize("seed", range(40, 44))
def test_nothing_is_wrong_while_members_of_both_protocols_come_and_go(seed: int) -> None:
    crowd = Crowd(seed)
    batches: list[list[Pair]] = []
    seen = 0
    for _ in range(250):
        crowd.step()
        stored = crowd.scenario.logs.get(repr(LOG), [])
        # One step is a few batches at most.
        batches.append([decode_record(key or b"", value) for key, value in stored[seen:]])
        seen = len(stored)
    assert seen > 50
    sound(whole(batches), seed, 6)


def test_records_that_are_left_out_are_missed() -> None:
    """The rules are not quiet because they see nothing: most records of a member that leaves are needed."""
    batches, _ = batches_of(SCENARIOS / "migration" / "upgrade_stable.txt")
    found: dict[str, bool] = {}
    for number, batch in enumerate(batches):
        for index in range(len(batch)):
            left = [*batches[:number], batch[:index] + batch[index + 1 :], *batches[number + 1 :]]
            for violation in check(whole(left)):
                found[violation.rule] = True
    assert {"assignment epoch", "member epoch", "members", "kind"} <= set(found)


# --- producers


def test_epochs_of_producers() -> None:
    producers = ProducerEpochs(1000)
    other = LogId("t", 0)
    assert producers.check(LOG, 7, 1, 100) == "" == producers.check(LOG, 7, 1, 150)
    assert producers.check(LOG, 7, 2, 200) == "" == producers.check(LOG, 8, 0, 200) == producers.check(other, 7, 0, 200)
    assert producers.check(LOG, 7, 1, 1199) == "the epoch of producer 7 decreases from 2 to 1"
    assert producers.check(LOG, 7, 3, 1300) == ""
    # The broker had forgotten it.
    assert producers.check(LOG, 7, 0, 2300) == ""
    assert producers.check(LOG, -1, 0, 1) == "" == producers.check(LOG, -1, -1, 1)
