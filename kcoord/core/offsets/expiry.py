"""Expiry of committed offsets, and of groups that it leaves empty (KIP-211).

An offset with its own expiry time (a commit with a retention time, up to v4) expires at that time.
Any other expires `offsets_retention_ms` after
- the group became Empty, if a group with a protocol type recorded when, otherwise after the commit;
- the commit, in a Stable group of type "consumer" that is not subscribed to the topic any more;
- the commit, for a standalone consumer (a group without protocol type);
- the commit, in a consumer group (KIP-848), as in Kafka. With `offsets.retention.consumer.groups.from=empty` it is the
time when the group became empty, or the commit if that was later.

Offsets of topics that a consumer group subscribes to do not expire. While a group rebalances nothing of it expires,
since its next subscriptions are unknown. An Empty group is deleted with its last offset.

A pass visits all groups, a limited number of offsets at a time, so that other requests are served in between. If a
group has more expired offsets than fit into a batch, the rest follows in the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.choices import RETENTION_FROM_EMPTY
from kcoord.core.groups.records import group_tombstones, tombstone_bytes
from kcoord.core.offsets.state import NO_EXPIRE_TIMESTAMP, OffsetState, tombstone, tombstone_bytes_max, tombstone_weight
from kcoord.core.outcome import INFO, TIMER_OFFSET_EXPIRY, Fact, LogId, Now, Outcome, Timer
from kcoord.protocol.records.group_metadata import GroupMetadataKey

# Offsets and groups that one step visits, about 15 ms of work if all expire. Only the tombstones of a single group are
# split. Long group ids count for more, since each tombstone repeats the id and all of a step are one batch.
STEP_ITEMS_MAX: Final = 4000
TOKEN_START: Final = 0
TOKEN_CONTINUE: Final = 1


@final
class OffsetExpiry:
    def __init__(self, state: OffsetState) -> None:
        self.state = state
        # Groups that this pass has still to visit, the last one first. Soft state: a new pass starts over.
        self.groups_left: list[str] = []

    def first_timer(self, now: Now) -> Timer:
        interval_ms = self.state.config.offsets_retention_check_interval_ms
        return Timer(TIMER_OFFSET_EXPIRY, "", "", TOKEN_START, now.mono_ms + interval_ms)

    def handle_timer(self, timer: Timer, now: Now) -> Outcome:
        outcome = Outcome()
        if timer.token == TOKEN_START:
            outcome.timers.append(self.first_timer(now))
            self.groups_left = list(self.state.groups.groups) + list(self.state.groups.consumer_groups)
            self.groups_left.reverse()
        items = 0
        bytes_left = self.state.config.coordinator_batch_bytes_max
        log_id: LogId | None = None
        groups_left = self.groups_left
        while groups_left:
            group_id = groups_left[-1]
            group_log = self.state.log_of(group_id)
            offsets = self._count(group_id)
            weight = 1 + offsets * tombstone_weight(group_id)
            size = self._size_max(group_id, offsets)
            if (
                (items > 0 and items + weight > STEP_ITEMS_MAX)
                or (log_id is not None and outcome.records and group_log.partition != log_id.partition)
                or (outcome.records and size > bytes_left)
            ):
                outcome.timers.append(Timer(TIMER_OFFSET_EXPIRY, "", "", TOKEN_CONTINUE, now.mono_ms))
                break
            log_id = group_log
            items += weight
            records = len(outcome.records)
            if not self._expire_group(group_id, group_log, now, outcome):
                outcome.timers.append(Timer(TIMER_OFFSET_EXPIRY, "", "", TOKEN_CONTINUE, now.mono_ms))
                break
            if len(outcome.records) > records:
                bytes_left -= size
            groups_left.pop()
        return outcome

    def _size_max(self, group_id: str, offsets: int) -> int:
        """The most bytes of tombstones that a group with so many offsets adds to a step."""
        return min(offsets, self._tombstones_max(group_id)) * tombstone_bytes_max(group_id) + self._own_bytes(group_id)

    def _own_bytes(self, group_id: str) -> int:
        """The most bytes of the tombstones of the group itself. An empty consumer group may still have patterns."""
        count = 1
        size = 0
        group = self.state.groups.consumer_groups.get(group_id)
        if group is not None:
            count = 3 + len(group.resolved_regexes)
            for regex in group.resolved_regexes:
                size += 4 * len(regex)
        return size + count * tombstone_bytes(group_id, "")

    def _tombstones_max(self, group_id: str) -> int:
        """How many tombstones of a group one step may add."""
        by_work = STEP_ITEMS_MAX // tombstone_weight(group_id)
        # The other half of the batch is for further groups of the step and for the group's own tombstones.
        by_size = self.state.step_bytes_max() // tombstone_bytes_max(group_id)
        return max(1, min(by_work, by_size))

    def _count(self, group_id: str) -> int:
        """The number of the group's offsets."""
        offsets = 0
        of_group = self.state.by_group.get(group_id)
        if of_group is not None:
            for of_topic in of_group.values():
                offsets += len(of_topic)
        return offsets

    def _expire_group(self, group_id: str, log_id: LogId, now: Now, outcome: Outcome) -> bool:
        """Add the tombstones of one group. Returns False if there are more."""
        group = self.state.groups.get(group_id)
        consumer_group = self.state.groups.consumer_groups.get(group_id)
        if group is not None:
            if group_id in self.state.by_group and group.offset_expiry_base_ms(0) < 0:
                return True
            expired, is_anything_left = self._expire_offsets(
                group_id, log_id, group.is_subscribed_to, group.offset_expiry_base_ms, now, outcome
            )
            # A member that was sent its id and is about to join would lose the group.
            is_deleted = not is_anything_left and group.is_empty() and not group.pending_members
            if is_deleted:
                outcome.add(log_id, GroupMetadataKey(group_id), None)
        elif consumer_group is not None:
            base_ms: Callable[[int], int] = _from_the_commit
            since = self.state.config.offsets_retention_consumer_groups_from
            if since == RETENTION_FROM_EMPTY and consumer_group.is_empty():
                base_ms = consumer_group.empty_or_commit_time_ms
            expired, is_anything_left = self._expire_offsets(
                group_id, log_id, consumer_group.is_subscribed_to, base_ms, now, outcome
            )
            is_deleted = not is_anything_left and consumer_group.is_empty()
            if is_deleted:
                outcome.log = log_id
                outcome.records.extend(group_tombstones(consumer_group))
        else:
            return True
        if expired or is_deleted:
            fields: dict[str, object] = {
                "group_id": group_id,
                "expired_offsets": expired,
                "group_deleted": is_deleted,
            }
            outcome.facts.append(Fact(INFO, "offsets_expired", fields))
        return expired < self._tombstones_max(group_id)

    def _expire_offsets(
        self,
        group_id: str,
        log_id: LogId,
        is_subscribed_to: Callable[[str], bool],
        base_ms: Callable[[int], int],
        now: Now,
        outcome: Outcome,
    ) -> tuple[int, bool]:
        """The number of expired offsets, and whether any stays. `base_ms(commit time)` is the start
        of the retention.
        """
        expired = 0
        expired_max = self._tombstones_max(group_id)
        is_anything_left = self.state.pending.has_group(group_id)
        of_group = self.state.by_group.get(group_id)
        if of_group is None:
            return expired, is_anything_left
        for name, of_topic in of_group.items():
            if is_subscribed_to(name):
                is_anything_left = True
                continue
            for partition, stored in of_topic.items():
                until_ms = stored.expire_timestamp_ms
                if until_ms == NO_EXPIRE_TIMESTAMP:
                    until_ms = base_ms(stored.commit_timestamp_ms) + self.state.config.offsets_retention_ms
                if expired == expired_max:
                    return expired, True
                if now.wall_ms >= until_ms and not self.state.has_pending(group_id, name, partition):
                    outcome.add(log_id, tombstone(group_id, name, partition).key, None)
                    expired += 1
                else:
                    is_anything_left = True
        return expired, is_anything_left


def _from_the_commit(commit_timestamp_ms: int) -> int:
    """The start of the retention in consumer groups: the commit, with or without members, as in Kafka."""
    return commit_timestamp_ms
