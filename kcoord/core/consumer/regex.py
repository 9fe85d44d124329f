"""Subscriptions by regular expression: when expressions are resolved, and what follows from the result.

Resolution is a job, so no heartbeat waits for it. All expressions of a group are resolved together, so that new topics
cause one rebalance: at most every `group.consumer.regex.min.refresh.interval.ms` (10 s, as in Kafka), when an
expression has no result, when topics were created since, or when the last resolution is
`group.consumer.regex.refresh.interval.ms` ago. Results are records, so they survive a restart. The group's epoch is
bumped only if they differ from the previous ones.
"""

from __future__ import annotations

from typing import Final, cast, final

from kcoord.core.cause import REGEX_RESOLVED, Cause
from kcoord.core.config import CoreConfig
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.consumer import ConsumerGroup, ResolvedRegex, decrement, increment
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.records import regex_record, regex_tombstone
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import LIMIT, WARNING, CoordinatorRecord, Fact, JobDone, Now, Outcome
from kcoord.core.topics.regex import ResolveRegexJob, check
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol import errors

# How many characters of a resolution's changes go into the cause of the epoch, which is for people.
DIFFERENCES_MAX: Final = 10
REGEX_CHARS_SHOWN: Final = 200

# How a heartbeat changed the member's expression.
UNCHANGED: Final = 0
CHANGED: Final = 1
# The change counts at once: the new expression is resolved already, or the member has none any more.
CHANGED_AND_RESOLVED: Final = 2

# The cost of compiling a pattern, in bytes of the turn's budget: some milliseconds, however short the pattern.
REGEX_CHECK_COST: Final = 128 * 1024


@final
class ConsumerRegexes:
    def __init__(self, config: CoreConfig, store: GroupStore, topics: TopicRegistry, targets: ConsumerTargets) -> None:
        self.config = config
        self.store = store
        self.topics = topics
        self.targets = targets
        # The cost of patterns checked since the last call of Core.take_cost.
        self.cost = 0

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerMember | None,
        updated: ConsumerMember,
        now: Now,
        out: Outcome,
    ) -> int:
        """Compare the expression of `updated` with the previous one, and request a resolution if one is due.

        Raises GroupError (INVALID_REGULAR_EXPRESSION).
        """
        old = None if member is None else member.regex()
        new = updated.regex()
        status = UNCHANGED
        is_new = False
        # Replacing "" by None changes nothing.
        if old != new:
            status = CHANGED
            if old is not None and group.regex_counts.get(old, 0) == 1:
                out.log = group.log
                out.records.append(regex_tombstone(group.group_id, old))
            if new is None:
                status = CHANGED_AND_RESOLVED
            elif group.regex_counts.get(new, 0) == 0:
                self.cost += REGEX_CHECK_COST
                problem = check(new)
                if problem is not None:
                    raise GroupError(
                        errors.INVALID_REGULAR_EXPRESSION,
                        f"SubscribedTopicRegex `{new[:200]}` is not a valid regular expression: {problem}.",
                    )
                is_new = True
            elif new in group.resolved_regexes:
                status = CHANGED_AND_RESOLVED
        if is_new or group.regex_counts:
            self._maybe_resolve(group, old, updated, is_new, now, out)
        return status

    def release(
        self, group: ConsumerGroup, replaced: list[ConsumerMember], updated: ConsumerMember, out: Outcome
    ) -> None:
        """A member left its previous membership and took a static one: the expression of either may have lost its last
        subscriber.
        """
        regex = replaced[-1].regex()
        if regex is None or regex == updated.regex():
            return
        count = 0
        for member in replaced:
            if member.regex() == regex:
                count += 1
        if group.regex_counts.get(regex, 0) == count:
            out.log = group.log
            out.records.append(regex_tombstone(group.group_id, regex))

    def _maybe_resolve(
        self,
        group: ConsumerGroup,
        old: str | None,
        updated: ConsumerMember,
        is_new: bool,
        now: Now,
        out: Outcome,
    ) -> None:
        if group.regex_job_running or now.mono_ms < group.regex_retry_ms:
            return
        last_ms, last_version = group.last_regex_refresh()
        # A last time in the future means that the clock was set back.
        earliest_ms = last_ms + self.config.group_consumer_regex_min_refresh_interval_ms
        if last_ms >= 0 and last_ms <= now.wall_ms <= earliest_ms:
            return
        counts = dict(group.regex_counts)
        decrement(counts, old)
        increment(counts, updated.regex())
        if not counts:
            return
        is_due = (
            is_new
            or len(counts) != len(group.resolved_regexes)
            or last_version < self.topics.new_topics_version
            or now.wall_ms > last_ms + self.config.group_consumer_regex_refresh_interval_ms
        )
        if not is_due:
            return
        group.regex_job_running = True
        out.jobs.append(
            ResolveRegexJob(
                group.group_id,
                updated.member_id,
                tuple(counts),
                self.topics.name_snapshot(),
                self.topics.version,
                now.wall_ms,
                self.config.coordinator_batch_bytes_max // 2,
            )
        )

    def handle_resolved(self, event: JobDone, now: Now) -> Outcome:
        """The job that resolved the expressions of a group is done or failed."""
        out = Outcome()
        job = cast(ResolveRegexJob, event.job)
        group = self.store.consumer_groups.get(job.group_id)
        if group is None:
            return out
        group.regex_job_running = False
        if event.error is not None:
            fields: dict[str, object] = {"group": group.group_id, "error": event.error}
            out.facts.append(Fact(WARNING, "consumer_group_regex_failed", fields))
            return out
        result = cast(dict[str, list[str] | None], event.result)
        matched = dict(group.regex_topic_counts)
        differs: list[str] = []
        too_large: list[str] = []
        for regex, topics in result.items():
            if regex not in group.regex_counts:
                # The last member with this expression has left.
                continue
            if topics is None:
                too_large.append(regex)
                continue
            old = group.resolved_regexes.get(regex)
            old_topics = [] if old is None else old.topics
            if old_topics != topics:
                if len(differs) < DIFFERENCES_MAX:
                    differs.append(f"{regex[:REGEX_CHARS_SHOWN]}: {len(old_topics)} -> {len(topics)} topics")
                for name in old_topics:
                    decrement(matched, name)
                for name in topics:
                    increment(matched, name)
            self._add(
                group,
                regex_record(group.group_id, regex, ResolvedRegex(topics, job.version, job.wall_ms)),
                out,
            )
        if too_large:
            self._report_too_large(group, too_large, now, out)
        subscribed: dict[str, bool] = dict.fromkeys(group.name_counts, True)
        for name in matched:
            subscribed[name] = True
        metadata_hash = self.targets.topics.metadata_hash(subscribed)
        if differs or metadata_hash != group.metadata_hash:
            cause = Cause(REGEX_RESOLVED, job.member_id, "; ".join(differs or group.topic_changes))
            group.topic_changes = []
            self.targets.bump_epoch(group, metadata_hash, cause, now, out)
        return out

    def _report_too_large(self, group: ConsumerGroup, regexes: list[str], now: Now, out: Outcome) -> None:
        """The topics that these expressions match, with the others, exceed a batch. Keep the previous results.

        An expression without a result has no record with the time of its resolution, so the pause is kept in the group.
        """
        group.regex_retry_ms = now.mono_ms + self.config.group_consumer_regex_min_refresh_interval_ms
        fields: dict[str, object] = {
            "group": group.group_id,
            "count": len(regexes),
            "first": regexes[0][:REGEX_CHARS_SHOWN],
        }
        out.facts.append(Fact(WARNING, "consumer_group_regex_too_large", fields, LIMIT))

    def _add(self, group: ConsumerGroup, record: CoordinatorRecord, out: Outcome) -> None:
        out.log = group.log
        out.records.append(record)
