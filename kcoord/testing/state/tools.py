"""Prepare state and look at it, without a client. Any thread but the server's may call these methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kcoord.server.server import Server
from kcoord.testing.phantoms import PhantomTools
from kcoord.testing.state import operations
from kcoord.testing.state.compaction import compact
from kcoord.testing.state.inner import InnerClient, inner_client
from kcoord.testing.state.records import (
    Bytes,
    GivenHeaders,
    GivenRecord,
    NewRecord,
    Position,
    Record,
    new_record,
    to_bytes,
    to_headers,
)
from kcoord.testing.state.seed import Seed, load_seed
from kcoord.testing.state.seeding import Sower, sow
from kcoord.testing.waiting import TIMEOUT_S

T = TypeVar("T")


class StateTools(PhantomTools):
    """The part of the fixture that prepares state.

    The calls take milliseconds and wait for no client, so tests on an event loop may use them, too. They are not in
    `requests()`, and rules do not concern them. What the server refuses is a kcoord.client.errors.BrokerError with
    Kafka's name of the error; without an answer within 10 s it is RequestTimedOut.
    """

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None) -> None:
        """Create a topic, with configs such as `{"cleanup.policy": "compact"}`."""
        self._ask(lambda client: operations.create_topic(client, name, partitions, configs))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the offsets that groups have committed for it."""
        self._ask(lambda client: operations.delete_topic(client, name))

    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic, without internal topics."""
        return self._ask(operations.list_topics)

    def produce(
        self,
        topic: str,
        value: GivenRecord | Iterable[GivenRecord],
        *,
        key: Bytes = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Position]:
        """Write a record or several, and return the partition and offset of each.

        A record is a value (bytes, text or None) or a dict with the fields key, value, headers, partition and
        timestamp_ms; the arguments apply to records that do not have a field of their own. Without a partition the key
        chooses it, as in Kafka's clients. Records without a key go to the partition with the lowest end.
        """
        defaults = NewRecord(None, to_bytes(key, "a key"), to_headers(headers), partition, timestamp_ms)
        given: Iterable[GivenRecord]
        if value is None or isinstance(value, bytes | str | Mapping | Record | NewRecord):
            given = [value]
        else:
            given = value
        records = [new_record(one, defaults) for one in given]
        return self._ask(lambda client: operations.produce(client, topic, records))

    def records(
        self,
        topic: str,
        partition: int | None = None,
        start: int = 0,
        limit: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> list[Record]:
        """The topic's records from the offset `start` on, by partition and offset, at most `limit`.

        `isolation` is `read_uncommitted` or `read_committed`: without records of aborted and of open transactions.
        """
        return self._ask(lambda client: operations.read(client, topic, partition, start, limit, isolation))

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets by (topic, partition) for a group without members."""
        self._ask(lambda client: operations.commit(client, group, offsets))

    def seed(self, source: str | Path | Mapping[str, Any] | Seed, missing_only: bool = False) -> None:
        """Create topics with records, and commit offsets, from a YAML or JSON file or from a document of that form.

        With `missing_only` topics that exist and groups with committed offsets are left as they are. Raises SeedError
        (kcoord.testing.state.seed), which names the place of a mistake; a document with one changes nothing.
        """
        document = source if isinstance(source, Seed) else load_seed(source)
        self._ask(lambda client: sow(client, document, missing_only))

    def apply_retention(self) -> int:
        """Apply `retention.ms` and `retention.bytes` of all topics now. Returns how many segments were deleted."""

        async def apply(server: Server) -> int:
            assert server.assembly is not None
            return await server.background().maintenance.apply_retention(server.assembly)

        return self._thread.run(apply, TIMEOUT_S)

    def compact(self) -> int:
        """Compact all topics with `cleanup.policy` = `compact` now. Returns how many records were removed.

        `min.compaction.lag.ms` and `delete.retention.ms` count as always. Only in memory: raises ValueError for a
        server with a data directory, which compacts by itself.
        """
        return self._thread.run(compact, TIMEOUT_S)

    def begin_with(self, source: str | Path | Mapping[str, Any] | Seed) -> None:
        """Have each start write a seed before connections are accepted, as `kcoord serve --seed` does."""
        self._thread.prepare = Sower(source if isinstance(source, Seed) else load_seed(source))

    def _ask(self, work: Callable[[InnerClient], Awaitable[T]], timeout: float = TIMEOUT_S) -> T:
        async def ask(server: Server) -> T:
            with inner_client(server, timeout) as client:
                return await work(client)

        return self._thread.run(ask)
