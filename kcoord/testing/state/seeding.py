"""Writes a seed to a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from kcoord.client.errors import KafkaError
from kcoord.protocol.errors import ERROR_NAMES, TOPIC_ALREADY_EXISTS
from kcoord.server.failures import EXIT_CONFIG, ServerError
from kcoord.server.server import Server
from kcoord.testing.double.watching import CoreView
from kcoord.testing.groups import committed_offsets
from kcoord.testing.state import operations
from kcoord.testing.state.inner import InnerClient, inner_client
from kcoord.testing.state.seed import Seed, SeedError, SeedTopic

# A server that starts may have much to write to a slow disk.
START_TIMEOUT_S: Final = 60.0


@final
@dataclass(slots=True)
class Sown:
    """What a seed has changed, and what was there before and was left alone."""

    topics: list[str] = field(default_factory=list)
    records: int = 0
    groups: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


async def sow(client: InnerClient, seed: Seed, missing_only: bool = False) -> Sown:
    """Create what the seed has. Raises SeedError.

    With `missing_only` a topic that exists is left as it is, and a group that has committed offsets, too. Otherwise a
    topic that exists is an error, and nothing is written.
    """
    done = Sown()
    view = CoreView(client.engine)
    there = [topic.name for topic in seed.topics if view.ends(topic.name)]
    if there and not missing_only:
        raise SeedError(f"{seed.source}: topics.{there[0]}: {ERROR_NAMES[TOPIC_ALREADY_EXISTS]}")
    for topic in seed.topics:
        if topic.name in there:
            done.left.append(f"topic {topic.name}")
        else:
            await _sow_topic(client, seed, topic)
            done.topics.append(topic.name)
            done.records += len(topic.records)
    for group, offsets in seed.groups.items():
        if missing_only and committed_offsets(view, group):
            done.left.append(f"group {group}")
            continue
        try:
            await operations.commit(client, group, offsets)
        except KafkaError as error:
            raise SeedError(f"{seed.source}: groups.{group}: {error}") from error
        done.groups.append(group)
    return done


async def _sow_topic(client: InnerClient, seed: Seed, topic: SeedTopic) -> None:
    try:
        await operations.create_topic(client, topic.name, topic.partitions, topic.configs)
        if topic.records:
            await operations.produce(client, topic.name, topic.records)
    except KafkaError as error:
        raise SeedError(f"{seed.source}: topics.{topic.name}: {error}") from error


@final
class Sower:
    """Writes a seed when a server starts, before it accepts connections."""

    def __init__(self, seed: Seed) -> None:
        self._seed = seed

    async def __call__(self, server: Server) -> None:
        """Raises ServerError."""
        try:
            with inner_client(server, START_TIMEOUT_S) as client:
                done = await sow(client, self._seed, missing_only=True)
        except SeedError as error:
            raise ServerError(EXIT_CONFIG, str(error)) from None
        server.log.info(
            "seeded", seed=self._seed.source, topics=done.topics, records=done.records, groups=done.groups,
            left_alone=done.left,
        )  # fmt: skip
