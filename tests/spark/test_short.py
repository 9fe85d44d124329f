"""Jobs without Spark find what the jobs of Spark find, and write what Spark would write."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kcoord.cli.main import main
from kcoord.cli.pipeline import short_run
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.history.invariants import NEVER
from kcoord.spark.jobs.compact import open_transactions
from kcoord.spark.jobs.completeness import LogHistory, history_table
from kcoord.spark.jobs.histories import ABOVE_FLOOR, ALWAYS, AT_END, AT_FLOOR, WHOLE
from kcoord.spark.jobs.lag import COMMIT_COLUMNS, lag, log_starts
from kcoord.spark.jobs.offsets_history import offsets_history
from kcoord.spark.jobs.rebalances import ranking, rebalances
from kcoord.spark.jobs.report.collect import collect
from kcoord.spark.jobs.state import MARKERS, cluster_by, latest
from kcoord.spark.jobs.verify import CHECKED, that_hold
from kcoord.spark.short.counting import counting
from kcoord.spark.short.lag import lag as short_lag
from kcoord.spark.short.offsets_history import offsets_history as short_history
from kcoord.spark.short.parquet import bucket_of_group
from kcoord.spark.short.rebalances import RANKING, SCHEMA, table_of
from kcoord.spark.short.rebalances import ranking as short_ranking
from kcoord.spark.short.rebalances import rebalances as short_rebalances
from kcoord.spark.short.report import collect as short_report
from kcoord.spark.short.state import latest as short_latest
from kcoord.spark.short.state import open_records
from kcoord.spark.short.tables import only, read_table
from kcoord.spark.short.verify import that_hold as short_that_hold
from tests.spark.tables import arrow, at, commit, frame, message, micros, same_rows
from tests.spark.test_pipeline_command import data
from tests.spark.test_rebalances import event, generation
from tests.unit.cli.rig import LogRig

__all__ = ["data"]

LOGS = ("a", "b")
GROUPS = ("g", "h", "\ue000", "\U0001f600")
TOPICS = ("t", "u")
BROKER = Path(__file__).parents[1] / "data" / "broker"
# What anybody may write to a topic.
ODD_EVENTS = (
    None, b"", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"[]", b"7", b'{"group":null}',
    b'{"group":"g","log":"__consumer_offsets-0","offset":100000000000000000000}',
    b'{"group":"g","log":"__consumer_offsets-0","offset":"x"}',
    '{"group":"g","log":"__consumer_offsets-\u0663","offset":1}'.encode(),
)  # fmt: skip
TABLES = ("offset_commits", "messages", "assignments")
Rows = list[dict[str, Any]]


def nightly(begin: int, end: int) -> list[Any]:
    """Seeds that `make nightly` tries as well."""
    return [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(begin, end)]


def of_both_logs(*all_words: list[str]) -> list[Any]:
    """Each of these words with two clusters. With a broker's logs, all but the last ones are for `make nightly`."""
    last = all_words[-1]
    found = [pytest.param("clusters", words, id=" ".join(["clusters", *words])) for words in all_words]
    for words in all_words:
        marks = [] if words is last else [pytest.mark.nightly]
        found.append(pytest.param("broker", words, id=" ".join(["broker", *words]), marks=marks))
    return found


def random_commits(rng: random.Random) -> Rows:
    """Clocks jump, times and offsets are missing, groups come back, and a group's commits are in two partitions."""
    found = []
    for offset in range(rng.choice([1, 40, 300])):
        committed = rng.choice([None, -1, 0, 0, *(rng.randrange(60) for _ in range(12))])
        row = commit(offset, rng.randrange(offset + 20), committed, rng.choice(GROUPS), rng.choice(TOPICS))
        row |= {"log": rng.choice(LOGS), "log_partition": rng.randrange(2), "partition": rng.randrange(2)}
        if rng.random() < 0.1:
            row["commit_timestamp"] = None
        if rng.random() < 0.2:
            row["log_timestamp"] = None
        if rng.random() < 0.5:
            row["topic_id"] = rng.choice(["A", "B"])
        found.append(row)
    return found


def random_markers(rng: random.Random, commits: Rows) -> Rows:
    """Put some of the commits into transactions, in place, and return their markers: of committed and aborted ones.

    Transactions overlap, commits outside of them come between their records and their markers, some stay open, and some
    have only a marker. (The table has no commits of aborted and open ones; if it had, they would count at once.)
    """
    places = {(row["log"], row["log_partition"], row["log_offset"]) for row in commits}
    found = []
    for log, partition, offset in sorted(places):
        if rng.random() < 0.3:
            name = rng.choice(["commit_marker", "commit_marker", "abort_marker"])
            found.append({
                "log": log, "log_topic": OFFSETS_TOPIC, "log_partition": partition, "log_offset": offset,
                "log_timestamp": rng.choice([None, at(rng.randrange(offset + 20)), at(offset)]),
                "producer_id": rng.randrange(3), "record_name": name,
            })  # fmt: skip
    # Each offset is a commit's or a marker's.
    taken = {(row["log"], row["log_partition"], row["log_offset"]) for row in found}
    commits[:] = [row for row in commits if (row["log"], row["log_partition"], row["log_offset"]) not in taken]
    for row in commits:
        if not row["is_tombstone"] and rng.random() < 0.5:
            row["producer_id"] = rng.randrange(4)
    return found


def random_messages(rng: random.Random) -> Rows:
    found = []
    for log in LOGS:
        for topic in TOPICS[: rng.randrange(3)]:
            for offset in sorted(rng.sample(range(80), rng.randrange(60))):
                row = message(offset, rng.randrange(offset * 4 + 1), topic, rng.randrange(2), log=log)
                if rng.random() < 0.1:
                    row["timestamp"] = rng.choice([None, at(100_000)])
                found.append(row)
    rng.shuffle(found)
    return found


def random_assignments(rng: random.Random) -> Rows:
    return [
        {
            "log": rng.choice(LOGS), "log_offset": rng.randrange(40), "group_id": rng.choice(GROUPS),
            "kind": rng.choice(["classic", "consumer"]), "role": rng.choice(["current", "current", "target"]),
            "member_id": rng.choice([None, "m", "n"]), "topic": rng.choice([None, *TOPICS]),
            "topic_id": rng.choice([None, "A"]), "partitions": rng.choice([None, [0]]),
            "is_tombstone": rng.random() < 0.2,
        }
        for _ in range(rng.randrange(20))
    ]  # fmt: skip


def random_histories(rng: random.Random) -> list[LogHistory]:
    found = []
    for log in LOGS:
        from_ms = rng.choice([None, micros(at(rng.randrange(100))) // 1000])
        found.append(LogHistory(log, OFFSETS_TOPIC, rng.randrange(2), 400, rng.randrange(200), from_ms))
        found.append(LogHistory(log, "__transaction_state", 0, 400, 7, 7))
    return found


@pytest.mark.parametrize("seed", [0, *nightly(1, 10)])
def test_the_same_history_and_lag(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    commits, messages, assignments = random_commits(rng), random_messages(rng), random_assignments(rng)
    histories = random_histories(rng)
    marks = random_markers(rng, commits)
    given = (commits, messages, assignments)
    of_spark = [frame(spark, name, rows) for name, rows in zip(TABLES, given, strict=True)]
    short = [arrow(name, rows) for name, rows in zip(TABLES, given, strict=True)]
    history = history_table(spark, histories)
    markers = frame(spark, "records", marks)
    short[0] = counting(short[0], arrow("records", marks))

    found = offsets_history(of_spark[0], log_starts(of_spark[1]), history, markers)
    same_rows(found, short_history(short[0], short[1], histories))

    now = at(rng.randrange(100, 400))
    every_s = rng.choice([0.0, 7.0, 30.0])
    until: datetime | None = rng.choice([None, at(rng.randrange(150))])
    rows = lag(of_spark[0], of_spark[1], of_spark[2], every_s, until, now, history, markers)
    until_us = None if until is None else micros(until)
    same_rows(rows, short_lag(short[0], short[1], short[2], micros(now), every_s, until_us, histories))


def random_records(rng: random.Random) -> Rows:
    """Generations of classic groups: members come and go, causes are stated or not, and compaction has left gaps."""
    found = []
    for log in LOGS:
        for group in GROUPS[:3]:
            offset, seconds = 0, 0.0
            for number in range(1, rng.randrange(25)):
                offset += rng.randrange(1, 4)
                seconds += rng.choice([1, 5, 59, 61, 500])
                names = rng.sample(["a1", "a2", "b1", "b2", "c1"], rng.randrange(4))
                members = {name: tuple(rng.sample(range(4), rng.randrange(3))) for name in names}
                row = generation(offset, seconds, number, group, rng.choice(["", "member_left", "stated"]), **members)
                if rng.random() < 0.2:
                    continue
                if rng.random() < 0.1:
                    row["log_timestamp"] = None
                found.append(row | {"log": log})
    rng.shuffle(found)
    return found


def random_events(rng: random.Random) -> Rows:
    found = []
    for number in range(rng.randrange(30)):
        document = {
            "epoch": rng.randrange(20), "time_ms": rng.choice([micros(at(rng.randrange(200))) // 1000, None]),
            "offset": rng.choice([rng.randrange(50), None]),
            "event": rng.choice(["epoch_changed", "rebalance_finished"]),
            "group": rng.choice([*GROUPS, None]), "members": rng.randrange(3), "partitions": 1,
            "log": rng.choice(["__consumer_offsets-0", "__consumer_offsets-x", None]), "cause": "session_timeout",
        }  # fmt: skip
        found.append(event(number, **document) | {"log": rng.choice(LOGS), "timestamp": at(rng.randrange(100))})
    for value in ODD_EVENTS:
        found.append(event(100 + len(found)) | {"log": rng.choice(LOGS), "value": value})
    return found


@pytest.mark.parametrize("seed", [0, *nightly(1, 10)])
def test_the_same_rebalances(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    records, events, histories = random_records(rng), random_events(rng), random_histories(rng)
    history = history_table(spark, histories)
    found = rebalances(frame(spark, "records", records), frame(spark, "messages", events), history).cache()
    short = short_rebalances(arrow("records", records), arrow("messages", events), histories)
    same_rows(found, table_of(short, SCHEMA))
    for gap_s, least, flaps in ((60, 3, 2), (6, 2, 1)):
        ranked = table_of(short_ranking(short, gap_s, least, flaps), RANKING)
        # Of two partitions with the same finding either may be the first.
        same_rows(ranking(found, gap_s, least, flaps), ranked)
    found.unpersist()


# CI compares the reports of another random log (test_report.py), and Spark takes half a minute for each.
@pytest.mark.parametrize("seed", nightly(5, 10))
def test_the_same_report(spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    given = (random_commits(rng), random_messages(rng), random_records(rng), random_events(rng))
    of_records, of_states = random_histories(rng), random_histories(rng)
    marks = random_markers(rng, given[0])
    names = ("offset_commits", "messages", "records", "messages")
    of_spark = [frame(spark, name, rows) for name, rows in zip(names, given, strict=True)]
    commits, messages, records, events = (arrow(name, rows) for name, rows in zip(names, given, strict=True))
    now = at(rng.randrange(100, 400))
    since = rng.choice([None, at(rng.randrange(100))])
    until = rng.choice([None, at(rng.randrange(100, 150))])
    groups = rng.choice([(), GROUPS[:2]])
    # Several turns, and more of everything than a page has room for.
    monkeypatch.setattr("kcoord.spark.short.report.SAMPLES_PER_TURN", 300)
    for module in ("jobs.report.collect", "short.report"):
        for limit, value in (("ROWS_MAX", 3), ("LANES_MAX", 2), ("LINES_MAX", 2), ("GROUPS_MAX", 3)):
            monkeypatch.setattr(f"kcoord.spark.{module}.{limit}", value)
    monkeypatch.setattr("kcoord.spark.jobs.report.assembly.GROUPS_MAX", 3)
    moves = rebalances(of_spark[2], of_spark[3], history_table(spark, of_records))
    history, markers = history_table(spark, of_states), frame(spark, "records", marks)
    whole = collect(
        of_spark[0], of_spark[1], moves, "data", now, since, until, groups, history, markers
    )  # fmt: skip

    commits = counting(commits.select(COMMIT_COLUMNS), arrow("records", marks))
    found = short_rebalances(records, events, of_records)
    if groups:
        commits = only(commits, "group_id", groups)
        found = [row for row in found if row["group_id"] in groups]
    times = [None if time is None else micros(time) // 1000 for time in (now, since, until)]
    assert times[0] is not None
    short = short_report(commits, messages, found, "data", times[0], times[1], times[2], in_order(of_states))
    assert vars(short) == vars(whole)


def in_order(histories: list[LogHistory]) -> list[LogHistory]:
    return sorted(histories, key=lambda one: (one.log, one.topic, one.partition))


def test_nothing_at_all(spark: SparkSession) -> None:
    of_spark = [frame(spark, name, []) for name in TABLES]
    commits, messages, assignments = (arrow(name, []) for name in TABLES)
    same_rows(offsets_history(of_spark[0]), short_history(commits, messages))
    empty = lag(of_spark[0], of_spark[1], of_spark[2])
    same_rows(empty, short_lag(commits, messages, assignments, 0))
    same_rows(empty, short_lag(commits, messages, assignments, 0, 60, micros(at(0))))


def test_groups_are_in_the_buckets_of_spark(spark: SparkSession) -> None:
    names = [*GROUPS, "", "workers", "x" * 40, "ä" * 33]
    table = spark.createDataFrame([(name,) for name in names], "name string")
    for count in (1, 16, 1_000):
        rows = table.select(F.pmod(F.xxhash64("name"), F.lit(count)).cast("int")).collect()
        assert [bucket_of_group(name, count) for name in names] == [row[0] for row in rows]


# --- the commands


# The session is shared: what is set here stays.
WITH_SPARK = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")


def run(job: str, *arguments: str | Path) -> Any:
    words = ["pipeline", job, *map(str, arguments), "--output", "json"]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["offsets-history"],
        ["offsets-history", "--log-starts", "--group", "workers"],
        ["offsets-history", "--at", "2025-10-09T08:53:28.500"],
        ["offsets-history", "--since", "2025-10-09T08:53:28", "--until", "2025-10-09T08:53:30"],
        ["lag"],
        ["rebalances"],
        ["rebalances", "--group", "workers", "--flaps", "1", "--storm-size", "1", "--since", "2025-10-09T08:53:28"],
        ["lag", "--last", "--assigned"],
        ["lag", "--every", "0.5", "--topic", "orders", "--until", "2025-10-09T08:53:29"],
    ],
    ids=" ".join,
)
def test_commands_answer_the_same(
    words: list[str], data: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_command(words, data, spark, tmp_path, monkeypatch)


@pytest.mark.parametrize("job", ["offsets-history", "lag", "rebalances"])
def test_a_broker_s_logs(job: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_command([job], BROKER / "logs", spark, tmp_path, monkeypatch)


@pytest.mark.parametrize("job", ["offsets-history", "lag", "rebalances", "snapshot"])
@pytest.mark.parametrize("words", [["-o", "csv"], ["-n", "50"]], ids=" ".join)
def test_what_is_printed(
    job: str, words: list[str], data: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = []
    for where in (WITH_SPARK, ()):
        result = CliRunner().invoke(main, ["pipeline", job, str(data), *words, *where], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        found.append((sorted(result.stdout.splitlines()), result.stderr))
        monkeypatch.setattr(short_run, "_has_session", lambda: False)
        monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
    assert found[1] == found[0]


def check_command(
    words: list[str], data: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command prints and writes the same with Spark and without."""
    job, *options = words
    name = job.replace("-", "_")
    arguments: list[str | Path] = [data, *options, "--limit", "9999", "--buckets", "4", "--to"]
    of_spark = run(job, *arguments, tmp_path / "spark", *WITH_SPARK)
    # Without the tests' session nothing asks for Spark.
    monkeypatch.setattr(short_run, "_has_session", lambda: False)
    monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
    short = run(job, *arguments, tmp_path / "short")
    assert told(short) == told(of_spark) and told(short)[0][1] > 0
    written = [spark.read.parquet(str(tmp_path / where / name)) for where in ("spark", "short")]
    same_rows(written[0], written[1].toArrow())
    folders = [
        {path.parent.relative_to(tmp_path / where) for path in (tmp_path / where).glob("*/*/*/*.parquet")}
        for where in ("spark", "short")
    ]
    assert folders[0] == folders[1]
    assert (tmp_path / "short" / name / "_SUCCESS").exists()


def told(found: Any) -> list[Any]:
    tables = found["tables"].items()
    rows = [(name, table["written"], sorted(map(repr, table["rows"]))) for name, table in tables]
    return [*rows, found["history"]]


# --- jobs about states


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two with one history, and a third that went on."""
    root = tmp_path_factory.mktemp("clusters")
    for name in ("east", "west", "south"):
        rig = LogRig(root / name)
        rig.history()
        if name == "south":
            rig.commit("report", 60, "by hand", orders_0=11)
            rig.join(61)
            rig.commit("workers", 62, orders_0=12)
        rig.stop()
    return root


def both_ways(
    job: str, words: Sequence[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON of a command with Spark and without, without the names of what they wrote."""
    found = []
    for where in ("spark", "short"):
        if where == "short":
            monkeypatch.setattr(short_run, "_has_session", lambda: False)
            monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
        given = [str(word).replace("OUT", str(tmp_path / where)) for word in words]
        text = json.dumps(run(job, *given, *(WITH_SPARK if where == "spark" else ())))
        found.append(json.loads(text.replace(str(tmp_path / where), "OUT")))
    monkeypatch.undo()
    return found[0], found[1]


def random_state(rng: random.Random) -> Rows:
    """Records of coordinators: commits with keys of both types, other keys, markers, transactions and tombstones."""
    found = []
    for log in ("a1", "a2", "b"):
        for offset in range(rng.randrange(60)):
            topic = rng.choice([OFFSETS_TOPIC, OFFSETS_TOPIC, "__transaction_state", "other"])
            kind = rng.choice([0, 1, 1, 2, None])
            is_tombstone = rng.random() < 0.2
            found.append(
                {
                    "log": log, "log_topic": topic, "log_partition": rng.randrange(2), "log_offset": offset,
                    "record_type": kind, "group_id": rng.choice([*GROUPS[:2], None]), "topic": rng.choice(TOPICS),
                    "record_name": rng.choice(["x", "x", None, *MARKERS]), "partition": rng.randrange(2),
                    "key": rng.choice([b"k", b"l", b"", None]), "value": None if is_tombstone else b"v%d" % offset,
                    "producer_id": rng.choice([None, 1, 2]), "is_tombstone": is_tombstone,
                }
            )  # fmt: skip
    return found


@pytest.mark.parametrize("seed", [0, *nightly(1, 10)])
def test_the_same_newest_records(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    rows = random_state(rng)
    of_spark, short = frame(spark, "records", rows), arrow("records", rows)
    same_rows(latest(of_spark), short_latest(short))
    same_rows(latest(of_spark, None, GROUPS[:1]), short_latest(short, None, GROUPS[:1]))
    same_rows(latest(of_spark, cluster_by(first_letter), GROUPS[:1]), short_latest(short, first_letter, GROUPS[:1]))
    left = open_transactions(of_spark).selectExpr("coalesce(sum(records), 0) as records").collect()
    assert open_records(short) == left[0].records


def first_letter(log: str) -> str:
    return log[0]


@pytest.mark.parametrize(
    ("of", "words"), of_both_logs(["--group", "workers", "--topic", "orders"], ["--group", "nobody"], [])
)
def test_the_same_snapshot(
    of: str, words: list[str], clusters: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clusters if of == "clusters" else BROKER / "logs"
    arguments: list[str | Path] = [path, *words, "--to", "OUT", "--limit", "9999"]
    of_spark, short = both_ways("snapshot", arguments, tmp_path, monkeypatch)
    for name in ("offsets", "groups", "members"):
        rows = [found["tables"][name].pop("rows") for found in (of_spark, short)]
        # Several generations of a group's log are not in it, and several kinds of one group's records are.
        assert sorted(map(repr, rows[1])) == sorted(map(repr, rows[0]))
        written = [spark.read.parquet(str(tmp_path / where / name)) for where in ("spark", "short")]
        same_rows(written[0], written[1].toArrow())
    assert short == of_spark


RULES = """
[[cluster]]
logs = "west|south"
name = "down"
[[group]]
match = "report"
rename = "daily"
[[group]]
match = "n.*"
drop = true
[[topic]]
match = "orders"
rename = "shop.orders"
[[conflict]]
match = ".*"
winner = "newest"
"""


@pytest.mark.parametrize(("of", "words"), of_both_logs(["--dry-run"], ["--csv", "OUT.csv"], ["--to", "OUT"]))
def test_the_same_migration(
    of: str, words: list[str], clusters: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clusters if of == "clusters" else BROKER / "logs"
    (tmp_path / "rules.toml").write_text(RULES)
    arguments: list[str | Path] = [path, "--rules", tmp_path / "rules.toml", "--limit", "9999", *words]
    of_spark, short = both_ways("migrate", arguments, tmp_path, monkeypatch)
    assert short == of_spark and short["tables"]["plan"]["rows"]
    if "--csv" in words:
        lines = [(tmp_path / f"{where}.csv").read_bytes() for where in ("spark", "short")]
        assert lines[1] == lines[0] and lines[0]
    if "--to" in words:
        assert records_in(tmp_path / "short") == records_in(tmp_path / "spark")


@pytest.mark.parametrize("of", ["clusters", "broker"])
def test_the_same_compacted_log(
    of: str, clusters: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clusters / "south" if of == "clusters" else BROKER / "logs"
    of_spark, short = both_ways("compact", (path, "--to", "OUT"), tmp_path, monkeypatch)
    assert short == of_spark and short["records"] > 0
    assert records_in(tmp_path / "short", "log_offset") == records_in(tmp_path / "spark", "log_offset")


@pytest.mark.parametrize(
    ("of", "words"),
    of_both_logs(["--offsets-partitions", "3"], ["--offsets-partitions", "2", "--group", "workers"], []),
)
def test_the_same_violations(
    of: str, words: list[str], clusters: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clusters if of == "clusters" else BROKER / "logs"
    found = []
    for where in ("spark", "short"):
        if where == "short":
            monkeypatch.setattr(short_run, "_has_session", lambda: False)
            monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
        arguments = ["pipeline", "verify", str(path), *words, "--limit", "9999", "--to", str(tmp_path / where)]
        more = WITH_SPARK if where == "spark" else ()
        result = CliRunner().invoke(main, [*arguments, "-o", "json", *more], catch_exceptions=False)
        document = json.loads(result.stdout.replace(str(tmp_path / where), "OUT"))
        rows = document["tables"]["violations"].pop("rows")
        found.append((result.exit_code, sorted(map(repr, rows)), document))
    assert found[1] == found[0]
    if of == "clusters":
        assert found[0][0] == bool(words)
    written = [spark.read.parquet(str(tmp_path / where / "violations")) for where in ("spark", "short")]
    same_rows(written[0], written[1].toArrow())


def test_violations_hold_for_the_same_logs(spark: SparkSession) -> None:
    """Of whole logs, of some that are whole from somewhere on, of others, and of several tasks that saw one log."""
    rng = random.Random(1)
    rows = []
    for number in range(60):
        place = {"log": f"{number}", "log_topic": OFFSETS_TOPIC, "log_partition": 0}
        for holds in (ALWAYS, WHOLE, ABOVE_FLOOR, AT_FLOOR, AT_END):
            rows.append({**place, "kind": "group", "id": "g", "log_offset": 1, "rule": holds, "holds": holds})
        for _ in range(rng.randrange(1, 3)):
            counted, above, floor = rng.choice([5, 10]), rng.choice([0, 4, 8]), rng.choice([2, 6, 12, NEVER])
            seen = {"counted": counted, "lowest": rng.choice([0, 0, 1]), "highest": rng.choice([9, 9, 19])}
            rows.append({**place, **seen, "floor": floor, "above_floor": above})
    checked = pa.Table.from_pylist(rows, CHECKED)
    found = that_hold(spark.createDataFrame(checked))
    short = short_that_hold(iter(checked.to_batches())).drop_columns(["file"])
    same_rows(found, short)
    assert len({*short.column("rule").to_pylist()}) == 5


def records_in(path: Path, *more: str) -> list[str]:
    columns = ("log_topic", "log_partition", "log_timestamp", "key", "value", "headers", *more)
    wanted = {"table": "records", "columns": ",".join(columns)}
    where = json.dumps({"log_topic": ["__consumer_offsets", "__transaction_state"]})
    found = read_table(str(path), {**wanted, "where": where}, lambda _: None, lambda _: None)
    rows = sorted(map(repr, found.to_pylist()))
    assert rows
    return rows


def test_conflicts_are_refused(clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_run, "_has_session", lambda: False)
    monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
    words = ["pipeline", "migrate", str(clusters), "--to", str(tmp_path / "new")]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 2 and "3 groups would be workers" in result.stderr
    assert not (tmp_path / "new").exists()


def no_spark(_run: object) -> None:
    raise AssertionError("Spark was started")
