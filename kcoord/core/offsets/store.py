"""Committed offsets: the room that owns their state and the handlers of everything that reads or changes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.core.config import CoreConfig
from kcoord.core.groups.store import GroupStore
from kcoord.core.offsets.commit import OffsetCommits
from kcoord.core.offsets.delete import OffsetDeletes
from kcoord.core.offsets.expiry import OffsetExpiry
from kcoord.core.offsets.fetch import OffsetFetches
from kcoord.core.offsets.state import OffsetState
from kcoord.core.outcome import CoordinatorRecord, LogId, Now, Outcome, Request, Timer, TopicsDeleted
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.offset_commit import OffsetCommitRequest
from kcoord.protocol.offset_delete import OffsetDeleteRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue


@final
class OffsetStore:
    def __init__(
        self,
        config: CoreConfig,
        groups: GroupStore,
        topics: TopicRegistry,
        log_of: Callable[[str], LogId],
    ) -> None:
        self.state = OffsetState(config, groups, topics, log_of)
        self.commits = OffsetCommits(self.state)
        self.fetches = OffsetFetches(self.state)
        self.deletes = OffsetDeletes(self.state)
        self.expiry = OffsetExpiry(self.state)

    def handle_offset_commit(self, request: Request, body: OffsetCommitRequest, now: Now) -> Outcome:
        return self.commits.handle_offset_commit(request, body, now)

    def handle_offset_fetch(self, request: Request, body: OffsetFetchRequest, now: Now) -> Outcome:
        return self.fetches.handle_offset_fetch(request, body)

    def handle_offset_delete(self, request: Request, body: OffsetDeleteRequest, now: Now) -> Outcome:
        return self.deletes.handle_offset_delete(request, body)

    def handle_topics_deleted(self, event: TopicsDeleted, now: Now) -> Outcome:
        return self.deletes.handle_topics_deleted(event, now)

    def handle_topic_timer(self, now: Now) -> Outcome:
        """TIMER_TOPIC_OFFSETS: one step more of the deleted topics' offsets."""
        return self.deletes.handle_timer(now)

    def handle_expiry_timer(self, timer: Timer, now: Now) -> Outcome:
        """TIMER_OFFSET_EXPIRY: one step of an expiry pass; arms the next one."""
        return self.expiry.handle_timer(timer, now)

    def first_expiry_timer(self, now: Now) -> Timer:
        """To be armed once, when all logs were loaded."""
        return self.expiry.first_timer(now)

    def replay_offset_commit(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, offset: int
    ) -> None:
        self.state.replay_offset_commit(key, value, offset)

    def replay_legacy_offset_commit(
        self, key: LegacyOffsetCommitKey, value: LegacyOffsetCommitValue | None, offset: int
    ) -> None:
        self.state.replay_legacy_offset_commit(key, value, offset)

    def tombstones_of(self, group_id: str, at_most: int) -> list[CoordinatorRecord]:
        return self.state.tombstones_of(group_id, at_most)

    def has_offsets(self, group_id: str) -> bool:
        return self.state.has_offsets(group_id)

    def count(self) -> int:
        """How many offsets are stored."""
        return self.state.count

    def digest_lines(self) -> list[str]:
        return self.state.digest_lines()

    def clear(self) -> None:
        self.state.clear()
