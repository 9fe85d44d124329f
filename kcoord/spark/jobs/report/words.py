"""Titles of the page's sections, and what its columns and plots mean. docs/pipeline.md has every column of the jobs."""

from __future__ import annotations

from typing import Final

# In the order of the page, by their anchors.
TITLES: Final = {
    "missing": "What is missing",
    "glance": "At a glance",
    "lag": "Lag",
    "rebalances": "Rebalances",
    "storms": "Storms and flapping members",
    "movers": "Top movers",
    "jumps": "Rewinds and resets",
    "commits": "Commits",
    "groups": "All groups",
    "words": "What the words mean",
}

# (anchor, word, meaning)
WORDS: Final = (
    ("lag", "Lag, records", "How many messages lay between what a group had committed and the end of the partition at "
     "that time, summed over its partitions. It counts from the first message that is still there and is never "
     "negative. Partitions whose beginning or end is not known are not in the sum."),
    ("lag-time", "Lag, time", "The age of the first unread message, in the partition of the group where it is highest. "
     "Groups that stopped keep their rows, and their lag grows until the end."),
    ("state", "State", "What a group with lag does, by the last tenth of the time. No commits: it committed nothing. "
     "Falling behind, catching up: it commits, and its lag grew or shrank by more than a tenth. Steady: neither. "
     "Stopped: neither a commit nor a rebalance, and no lag. Rebalancing: a rebalance of it was not over at the end."),
    ("last-commit", "Last commit, ago", "How long before the end the group committed an offset that it still has; – is "
     "before all of the time."),
    ("commits-counted", "Commits", "Offsets that a group committed. One of a transaction counts from the commit marker "
     "on, if no other commit replaced it before. Those of aborted and open transactions never count."),
    ("rebalance", "Rebalance", "From the first new epoch (generation) of a group until every member is where the "
     "assignment wants it. Epochs that begin meanwhile belong to it. One that was not over at the end of the log is "
     "drawn faintly, until there."),
    ("cause", "Cause", "Of the first epoch of a rebalance: as recorded in the log, or derived from the changes. In "
     "logs of Kafka's brokers, which record no causes, a member that left and one whose session timed out are both "
     "member_left."),
    ("moved", "Partitions moved", "Partitions that moved from one member to another: not those without an owner before "
     "or after."),
    ("complete", "Complete from", "From when on all commits and rebalances of the group are in the logs; – is all "
     "of this time. Compaction removed others from before: there were at least as many as the group's numbers show. "
     "Lag before that time is not known."),
    ("took", "Time in rebalances", "Of rebalances that have a beginning in the logs. A Kafka broker writes one record "
     "for each rebalance of a classic group, at its end: how long it took is not known."),
    ("storm", "Storm", "At least 3 rebalances of a group, each begun less than 60 seconds after the one before was "
     "over."),
    ("flapping", "Flapping member", "A member that went away and came back at least twice. A static member goes by its "
     "instance id, another by client id and host, since it has a new member id each time."),
    ("rewind", "Rewind", "A commit of a lower offset than the one before."),
    ("reset", "Reset", "The first commit after the offset was deleted or had expired (tombstone), after the topic was "
     "recreated (topic_recreated), or one that goes back to the beginning (log_start)."),
)  # fmt: skip

# Which titles of columns are explained, and where.
EXPLAINED: Final = {
    "Lag, records": "lag", "Lag, time": "lag-time", "Peak, records": "lag", "Peak, time": "lag-time", "State": "state",
    "Last commit, ago": "last-commit", "Commits": "commits-counted", "Rebalances": "rebalance",
    "Partitions moved": "moved", "Most frequent cause": "cause", "Cause": "cause", "Finding": "storm",
    "Returns": "flapping", "Rewinds": "rewind", "Resets": "reset", "Why reset": "reset", "Complete from": "complete",
    "Time in rebalances": "took", "Longest": "took",
}  # fmt: skip
