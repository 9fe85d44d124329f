"""One turn does only so much, in an order that is fair, and all answers together hold only so much."""

from __future__ import annotations

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.consumer.regex import REGEX_CHECK_COST
from kcoord.core.outcome import Now
from kcoord.engine.budget import (
    RECORD_BYTES_PER_COST,
    SMALL_REQUEST_BYTES,
    TIMERS_MAX,
    TURN_COST_MAX,
    TURN_RESERVE,
)
from kcoord.engine.engine import Engine
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_memory_engine,
    read_answers,
    request_frame,
    take_output,
)
from tests.unit.engine.test_engine_limits import create, fetch_request, produce_request

NOW = Now(1000, 1_700_000_000_000)
POOL_BYTES = 8_000_000


def large_commit(group: str) -> OffsetCommitRequest:
    """A little more than half of what a turn may cost."""
    partition = OffsetCommitRequestPartition(0, 1, -1, "m" * 4000)
    topics = [OffsetCommitRequestTopic("t", partitions=[partition] * (TURN_COST_MAX // 7000))]
    return OffsetCommitRequest(group, topics=topics)


def answered(client: Client) -> list[int]:
    return [answer[0] for answer in read_answers(take_output(client.session))]


@pytest.fixture
def engine() -> Engine:
    config = CoreConfig()
    config.queued_response_bytes_max = POOL_BYTES
    engine = open_memory_engine(NOW, config=config)
    create(Client(engine), "t")
    return engine


def test_a_turn_ends_when_its_budget_is_spent_and_the_next_one_continues(engine: Engine) -> None:
    client = Client(engine)
    sent = [client.send(apis.OFFSET_COMMIT, 8, large_commit("g"), NOW) for _ in range(7)]
    done: list[int] = []
    turns = 0
    while len(done) < len(sent):
        engine.end_turn(NOW)
        some = answered(client)
        assert 1 <= len(some) <= 3, "a turn does some work, and only so much"
        done += some
        turns += 1
        assert engine.has_more() == (len(done) < len(sent))
    assert done == sent
    assert turns >= 3


def test_small_requests_of_others_do_not_queue_after_large_ones(engine: Engine) -> None:
    greedy, other = Client(engine), Client(engine)
    for _ in range(20):
        greedy.send(apis.OFFSET_COMMIT, 8, large_commit("g"), NOW)
    assert engine.backlogs.queue, "the greedy one waits"
    beat = other.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    engine.end_turn(NOW)
    assert answered(other) == [beat]
    assert engine.has_more()


def test_small_requests_are_bounded_too(engine: Engine) -> None:
    clients = [Client(engine) for _ in range(20)]
    frame = request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("g" * 3000, 1, "m"), 1)
    assert len(frame) < SMALL_REQUEST_BYTES
    for client in clients:
        engine.receive(client.session, frame * 50, NOW)
    engine.end_turn(NOW)
    handled = sum(len(answered(client)) for client in clients)
    assert handled * len(frame) <= TURN_COST_MAX + TURN_RESERVE + len(frame)
    while engine.has_more():
        engine.end_turn(NOW)
        handled += sum(len(answered(client)) for client in clients)
    assert handled == 50 * len(clients)


def test_those_who_wait_take_turns(engine: Engine) -> None:
    clients = [Client(engine) for _ in range(4)]
    for client in clients:
        for _ in range(8):
            client.send(apis.OFFSET_COMMIT, 8, large_commit("g"), NOW)
    counts = {client.session.id: 0 for client in clients}
    for _ in range(8):
        engine.end_turn(NOW)
        for client in clients:
            counts[client.session.id] += len(answered(client))
    assert min(counts.values()) > 0, "nobody waits until another one has had all"


def test_a_spent_budget_still_serves_one_queued_session(engine: Engine) -> None:
    greedy = Client(engine)
    for _ in range(4):
        greedy.send(apis.OFFSET_COMMIT, 8, large_commit("g"), NOW)
    before = len(answered(greedy))
    for _ in range(2):
        others = [Client(engine) for _ in range(200)]
        frame = request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("g" * 3000, 1, "m"), 1)
        for other in others:
            engine.receive(other.session, frame, NOW)
        assert engine.budget.is_spent
        engine.end_turn(NOW)
    assert len(answered(greedy)) - before >= 2


def test_after_a_request_far_over_the_budget_the_queue_waits_one_turn(engine: Engine) -> None:
    """Two such requests in one turn would make it twice as long. The queue comes next, whatever else arrives."""
    greedy = Client(engine)
    partition = OffsetCommitRequestPartition(0, 1, -1, "m" * 4000)
    topics = [OffsetCommitRequestTopic("t", partitions=[partition] * ((TURN_COST_MAX + TURN_RESERVE) // 3800))]
    huge = OffsetCommitRequest("g", topics=topics)
    sent = [greedy.send(apis.OFFSET_COMMIT, 8, huge, NOW) for _ in range(2)]
    engine.end_turn(NOW)
    assert answered(greedy) == sent[:1]
    Client(engine).send(apis.OFFSET_COMMIT, 8, huge, NOW)
    engine.end_turn(NOW)
    assert answered(greedy) == sent[1:]


def test_the_most_expensive_request_of_a_turn_is_known_afterwards(engine: Engine) -> None:
    one, two = Client(engine), Client(engine, "10.1.1.1")
    one.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    two.send(apis.OFFSET_COMMIT, 8, large_commit("g"), NOW)
    one.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    engine.end_turn(NOW)
    assert engine.budget.top_api_key == apis.OFFSET_COMMIT
    assert engine.budget.top_client == "10.1.1.1"
    one.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    engine.end_turn(NOW)
    assert engine.budget.top_api_key == apis.HEARTBEAT


def test_many_waiting_fetches_are_answered_in_several_turns(engine: Engine) -> None:
    producer = Client(engine)
    for _ in range(3):
        producer.ask(apis.PRODUCE, 9, produce_request("t", 700_000), NOW)
    waiting = [Client(engine) for _ in range(40)]
    for client in waiting:
        # The first one reads what is there, the second one waits for more than that.
        partition = FetchPartition(0, fetch_offset=2, partition_max_bytes=1 << 30)
        body = FetchRequest(
            max_wait_ms=5000, min_bytes=800_000, max_bytes=1 << 30, session_epoch=-1,
            topics=[FetchTopic("t", partitions=[partition])],
        )  # fmt: skip
        client.send(apis.FETCH, 11, body, NOW)
    while engine.has_more():
        engine.end_turn(NOW)
    producer.send(apis.PRODUCE, 9, produce_request("t", 700_000), NOW)
    engine.end_turn(NOW)
    turns = 0
    done = 0
    for _ in range(200):
        done += sum(len(answered(client)) for client in waiting)
        if done == len(waiting):
            break
        engine.end_turn(NOW)
        turns += 1
    assert done == len(waiting)
    assert turns > 1


def test_timers_that_are_due_at_once_fire_in_several_turns(engine: Engine) -> None:
    clients = [Client(engine) for _ in range(TIMERS_MAX + 10)]
    for client in clients:
        client.send(apis.FETCH, 11, fetch_request("t", 0, max_wait_ms=100), NOW)
        engine.end_turn(NOW)
    later = Now(NOW.mono_ms + 100, NOW.wall_ms + 100)
    engine.fire_timers(later)
    engine.end_turn(later)
    first = sum(len(answered(client)) for client in clients)
    assert 0 < first <= TIMERS_MAX
    assert engine.next_deadline_ms() <= later.mono_ms, "the server is to call again at once"
    while engine.next_deadline_ms() in range(later.mono_ms + 1):
        engine.fire_timers(later)
        engine.end_turn(later)
    assert first + sum(len(answered(client)) for client in clients) == len(clients)


def flooded_turn(engine: Engine, now: Now) -> None:
    """A turn with timers, in which requests have spent all that they may."""
    engine.budget.spent += TURN_COST_MAX + TURN_RESERVE
    engine.fire_timers(now)
    engine.budget.spent += TURN_COST_MAX + TURN_RESERVE
    engine.end_turn(now)


def test_timers_fire_beside_a_flood(engine: Engine) -> None:
    """The first rebalance of a classic group, and many fetches whose time is over."""
    member = Client(engine)
    protocols = [JoinGroupRequestProtocol("range", b"")]
    member.send(apis.JOIN_GROUP, 3, JoinGroupRequest("g", 6000, 6000, "", None, "consumer", protocols), NOW)
    engine.end_turn(NOW)
    assert not answered(member)
    flooded_turn(engine, NOW)
    assert len(answered(member)) == 1
    clients = [Client(engine) for _ in range(TIMERS_MAX)]
    for client in clients:
        client.send(apis.FETCH, 11, fetch_request("t", 0, max_wait_ms=100), NOW)
        engine.end_turn(NOW)
    later = Now(NOW.mono_ms + 100, NOW.wall_ms + 100)
    turns, done = 0, 0
    while done < len(clients):
        flooded_turn(engine, later)
        done += sum(len(answered(client)) for client in clients)
        turns += 1
    assert 1 < turns < 10


def test_the_first_rebalance_of_a_group_waits_for_no_other_timer(engine: Engine) -> None:
    member, reader = Client(engine), Client(engine)
    reader.send(apis.FETCH, 11, fetch_request("t", 0, max_wait_ms=1), NOW)
    later = Now(NOW.mono_ms + 1, NOW.wall_ms + 1)
    engine.end_turn(later)
    assert engine.next_deadline_ms() == later.mono_ms and not engine.fire_prompt_timers(later)
    protocols = [JoinGroupRequestProtocol("range", b"")]
    member.send(apis.JOIN_GROUP, 3, JoinGroupRequest("g", 6000, 6000, "", None, "consumer", protocols), NOW)
    engine.end_turn(later)
    assert engine.next_deadline_ms() == NOW.mono_ms
    assert engine.fire_prompt_timers(later)
    engine.end_turn(later)
    assert len(answered(member)) == 1 and not answered(reader)
    assert engine.next_deadline_ms() == later.mono_ms
    engine.fire_timers(later)
    engine.end_turn(later)
    assert len(answered(reader)) == 1


def test_parked_requests_are_answered_beside_a_flood(engine: Engine) -> None:
    producer, reader = Client(engine), Client(engine)
    reader.send(apis.FETCH, 11, fetch_request("t", 0, max_wait_ms=60_000), NOW)
    engine.end_turn(NOW)
    producer.send(apis.PRODUCE, 9, produce_request("t", 1000), NOW)
    flooded_turn(engine, NOW)
    flooded_turn(engine, NOW)
    assert fetched_bytes(reader) > 1000


def test_what_follows_a_commit_is_done_beside_a_flood(engine: Engine) -> None:
    client = Client(engine)
    client.ask(apis.OFFSET_COMMIT, 8, large_commit("g"), NOW)
    client.send(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    turns = 0
    while not turns or engine.has_more():
        flooded_turn(engine, NOW)
        turns += 1
        assert turns < 10
    assert len(answered(client)) == 1
    body = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g")])
    assert client.ask(apis.OFFSET_FETCH, 8, body, NOW).groups[0].topics == []


def fetched_bytes(client: Client) -> int:
    ((_, rest),) = read_answers(take_output(client.session))
    answer = decode_answer(apis.FETCH, 11, rest)
    return sum(len(p.records or b"") for topic in answer.responses for p in topic.partitions)


def test_fetch_answers_shrink_as_the_pool_empties(engine: Engine) -> None:
    producer = Client(engine)
    for _ in range(40):
        producer.ask(apis.PRODUCE, 9, produce_request("t", 100_000), NOW)
    lazy = [Client(engine) for _ in range(300)]
    sizes: list[int] = []
    for client in lazy:
        before = engine.pool.held_bytes
        client.send(apis.FETCH, 11, fetch_request("t", 0), NOW)
        finish_turn(engine, NOW)
        # The server takes the answer, and its client does not read it.
        size = sum(len(piece) for piece in client.session.take_pieces())
        client.session.note_buffered(size)
        assert engine.pool.held_bytes == before + size
        sizes.append(size)
    assert sizes[0] > 400_000
    assert sizes[-1] < 100
    assert engine.pool.held_bytes < POOL_BYTES + 300_000
    assert sorted(sizes, reverse=True) == sizes
    # Bytes return to the pool when they are read, and when connections end.
    for client in lazy[:10]:
        client.session.note_buffered(0)
    for client in lazy[10:]:
        engine.close_session(client.session, NOW)
    assert engine.pool.held_bytes == 0
    reader = Client(engine)
    reader.send(apis.FETCH, 11, fetch_request("t", 0), NOW)
    finish_turn(engine, NOW)
    assert fetched_bytes(reader) > 400_000


def test_a_fetch_that_found_the_pool_empty_is_answered_when_the_pool_has_space(engine: Engine) -> None:
    producer, lazy, reader = Client(engine), Client(engine), Client(engine)
    producer.ask(apis.PRODUCE, 9, produce_request("t", 100_000), NOW)
    lazy.session.note_buffered(POOL_BYTES)
    reader.send(apis.FETCH, 11, fetch_request("t", 0, max_wait_ms=60_000), NOW)
    finish_turn(engine, NOW)
    assert not answered(reader)
    lazy.session.note_buffered(0)
    engine.end_turn(NOW)
    assert fetched_bytes(reader) > 100_000


def test_other_answers_count_in_the_pool(engine: Engine) -> None:
    client = Client(engine)
    for _ in range(20):
        client.send(apis.METADATA, 9, MetadataRequest(), NOW)
    finish_turn(engine, NOW)
    held = engine.pool.held_bytes
    assert held == client.session.owed_bytes > 0
    assert len(take_output(client.session)) == held
    assert engine.pool.held_bytes == 0


def test_checks_of_patterns_use_up_a_turn(engine: Engine) -> None:
    """A short pattern may take milliseconds to compile: its bytes say nothing."""
    client = Client(engine)
    sent = []
    for number in range(20):
        request = ConsumerGroupHeartbeatRequest(
            "k", f"m{number}", 0, None, None, 60_000, [], f"pattern-{number}", None, []
        )
        sent.append(client.send(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, NOW))
    engine.end_turn(NOW)
    first = answered(client)
    # One more than fresh requests may use: the queue goes on with at least one.
    assert 0 < len(first) <= (TURN_COST_MAX + TURN_RESERVE) // REGEX_CHECK_COST + 1
    assert engine.has_more()
    done = first
    while engine.has_more():
        engine.end_turn(NOW)
        done += answered(client)
    assert done == sent
    # Whoever brings a pattern that the group has already costs no check.
    joins = [
        client.send(
            apis.CONSUMER_GROUP_HEARTBEAT,
            1,
            ConsumerGroupHeartbeatRequest("k", f"n{number}", 0, None, None, 60_000, [], "pattern-1", None, []),
            NOW,
        )
        for number in range(20)
    ]
    engine.end_turn(NOW)
    assert answered(client) == joins


def test_metadata_of_offsets_counts_in_the_turn_that_encodes_it() -> None:
    """It goes out as it is encoded, not copied, and so many bytes are still work."""
    engine = open_memory_engine(NOW)
    clients = [Client(engine) for _ in range(3)]
    create(clients[0], "t")
    metadata = ["\u00e4" * 2000, "m" * 4000, "short"]
    for index, text in enumerate(metadata):
        topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1, -1, text)])
        clients[0].ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(f"g{index}", topics=[topic]), NOW)
    for index, text in enumerate(metadata):
        for version, body in (
            (7, OffsetFetchRequest(f"g{index}", None)),
            (9, OffsetFetchRequest(groups=[OffsetFetchRequestGroup(f"g{index}", topics=None)])),
        ):
            engine.budget.end_turn()
            clients[1].send(apis.OFFSET_FETCH, version, body, NOW)
            spent = engine.budget.spent
            engine.end_turn(NOW)
            pieces = [piece for piece in clients[1].session.take_pieces() if isinstance(piece, bytes)]
            assert sum(text.encode() in piece for piece in pieces) == 1
            if text != "short":
                assert text.encode() in pieces, "it is a piece of its own"
                small = sum(len(piece) for piece in pieces if piece != text.encode())
                assert spent >= small + len(text.encode()) // RECORD_BYTES_PER_COST
            (answer,) = read_answers(b"".join(pieces))
            response = decode_answer(apis.OFFSET_FETCH, version, answer[1])
            topics = response.topics if version == 7 else response.groups[0].topics
            assert topics[0].partitions[0].metadata == text
            assert engine.pool.held_bytes == 0
