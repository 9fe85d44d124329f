"""A report with everything in it, and with names that were chosen to break the page."""

from __future__ import annotations

from kcoord.spark.jobs.report.data import (
    Bar,
    Finding,
    Gone,
    GroupMoves,
    GroupSummary,
    Jumps,
    LagPeak,
    LagSeries,
    Lane,
    MemberMoves,
    Owner,
    Report,
)

BEGIN_MS = 1_760_000_000_000
MINUTE_MS = 60_000
HOSTILE = (
    "</title><script>alert(1)</script>",
    '"><img src=x onerror="alert(1)">',
    "'; background: url(//evil.example/x) '",
    "]]>--><svg onload=alert(1)>",
    "\u202egnp.exe\u2066\x00\x1b[31m\ud800\n\t",
    "&lt;b&gt; &#x3c;",
    "",
    "very-long-" * 500,
)


def full_report(names: tuple[str, ...]) -> Report:
    """An hour of groups with these names, each with all that a group can have."""
    owners = [Owner(f"log-{number % 2}-{name}", name) for number, name in enumerate(names)]
    peaks = [
        LagPeak(
            owner, 12, 3880, 120, 1500.0, 30.0 if number else None, 20 * number, BEGIN_MS + 57 * MINUTE_MS, 6,
            number % 2 == 1, owner.group_id,
        )
        for number, owner in enumerate(owners)
    ]  # fmt: skip
    minutes = range(61)
    return Report(
        path=f"/data/{names[0]}",
        made_ms=BEGIN_MS + 90 * MINUTE_MS,
        begin_ms=BEGIN_MS,
        end_ms=BEGIN_MS + 60 * MINUTE_MS,
        bucket_ms=MINUTE_MS,
        trend_ms=BEGIN_MS + 54 * MINUTE_MS,
        logs=2,
        groups=len(names),
        partitions=12,
        commits_total=123_456,
        tombstones=3,
        later=2,
        rebalances_total=40,
        rewinds_total=4,
        resets_total=2,
        commits=tuple((BEGIN_MS + minute * MINUTE_MS, 1800 + 37 * minute % 900) for minute in minutes),
        lag_records=tuple(
            LagSeries(
                owner,
                tuple(
                    (BEGIN_MS + minute * MINUTE_MS, None if 20 < minute < 24 else minute * (number + 7) % 97 * 40.0)
                    for minute in minutes
                ),
            )
            for number, owner in enumerate(owners[:6])
        ),
        lag_seconds=tuple(
            LagSeries(owner, tuple((BEGIN_MS + minute * MINUTE_MS, minute * 5.0 * number) for minute in minutes))
            for number, owner in enumerate(owners[:6])
        ),
        lag_peaks=tuple(peaks),
        stopped=tuple(peaks),
        listing=tuple(GroupSummary(peak, 100, 7, 2, 1, False, BEGIN_MS + MINUTE_MS) for peak in peaks),
        listing_total=len(peaks) + 1,
        complete_ms=BEGIN_MS + 30 * MINUTE_MS,
        rebalances_complete_ms=BEGIN_MS + 20 * MINUTE_MS,
        gone=tuple(Gone(owner.log, "__consumer_offsets-0", 77, BEGIN_MS + MINUTE_MS) for owner in owners),
        commits_left=5,
        lanes=tuple(
            Lane(
                owner,
                tuple(
                    Bar(
                        BEGIN_MS + (number + 9 * at) * MINUTE_MS,
                        None if at == 5 else BEGIN_MS + (number + 9 * at + at % 3) * MINUTE_MS + 700,
                        1 + at % 2, cause, owner.group_id, at, at + 1, 3, 4, 7 * at,
                    )
                    for at, cause in enumerate(
                        ("member_joined", "member_left", "session_timeout", "topics_changed", owner.group_id, None)
                    )
                ),
                BEGIN_MS + (10 + number) * MINUTE_MS,
            )
            for number, owner in enumerate(owners)
        ),
        by_rebalances=tuple(GroupMoves(owner, 6, 105, 210_000, 120_700, owner.group_id) for owner in owners),
        by_partitions=tuple(GroupMoves(owner, 6, None, None, None, None) for owner in owners),
        members=tuple(MemberMoves(owner, f"{owner.group_id}@10.0.0.1", 5, 3, 2) for owner in owners),
        findings=tuple(
            Finding("storm", owner, None if number % 2 else owner.group_id, BEGIN_MS, BEGIN_MS + 1, 9, 3, "member_left")
            for number, owner in enumerate(owners)
        ),
        jumps=tuple(Jumps(owner, owner.group_id, 3, 2, 1, -500, BEGIN_MS, (owner.group_id,)) for owner in owners),
    )  # fmt: skip
