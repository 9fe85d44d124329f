"""Makes tests/data/broker anew: logs of a real Kafka 4.3 broker, and what is known of them from elsewhere.

    python -m tests.data.make_broker_logs

Needs what `make interop` needs. Takes some minutes; the broker lives three times on the same directory, so that groups
can expire in a minute and the leader epoch goes up. README.md beside this says what it leaves behind.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.data import broker_groups, broker_reading, broker_topics, broker_transactions
from tests.data.broker_dump import dump, write_lines
from tests.data.broker_life import Life, Victim, now_ms
from tests.harness.real_broker import RealBroker

TARGET = Path(__file__).resolve().parent / "broker"
SEGMENT_BYTES = 16384
STOP_DEADLINE_S = 60

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
    # Indexes worth reading in small segments, and small files of them.
    "log.index.interval.bytes": "512",
    "log.index.size.max.bytes": "8192",
    # Nothing goes by itself: every commit is still in the log. The topic `compacted` says otherwise.
    "log.retention.ms": "-1",
    "log.cleaner.min.compaction.lag.ms": "86400000",
    "log.cleaner.backoff.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "5000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "100",
    "offsets.retention.check.interval.ms": "2000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
# In its first life the broker forgets soon; in its last it compresses what coordinators write.
FIRST = {
    "offsets.retention.minutes": "1",
    "transactional.id.expiration.ms": "10000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}
LAST = {"offsets.topic.compression.codec": "4"}


def first_life(life: Life, data: Path) -> None:
    broker_topics.orders(life)
    broker_transactions.create(life)
    broker_groups.expiring(life)
    broker_transactions.expiring(life)
    for topic in ("__consumer_offsets", "__transaction_state"):
        life.alter(topic, "internal.segment.bytes", str(SEGMENT_BYTES))
    broker_topics.codecs(life)
    broker_topics.odd(life)
    broker_topics.appended(life)
    broker_topics.trimmed(life)
    broker_topics.compacted(life, data)
    broker_groups.wait_expired(life)


def second_life(life: Life, port: int) -> None:
    for region in ("region-eu", "region-us"):
        life.create(region, 1)
    broker_topics.more_orders(life, 30, "second life")
    broker_groups.classic(life)
    broker_groups.classic_others(life)
    broker_groups.next_generation(life)
    broker_groups.migrated(life)
    broker_groups.deleted(life)
    broker_groups.java_clients(life)
    broker_groups.retained(life, port)
    broker_groups.busy(life)
    broker_transactions.payments(life)
    broker_transactions.offsets(life)
    broker_transactions.timed_out(life)


def last_life(life: Life) -> list[Victim]:
    """The clients that are still there when the broker stops."""
    broker_topics.more_orders(life, 30, "last life")
    life.commit_as_admin("half-deleted", [("orders", 0, 33, "compressed"), ("orders", 2, 34, "compressed")])
    life.commit_as_admin("late", [("orders", p, 240 + p, "a group of the last life") for p in range(3)])
    victims = [
        Victim(life, "member", f"live-{protocol}", f"live-{protocol}", protocol, "orders")
        for protocol in ("classic", "consumer")
    ]
    victims.append(broker_transactions.left_open(life))
    broker_transactions.behind_open(life)
    life.create("gone", 1)
    broker_topics.delete(life, "gone")
    return victims


def known(life: Life, started_ms: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The answers, and the messages."""
    messages = broker_reading.messages(life)
    shown = [[m["partition"], m["offset"]] for m in messages if m["topic"] == "payments" and m["committed"]]
    seen_by_java = broker_reading.java_offsets(life, "payments", len(shown))
    assert seen_by_java == sorted(shown), "Java saw something else"
    groups = life.groups()
    described = {}
    for group, (kind, _) in groups.items():
        if kind != "Share":
            described[group] = life.describe(group)
    answers = {
        "broker": "Apache Kafka 4.3.1",
        "started_ms": started_ms,
        "ended_ms": now_ms(),
        "groups": groups,
        "described": described,
        "committed": {group: life.committed(group) for group, (kind, _) in groups.items() if kind != "Share"},
        "committing_by_themselves": ["java-classic", "java-consumer"],
        "ends": broker_reading.ends(life),
        "commits": life.commits,
        "events": life.events,
    }
    return answers, messages


def stop(broker: RealBroker) -> None:
    """Stops it cleanly, which writes checkpoints and cuts the indexes to their size; else the data is worth nothing."""
    broker.stop()
    if not (broker.data / ".kafka_cleanshutdown").exists():
        raise RuntimeError(f"the broker did not stop cleanly:\n{broker.log_tail()}")
    shutil.rmtree(broker.home, ignore_errors=True)


def live(home: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    life = Life()
    data = home / "logs"
    started_ms = now_ms()
    for number, settings in enumerate((FIRST, {}, LAST)):
        broker = RealBroker({**SETTINGS, **settings}, keep=True, data=data)
        with broker:
            life.use(broker.bootstrap)
            life.note("broker", "started", life=number)
            if number == 0:
                first_life(life, data)
            elif number == 1:
                second_life(life, broker.port)
            else:
                victims = last_life(life)
                try:
                    found = known(life, started_ms)
                finally:
                    for victim in victims:
                        victim.kill()
            life.note("broker", "stops", life=number)
            stop(broker)
        print(f"life {number} over after {(now_ms() - started_ms) / 1000:.0f} s", flush=True)
    return found


def tidy(data: Path) -> None:
    """Removes what says nothing: locks, and files that were about to be deleted."""
    for path in [data / ".lock", *data.rglob("*.deleted")]:
        path.unlink(missing_ok=True)


def store(data: Path, answers: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    # Beside these are other data sets.
    for name in ("logs", "dump"):
        shutil.rmtree(TARGET / name, ignore_errors=True)
    TARGET.mkdir(exist_ok=True)
    shutil.copytree(data, TARGET / "logs")
    for path in sorted((TARGET / "logs").iterdir()):
        if path.is_dir() and re.fullmatch(r".+-\d+", path.name):
            write_lines(TARGET / "dump" / f"{path.name}.jsonl.gz", dump(path))
    write_lines(TARGET / "messages.jsonl.gz", messages)
    (TARGET / "answers.json").write_text(as_text(answers), encoding="utf-8")


def as_text(answers: dict[str, Any]) -> str:
    """JSON with one commit, event, group or end per line, so that differences read well."""
    parts = []
    for name, value in answers.items():
        if isinstance(value, dict):
            rows = [
                f"  {json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items()
            ]
            shown = "{\n" + ",\n".join(rows) + "\n }"
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            shown = "[\n" + ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value) + "\n ]"
        else:
            shown = json.dumps(value)
        parts.append(f' "{name}": {shown}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="kcoord-broker-logs-"))
    try:
        answers, messages = live(home)
        tidy(home / "logs")
        store(home / "logs", answers, messages)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    files = [path for path in TARGET.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {size:,} bytes, {len(answers['commits'])} commits, {len(messages)} messages")


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"in {time.monotonic() - started:.0f} s")
