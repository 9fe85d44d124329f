"""Incremental fetch sessions (KIP-227): the broker remembers what a consumer fetches, so that requests and answers
contain only changes.

A session is soft state. It has an id, and an epoch that both sides increment. A request with another one is refused,
and the consumer starts over with a full fetch. Sessions do not belong to connections. The number of sessions is
limited, and so is the number of partitions of all sessions together. A consumer without a session (session id 0) sends
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
# Special epochs: the first request of a new session, and the one that closes the session without a new one.
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
INT32_MAX: Final = 2147483647

# A session idle for this long may be evicted by any other (Kafka's min.incremental.fetch.session.eviction.ms).
SESSION_EVICTION_MS: Final = 120000
# Partitions of all sessions together, about 400 bytes each. Kafka only limits the number of sessions.
SESSION_PARTITIONS_MAX: Final = 200000
# Partitions of one session. A request of 60 bytes visits all of them, in about a microsecond each.
ONE_SESSION_PARTITIONS_MAX: Final = 10000

# Topics have ids from version 13 on and names before. A session uses one of the two.
PartitionKey = tuple[object, int]


@final
class FetchItem:
    """One partition of a fetch: the last request for it, and in a session the last answer."""

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
        # Empty while the id is unknown.
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.tp: TopicPartition | None = None
        # The last answer. -1 makes sure that the next answer includes the partition.
        self.high_watermark = -1
        self.log_start_offset = -1
        # While a fetch waits for bytes: there are `counted_bytes` up to `counted_offset`.
        self.counted_offset = 0
        self.counted_bytes = 0

    def key(self) -> PartitionKey:
        if self.topic_id != ZERO_UUID:
            return (self.topic_id, self.partition)
        return (self.topic, self.partition)

    def update(self, other: FetchItem) -> None:
        """Take over a later request for the partition."""
        self.offset = other.offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch


@final
class FetchSession:
    """`partitions` is in fetch order. A partition that returned records moves to the end, so that
    all get their turn.
    """

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.used_ms = now_ms
        # The epoch that the next request must have.
        self.epoch = 1
        self.partitions: dict[PartitionKey, FetchItem] = {}
        # The size with which the session is counted.
        self.counted = 0


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`. It wraps to 1, since 0 opens a new session."""
    return 1 if epoch == INT32_MAX else epoch + 1


@final
class FetchSessionCache:
    """All sessions, the one idle for the longest time first."""

    def __init__(self, slots: int, seed: int) -> None:
        self.slots = slots
        self.partitions_max = SESSION_PARTITIONS_MAX
        self.session_partitions_max = ONE_SESSION_PARTITIONS_MAX
        self.sessions: dict[int, FetchSession] = {}
        self.partitions = 0
        # Ids need not be secret, but ids from before a restart should not occur again soon.
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
        """Count the session's partitions again and mark it as used last.

        Returns False if it became too large and was removed.
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
        """Whether a session may have this many partitions. Idle sessions are evicted for it."""
        if size > self.session_partitions_max:
            return False
        while self.partitions + size > self.partitions_max:
            oldest = next(iter(self.sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= SESSION_EVICTION_MS:
                return False
            self.remove(oldest.id)
        return True

    def maybe_create(self, items: list[FetchItem], uses_topic_ids: bool, now_ms: int) -> int:
        """Open a session for `items`, of which there may be none, as on a broker. Returns its id, or NO_SESSION if
        the limits do not allow it.
        """
        size = len(items)
        if not self._has_room(size, now_ms):
            return NO_SESSION
        if len(self.sessions) >= self.slots and not self._evict(size, now_ms):
            return NO_SESSION
        session = FetchSession(self._new_id(), uses_topic_ids, now_ms)
        for item in items:
            session.partitions[item.key()] = item
        self.touch(session, now_ms)
        return session.id

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make space for a session of `size` partitions: evict an idle one, or else a smaller one that is not new."""
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
        # The sequence visits all of 31 bits before it repeats. Sessions are few, so a free id is near.
        session_id = self.last_id
        while True:
            session_id = (session_id * 1103515245 + 12345) & INT32_MAX
            if session_id != NO_SESSION and session_id not in self.sessions:
                self.last_id = session_id
                return session_id
