"""What must be true of the core between two events: every index against what it is about, epochs, owners, counts.

The records are checked by kcoord/history/invariants.py; this is about the state in memory that replay and handlers make
of them. `timer_problems` (tests/scenarios/timer_check.py) does the same for timers.
"""

from __future__ import annotations

from kcoord.core.coordinator import Core
from kcoord.core.groups import classic
from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup, increment, is_settled
from kcoord.core.groups.invariants import InvariantBroken, check_counts
from kcoord.core.groups.members import STATIC_LEAVE_EPOCH, UNREVOKED_PARTITIONS, PartitionEpochs
from kcoord.core.groups.store import GroupStore
from kcoord.core.offsets.pending import PendingOffsets, Producer
from kcoord.core.offsets.state import OffsetState
from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.engine.engine import Engine
from kcoord.engine.session import CLOSED, Session

# Engines with more than so many members and offsets are checked less often: each check looks at all of them.
SMALL_SIZE_MAX = 500


def core_problems(core: Core) -> list[str]:
    """What is wrong with the state of a core, if anything."""
    store = core.groups
    problems: list[str] = []
    for group_id in dict.fromkeys([*store.groups, *store.consumer_groups]):
        consumer, live = store.consumer_groups.get(group_id), store.groups.get(group_id)
        try:
            check_counts(group_id, consumer, live)
        except InvariantBroken as broken:
            problems.append(str(broken))
        for group in (consumer, live):
            if group is not None and (group.group_id != group_id or group.log is not store.log_of(group_id)):
                problems.append(f"{group_id}: it is {group.group_id} in {group.log}")
    for consumer_group in store.consumer_groups.values():
        problems += [f"{consumer_group.group_id}: {text}" for text in consumer_problems(consumer_group)]
    for classic_group in store.groups.values():
        problems += [f"{classic_group.group_id}: {text}" for text in classic_problems(classic_group)]
    return problems + store_problems(store) + offset_problems(core.offsets)


def store_problems(store: GroupStore) -> list[str]:
    if store.timers.touched:
        return [f"members whose timers nobody has looked at: {store.timers.touched}"]
    return []


def _different(name: str, index: object, members: object) -> list[str]:
    return [] if index == members else [f"{name} is {index!r}, its members say {members!r}"]


def consumer_problems(group: ConsumerGroup) -> list[str]:
    """Indexes, owners and epochs of a consumer group."""
    names: dict[str, int] = {}
    regexes: dict[str, int] = {}
    assignors: dict[str, int] = {}
    protocols: dict[str, int] = {}
    static: dict[str, str] = {}
    matched: dict[str, int] = {}
    for member_id, member in group.members.items():
        if member.instance_id is not None:
            static[member.instance_id] = member_id
        for name in member.topic_names:
            increment(names, name)
        increment(regexes, member.regex())
        increment(assignors, member.server_assignor)
        if member.classic is not None:
            for protocol in member.classic.supported_protocols:
                increment(protocols, protocol.name)
    settled: dict[int, int] = {}
    for member in group.members.values():
        if is_settled(member):
            settled[member.member_epoch] = settled.get(member.member_epoch, 0) + 1
    for resolved in group.resolved_regexes.values():
        for name in resolved.topics:
            increment(matched, name)
    members = group.members.values()
    found = _different("static_members", group.static_members, static)
    found += _different("name_counts", group.name_counts, names)
    found += _different("regex_counts", group.regex_counts, regexes)
    found += _different("regex_topic_counts", group.regex_topic_counts, matched)
    found += _different("assignor_counts", group.assignor_counts, assignors)
    found += _different("classic_protocol_counts", group.classic_protocol_counts, protocols)
    found += _different("settled_counts", group.settled_counts, settled)
    found += _different("classic_members", group.classic_members, sum(m.classic is not None for m in members))
    found += _different(
        "client_assignor_members", group.client_assignor_members, sum(bool(m.client_assignors) for m in members)
    )
    found += [f"a target for {who}, who is not a member" for who in group.targets if who not in group.members]
    found += [f"an answer for {who}, who has no target" for who in group.answers if who not in group.targets]
    return found + _owner_problems(group) + _epoch_problems(group)


def _owner_problems(group: ConsumerGroup) -> list[str]:
    """A partition is with one member at most, and the index knows in which epoch."""
    found: list[str] = []
    owners: PartitionEpochs = {}
    for member_id, member in group.members.items():
        for partitions in (member.assigned, member.revoking):
            for topic_id, of_topic in partitions.items():
                of_owner = owners.setdefault(topic_id, {})
                for partition in of_topic:
                    if partition in of_owner:
                        found.append(f"partition {partition} of {topic_id.hex()} is with {member_id} and another one")
                    of_owner[partition] = member.member_epoch
    owners = {topic_id: of_topic for topic_id, of_topic in owners.items() if of_topic}
    return found + _different("partition_epochs", group.partition_epochs, owners)


def _epoch_problems(group: ConsumerGroup) -> list[str]:
    found: list[str] = []
    if group.assignment_epoch > group.epoch:
        found.append(f"the assignment is of epoch {group.assignment_epoch}, the group in {group.epoch}")
    for member_id, member in group.members.items():
        if member.member_id != member_id:
            found.append(f"{member_id} is {member.member_id}")
        if member.member_epoch > group.epoch:
            found.append(f"{member_id} is in epoch {member.member_epoch}, the group in {group.epoch}")
        # A static member that left for a while keeps its state, as in a broker, and has nothing left to give up.
        has_left = member.member_epoch == STATIC_LEAVE_EPOCH
        if not has_left and (member.state == UNREVOKED_PARTITIONS) != bool(member.revoking):
            found.append(f"{member_id} is in state {member.state} and gives up {member.revoking}")
    return found


def classic_problems(group: ClassicGroup) -> list[str]:
    """Indexes, counts and the state of a classic group."""
    supported: dict[str, int] = {}
    static: dict[str, str] = {}
    for member_id, member in group.members.items():
        if member.group_instance_id is not None:
            static[member.group_instance_id] = member_id
        for protocol in member.protocols:
            supported[protocol.name] = supported.get(protocol.name, 0) + 1
    joining = sum(member.is_awaiting_join() for member in group.members.values())
    found = _different("static_members", group.static_members, static)
    found += _different("supported_protocols", group.supported_protocols, supported)
    found += _different("awaiting_join", group.awaiting_join, joining)
    found += [f"{who} is pending and a member" for who in group.pending_members if who in group.members]
    found += [f"{who} has to sync and is not a member" for who in group.pending_sync if who not in group.members]
    if group.state not in classic.TRANSITIONS or group.state == classic.DEAD:
        found.append(f"it is {group.state}")
    if group.state == classic.EMPTY and group.members:
        found.append(f"it is Empty with members {list(group.members)}")
    if group.state in (classic.STABLE, classic.COMPLETING_REBALANCE) and not group.members:
        found.append(f"it is {group.state} without members")
    if group.members and group.leader_id not in group.members:
        found.append(f"its leader {group.leader_id} is not a member")
    if joining and group.state != classic.PREPARING_REBALANCE:
        found.append(f"{joining} members wait for a join, and it is {group.state}")
    waiting = [who for who, member in group.members.items() if member.is_awaiting_sync()]
    if waiting and group.state != classic.COMPLETING_REBALANCE:
        found.append(f"{waiting} wait for an assignment, and it is {group.state}")
    value = group.value
    if group.state == classic.STABLE and value is not None and value.generation != group.generation_id:
        found.append(f"it is Stable in generation {group.generation_id}, its record says {value.generation}")
    return found


def offset_problems(offsets: OffsetState) -> list[str]:
    """The number of committed offsets, and the index by topic."""
    by_topic: dict[str, dict[str, bool]] = {}
    count = 0
    for group_id, of_group in offsets.by_group.items():
        for topic, of_topic in of_group.items():
            count += len(of_topic)
            by_topic.setdefault(topic, {})[group_id] = True
    found = [f"offsets: {text}" for text in _different("groups_by_topic", offsets.groups_by_topic, by_topic)]
    found += [f"offsets: {text}" for text in _different("count", offsets.count, count)]
    found += [
        f"offsets: {group_id} has offsets and is no group"
        for group_id in [*offsets.by_group, *offsets.pending.by_group]
        if not offsets.groups.is_known(group_id)
    ]
    for group_id, of_group in offsets.by_group.items():
        for topic, of_topic in of_group.items():
            gone = [index for index, stored in of_topic.items() if not stored.is_current]
            found += [f"offsets: {group_id} {topic} {index} is committed and not current" for index in gone]
    return found + _pending_problems(offsets.pending)


def _pending_problems(pending: PendingOffsets) -> list[str]:
    """The index of pending offsets by group."""
    index: dict[str, dict[str, dict[int, dict[Producer, StoredOffset]]]] = {}
    found: list[str] = []
    for producer, of_producer in pending.by_producer.items():
        if not of_producer:
            found.append(f"pending: producer {producer} has no offsets")
        for (group_id, topic, partition), stored in of_producer.items():
            of_group = index.setdefault(group_id, {})
            of_group.setdefault(topic, {}).setdefault(partition, {})[producer] = stored
    return found + [f"pending: {text}" for text in _different("by_group", pending.by_group, index)]


def _remembered_problems(session: Session, offsets: OffsetState) -> list[str]:
    """Committed offsets that a session remembers as current, and that are not those of their partitions."""
    head = session.commit_head
    found: list[str] = []
    for topic, one in head.topic_commits.items() if head is not None else ():
        for index, stored in zip(one.indexes, one.stored, strict=True):
            if head is not None and stored.is_current and offsets.get(head.group_id, topic, index) is not stored:
                found.append(f"session {session.id} remembers another offset of {topic}-{index}")
    return found


def _release_problems(engine: Engine) -> list[str]:
    """Whether every session with answers is looked at by the release that may let them go."""
    outbox = engine.outbox
    touched = {session.id for session in outbox.touched}
    held = {session.id for session in outbox.held}
    found = _different("sessions to look at", len(touched | held), len(outbox.touched) + len(outbox.held))
    for session in engine.sessions.values():
        is_listed = session.id in touched or session.id in held
        if session.is_waiting != is_listed or (session.chunks and not is_listed):
            found.append(f"session {session.id} is listed for a release: {is_listed}, chunks: {len(session.chunks)}")
        if session.id in held and (not session.chunks or session.chunks[0].wait_seq <= outbox.released_seq):
            found.append(f"session {session.id} is held, and waits for nothing")
    return found


def engine_problems(engine: Engine) -> list[str]:
    """What is wrong with an engine between two of its calls: sessions, parked requests, commits; the core if small."""
    found: list[str] = []
    parked = engine.applier.parked
    for request_id, pending in parked.items():
        session = pending.session
        if session.state == CLOSED or session.parked_request_id != request_id or pending.body is not None:
            found.append(f"request {request_id} is parked, and its session waits for {session.parked_request_id}")
    held = 0
    for session in engine.sessions.values():
        held += session.owed_bytes + session.buffered_bytes
        if session.parked_request_id and session.parked_request_id not in parked and not session.close_reason:
            found.append(f"session {session.id} waits for {session.parked_request_id}, which is not parked")
        numbers = [chunk.wait_seq for chunk in session.chunks]
        if numbers != sorted(numbers):
            found.append(f"session {session.id} has chunks that wait for {numbers}")
        found += _remembered_problems(session, engine.core.offsets)
    found += _release_problems(engine)
    found += _different("held_bytes", engine.pool.held_bytes, held)
    commits = engine.commits
    in_flight = commits.in_flight is not None
    if commits.durable_seq != commits.open_seq - 1 - in_flight:
        found.append(f"commit {commits.durable_seq} is durable, {commits.open_seq} open, one in flight: {in_flight}")
    store = engine.core.groups
    size = engine.core.offsets.count + sum(len(group.members) for group in store.consumer_groups.values())
    if size + sum(len(group.members) for group in store.groups.values()) <= SMALL_SIZE_MAX:
        found += core_problems(engine.core)
    return found
