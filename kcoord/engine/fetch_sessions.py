"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches, so that requests and answers
name only what changed.

A session is soft state. It has an id and an epoch that both sides count up; a request with a wrong one is refused and
the consumer starts over with a full fetch. Sessions are not tied to connections. There is room for a limited number of
them, and for a limited number of partitions in all of them together; a consumer that gets none (session id 0) sends
full requests, which costs bytes and nothing else.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.engine.partitions import TopicPartition
from kcoord.protocol.errors import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
    NONE,
)
from kcoord.wire.primitives import ZERO_UUID

NO_SESSION: Final = 0
# Epochs with a meaning: the first request of a new session, and "close it, and open none".
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
INT32_MAX: Final = 2147483647

# A session unused for so long may be evicted by anybody (Kafka's min.incremental.fetch.session.eviction.ms).
SESSION_EVICTION_MS: Final = 120000
# Partitions in all sessions together, about 400 bytes each. Kafka has no such limit, only one on sessions.
SESSION_PARTITIONS_MAX: Final = 200000
# Partitions in one session. A request of 60 bytes looks at all of them, in about a microsecond each.
ONE_SESSION_PARTITIONS_MAX: Final = 10000

# Topics are named by id from version 13 on and by name before; a session sticks to one of them.
PartitionKey = tuple[object, int]


@final
class FetchItem:
    """One partition of a fetch: what the consumer asked for last, and in a session what it was told last."""

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        last_fetched_epoch: int,
    ) -> None:
        # Empty while the id is unknown to us.
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.tp: TopicPartition | None = None
        # Told last; -1 makes sure that the next answer includes the partition.
        self.high_watermark = -1
        self.log_start_offset = -1
        # While a fetch waits for bytes: those up to `counted_offset` amount to `counted_bytes`.
        self.counted_offset = 0
        self.counted_bytes = 0

    def key(self) -> PartitionKey:
        if self.topic_id != ZERO_UUID:
            return (self.topic_id, self.partition)
        return (self.topic, self.partition)

    def update(self, other: FetchItem) -> None:
        """Take over what a later request says about the partition."""
        self.offset = other.offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch


@final
class FetchSession:
    """`partitions` is in fetch order: one that gave data goes to the end, so that all get their turn."""

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.used_ms = now_ms
        # What the next request must carry.
        self.epoch = 1
        self.partitions: dict[PartitionKey, FetchItem] = {}
        # The size it was counted with.
        self.counted = 0


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; it wraps to 1, since 0 would open a new session."""
    return 1 if epoch == INT32_MAX else epoch + 1


@final
class FetchSessionCache:
    """All sessions, the longest unused first."""

    def __init__(self, slots: int, seed: int) -> None:
        self.slots = slots
        self.partitions_max = SESSION_PARTITIONS_MAX
        self.session_partitions_max = ONE_SESSION_PARTITIONS_MAX
        self.sessions: dict[int, FetchSession] = {}
        self.partitions = 0
        # Ids need not be secret, but those of a server's last life should not be met again soon.
        self.last_id = seed & INT32_MAX

    def find(self, session_id: int) -> FetchSession | None:
        return self.sessions.get(session_id)

    def check(self, session_id: int, epoch: int, uses_topic_ids: bool) -> int:
        """The error code for an incremental request on this session."""
        session = self.sessions.get(session_id)
        if session is None:
            return FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return FETCH_SESSION_TOPIC_ID_ERROR
        return NONE

    def remove(self, session_id: int) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= session.counted
            session.counted = 0

    def touch(self, session: FetchSession, now_ms: int) -> bool:
        """Count the session's partitions anew and make it the one used last.

        False if it became too large; then it is gone.
        """
        size = len(session.partitions)
        self.remove(session.id)
        if not self._has_room(size, now_ms):
            return False
        session.used_ms = now_ms
        session.counted = size
        self.partitions += size
        self.sessions[session.id] = session
        return True

    def _has_room(self, size: int, now_ms: int) -> bool:
        """Whether a session may have so many partitions; stale sessions make room for it."""
        if size > self.session_partitions_max:
            return False
        while self.partitions + size > self.partitions_max:
            oldest = next(iter(self.sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= SESSION_EVICTION_MS:
                return False
            self.remove(oldest.id)
        return True

    def maybe_create(self, items: list[FetchItem], uses_topic_ids: bool, now_ms: int) -> int:
        """Open a session on `items`; its id, or NO_SESSION where there is no room."""
        size = len(items)
        if size == 0 or not self._has_room(size, now_ms):
            return NO_SESSION
        if len(self.sessions) >= self.slots and not self._evict(size, now_ms):
            return NO_SESSION
        session = FetchSession(self._new_id(), uses_topic_ids, now_ms)
        for item in items:
            session.partitions[item.key()] = item
        self.touch(session, now_ms)
        return session.id

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions: a stale one goes, else a smaller one that is not new."""
        smallest: FetchSession | None = None
        for session in self.sessions.values():
            if now_ms - session.used_ms > SESSION_EVICTION_MS:
                self.remove(session.id)
                return True
            if now_ms - session.created_ms > SESSION_EVICTION_MS and (
                smallest is None or session.counted < smallest.counted
            ):
                smallest = session
        if smallest is None or smallest.counted >= size:
            return False
        self.remove(smallest.id)
        return True

    def _new_id(self) -> int:
        # Full period over 31 bits; sessions are few, so a free id is near.
        session_id = self.last_id
        while True:
            session_id = (session_id * 1103515245 + 12345) & INT32_MAX
            if session_id != NO_SESSION and session_id not in self.sessions:
                self.last_id = session_id
                return session_id
