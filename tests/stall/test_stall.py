"""The catalogue of worst frames is complete and legal, and what measures them notices. No test depends on a clock."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoord.core.outcome import Now
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis
from kcoord.wire.primitives import Reader
from tests.stall import __main__ as stall
from tests.stall.catalogue import catalogue, largest, schema_frames
from tests.stall.crowd import Held, crowds, hold
from tests.stall.frames import Frame
from tests.stall.report import PING_MS_MAX, Row, turn_ms_max
from tests.stall.rig import Cost, Turns, measure, measure_apart
from tests.stall.server_rig import Visit, WorldServer
from tests.stall.shapes import elements_max, frame_bytes_max, requests
from tests.stall.worlds import CONTENTS, World, make_world

NOW = Now(1_000, 1_700_000_000_000)
# Worlds a hundred times smaller than those that are measured, and frames smaller still.
SCALE = 0.01
PART = 0.002


@pytest.fixture(scope="module")
def worlds() -> dict[str, World]:
    return {name: make_world(name, MemoryStorage(), NOW, scale=SCALE) for name in CONTENTS}


@pytest.fixture(autouse=True, scope="module")
def frozen(worlds: dict[str, World]) -> Iterator[None]:
    """The collector has nothing to do in the many processes that begin as a copy of this one."""
    gc.freeze()
    yield
    gc.unfreeze()


def decode(data: bytes) -> None:
    """What the engine does first with a frame. Raises DecodeError."""
    key, version = int.from_bytes(data[4:6], "big"), int.from_bytes(data[6:8], "big")
    assert int.from_bytes(data[:4], "big") == len(data) - 4 <= frame_bytes_max(key)
    reader = Reader(data, 14 + int.from_bytes(data[12:14], "big"), elements_max(key))
    if version >= apis.APIS[key].flexible_version:
        reader.skip_tags()
    apis.decode_request(key, reader, version)
    reader.expect_end()


def test_every_api_that_is_served_has_worst_frames() -> None:
    served = {api.name for api in apis.APIS.values() if api.served}
    thought_of = {frame.api for frame in catalogue()}
    from_schemas = {frame.api for frame in schema_frames()}
    assert served - thought_of == set()
    assert served - from_schemas == set()


def test_an_api_that_nobody_thought_of_has_the_largest_arrays_of_its_schema() -> None:
    found = [frame.what for frame in largest(apis.METADATA, requests()[apis.METADATA])]
    assert found == ["no array, the same, null arrays", "Topics, different, deep"]


def test_names_of_frames_differ() -> None:
    names = [frame.name for frame in catalogue() + schema_frames()]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize("frame", catalogue(), ids=lambda frame: frame.name)
def test_frames_are_legal_and_dealt_with(frame: Frame, worlds: dict[str, World]) -> None:
    """Each is answered, waits for an event, or is refused for a reason; none meets a bug."""
    world = worlds[frame.world]
    data = frame.build(world, PART)
    decode(data)
    cost = measure_apart(world, [data], frame.prepare)
    assert cost.error == ""
    assert not cost.close_reason.startswith("internal error"), cost.close_reason
    assert cost.turns_ms


def test_frames_from_schemas_are_legal(worlds: dict[str, World]) -> None:
    for frame in schema_frames():
        try:
            decode(frame.build(worlds[frame.world], PART))
        except Exception as error:
            pytest.fail(f"{frame.name}: {error!r}")


def test_filled_frames_reach_a_limit(worlds: dict[str, World]) -> None:
    """Either a frame is full, or its arrays have as many elements as a request may have."""
    by_name = {frame.name: frame for frame in schema_frames()}
    full = by_name["OffsetCommit v2: Topics, different, 32767 chars"].build(worlds["groups"], 1.0)
    decode(full)
    many = by_name["OffsetFetch v6: Topics.PartitionIndexes, the same"].build(worlds["groups"], 1.0)
    decode(many)
    assert 0.99 < len(many) / (4 * elements_max()) < 1.01
    assert len(full) > 0.9 * frame_bytes_max(apis.OFFSET_COMMIT) or elements_max() < 80_000


def test_turns_jobs_and_answers_are_counted(worlds: dict[str, World]) -> None:
    frame = next(f for f in catalogue() if f.name == "ConsumerGroupHeartbeat v1: every topic by pattern")
    world = make_world("consumer", MemoryStorage(), NOW, scale=SCALE)
    cost = measure(world, [frame.build(world, 1.0)])
    assert len(cost.jobs_ms) == 1, "a pattern is resolved by a job"
    assert len(cost.turns_ms) >= 2, "the request's turn and that of the job's result"
    assert cost.answer_bytes > 0


def test_measuring_apart_leaves_the_world_as_it_is(worlds: dict[str, World]) -> None:
    frame = next(f for f in catalogue() if f.name == "CreateTopics v7: 10,000 topics")
    world = worlds["empty"]
    before = world.engine.core.digest()
    measure_apart(world, [frame.build(world, 1.0)])
    assert world.engine.core.digest() == before


def test_a_frame_that_never_ends_is_given_up(worlds: dict[str, World], monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(turns: Turns, frame: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(Turns, "run", spin)
    cost = measure_apart(worlds["empty"], [b"any"], cpu_seconds=1)
    assert cost.error == "not done after 1 s of CPU"
    assert Row("x", 1, cost).problems() == [cost.error]


def test_what_exceeds_a_limit_is_reported() -> None:
    slow, quick = Cost(), Cost()
    slow.turns_ms = [1.0, turn_ms_max() + 1]
    quick.turns_ms = [turn_ms_max() - 1] * 5
    quick.jobs_ms = [10_000.0]
    assert Row("x", 1, slow).problems() == [f"turn > {turn_ms_max():.0f} ms"]
    assert Row("x", 1, quick).problems() == []
    assert Row("x", 1, quick).line().endswith("ok, job")
    visit = Visit()
    visit.ping_ms = PING_MS_MAX + 1
    assert Row("x", 1, quick, visit).problems() == [f"ping > {PING_MS_MAX:.0f} ms"]
    held = Held()
    held.before_mb, held.most_mb, held.bound_mb = 100.0, 901.0, 800.0
    assert Row("x", 1, held=held).problems() == ["memory > 800 MB"]
    held.most_mb = 899.0
    assert Row("x", 1, held=held).problems() == []


def test_the_exit_code_shows_whether_a_limit_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--only", "engine", "--match", "DescribeCluster", "--scale", str(SCALE), "--output", "json"]
    monkeypatch.setattr("tests.stall.report.TURN_MS_MAX", float("inf"))
    monkeypatch.setattr("tests.stall.report.INTERPRETED_TURN_MS_MAX", float("inf"))
    assert stall.main(arguments) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "DescribeCluster v2: the cluster" and row["engine"]["turns"] >= 1
    monkeypatch.setattr("tests.stall.report.TURN_MS_MAX", 0.0)
    monkeypatch.setattr("tests.stall.report.INTERPRETED_TURN_MS_MAX", 0.0)
    assert stall.main(arguments) == 1


def test_a_server_is_visited_while_another_client_pings() -> None:
    frame = next(f for f in catalogue() if f.name == "Metadata v12: all topics")
    with WorldServer("topics", SCALE) as server:
        visit = server.visit(frame, frame.build(server.world, 1.0))
        process, _ = server.start()
        assert process.is_alive
    assert visit.outcome == "" and visit.answer_bytes > 100
    # On a busy machine all of a short ping may be time that a thread waited for a processor.
    assert visit.pings >= 1 and visit.ping_ms >= 0 and visit.cpu_ms > 0


def test_memory_is_watched_after_everything_was_sent() -> None:
    """Answers that nobody reads are made after the requests for them went out."""
    held = hold_eight("OffsetFetch")
    assert held.grown_mb > 30, vars(held)


def test_records_that_nobody_reads_take_no_memory() -> None:
    """Each of them is owed some 30 MB, which are in files."""
    held = hold_eight("Fetch of 55 MB")
    assert held.grown_mb < 60, vars(held)


def hold_eight(what: str) -> Held:
    crowd = next(one for one in crowds() if f"read: {what}" in one.what)
    with WorldServer(crowd.world, 0.5) as server:
        held = hold(crowd, server, connections=8, watch_s=2.0)
    assert held.outcome == "" and held.samples >= 5
    return held


def test_the_verb_runs_this_package() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "-m tests.stall $(ARGS)" in makefile and sys.modules["tests.stall.__main__"].MEASUREMENTS
