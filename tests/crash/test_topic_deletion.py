"""The power is cut while a topic is deleted: it keeps its committed offsets, or loses them with the topic."""

from __future__ import annotations

import itertools
import random

from kcoord.core.outcome import Now
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.crash.states import LATER
from tests.crash.workload import VERSIONS, WALL_MS, open_small
from tests.harness.engine import Client
from tests.harness.faulty_storage import FaultyStorage, Snapshot

NOW = Now(0, WALL_MS)
PARTITIONS = 3
# The states of a moment with more pieces than this are a sample.
PIECES_MAX = 7


def test_a_topic_never_loses_its_offsets_before_it_is_gone() -> None:
    storage = FaultyStorage()
    client = Client(open_small(storage, NOW, random.Random(1)))
    created = CreateTopicsRequest([CreatableTopic("a", PARTITIONS, 1)])
    assert client.ask(apis.CREATE_TOPICS, VERSIONS[apis.CREATE_TOPICS], created, NOW).topics[0].error_code == 0
    partitions = [OffsetCommitRequestPartition(partition, 7, -1, "") for partition in range(PARTITIONS)]
    committed = OffsetCommitRequest("g", -1, "", None, -1, [OffsetCommitRequestTopic("a", bytes(16), partitions)])
    client.ask(apis.OFFSET_COMMIT, VERSIONS[apis.OFFSET_COMMIT], committed, NOW)
    snapshots: list[Snapshot] = []
    storage.on_operation = lambda kind, path: snapshots.append(storage.snapshot())
    deleted = DeleteTopicsRequest(topic_names=["a"])
    client.ask(apis.DELETE_TOPICS, VERSIONS[apis.DELETE_TOPICS], deleted, NOW)
    found: set[tuple[bool, int]] = set()
    rng = random.Random(1)
    for snapshot in snapshots:
        pieces = snapshot.pieces()
        subsets = [
            [piece for piece, is_kept in zip(pieces, kept, strict=True) if is_kept]
            for kept in itertools.product((False, True), repeat=len(pieces))
            if len(pieces) <= PIECES_MAX or rng.random() < 2 ** (PIECES_MAX - len(pieces))
        ]
        for kept_pieces in subsets:
            core = open_small(snapshot.crash(kept_pieces), LATER, random.Random(1)).core
            found.add((core.topics.get("a") is not None, core.offsets.count))
    assert found == {(True, PARTITIONS), (False, 0)}
