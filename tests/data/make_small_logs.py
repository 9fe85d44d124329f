"""Makes the small data sets beside the large one in tests/data/broker: other releases, compaction, crashes.

    python -m tests.data.make_small_logs release 3.9.2       tests/data/broker/release-3.9
    python -m tests.data.make_small_logs release 4.0.0       tests/data/broker/release-4.0
    python -m tests.data.make_small_logs compacting          tests/data/broker/{copied,killed,torn,compacted}

Needs what `make interop` needs; Maven fetches the jars of a release that is named for the first time. Takes two to four
minutes each. With `--target DIR` they are made elsewhere. README.md beside this says what is in them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.data import small_lives
from tests.data.broker_java import JavaMember
from tests.data.broker_life import Life, Victim, done, wait_until
from tests.data.broker_transactions import Transactional
from tests.data.make_broker_logs import TARGET, as_text
from tests.data.small_answers import ask, store
from tests.harness.real_broker import RealBroker

SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "log.index.interval.bytes": "512",
    "log.index.size.max.bytes": "8192",
    "log.retention.ms": "-1",
    # So that members are there still when a broker is started on the logs to be asked about them.
    "group.consumer.max.session.timeout.ms": small_lives.PATIENT_MS,
    "group.consumer.session.timeout.ms": small_lives.PATIENT_MS,
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "100",
    "group.consumer.migration.policy": "bidirectional",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
WHOLE = {"log.cleaner.min.compaction.lag.ms": "86400000"}
CLEANING = {"log.cleaner.backoff.ms": "1000"}
# 3.9 has the old coordinator unless the new protocol, which is a preview there, is switched on.
PREVIEW = {"group.coordinator.rebalance.protocols": "classic,consumer"}
LIVES: dict[str, tuple[dict[str, str], ...]] = {"3.9": ({}, PREVIEW), "4.0": ({},)}
CLEANED_TOPIC = {
    "internal.segment.bytes": "8192",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    # Tombstones go, too.
    "delete.retention.ms": "2000",
}
OFFSETS = "__consumer_offsets"
ROUNDS_MIN = 4
TORN_BYTES = 10
PAUSE_S = 0.03
Staying = list[Victim | JavaMember]
# By group of the writers: the last commit that was answered, and the last that was sent.
Answered = dict[str, list[int]]


@contextmanager
def life_of(life: Life, data: Path, settings: dict[str, str]) -> Iterator[RealBroker]:
    """A broker on `data`, with `life` as its clients'. What it writes beside its data goes in the end."""
    broker = RealBroker(settings, keep=True, data=data, release=life.release)
    try:
        with broker:
            life.use(broker.bootstrap)
            life.note("broker", "started", settings=settings)
            yield broker
    finally:
        shutil.rmtree(broker.home, ignore_errors=True)


def stop(life: Life, broker: RealBroker) -> None:
    broker.stop()
    if not (broker.data / ".kafka_cleanshutdown").exists():
        raise RuntimeError(f"the broker did not stop cleanly:\n{broker.log_tail()}")
    life.note("broker", "stopped")


def kill(staying: Staying) -> None:
    for member in staying:
        member.kill()
    staying.clear()


def document(life: Life, about: str, **answers: Any) -> str:
    facts = {"broker": f"Apache Kafka {life.release or '4.3.1'}", "about": about}
    return as_text({**facts, **answers, "commits": life.commits, "events": life.events})


def of_release(home: Path, target: Path, release: str) -> None:
    """Each life of the release, cleanly stopped in the end, with members that were there."""
    name = ".".join(release.split(".")[:2])
    life = Life(release)
    data = home / "data"
    staying: Staying = []
    with ExitStack() as stack:
        stack.callback(kill, staying)
        for number, more in enumerate(LIVES[name]):
            settings = {**SETTINGS, **WHOLE, **more}
            with life_of(life, data, settings) as broker:
                if number == 0:
                    small_lives.topics(life)
                    small_lives.without_members(life)
                    staying += small_lives.classic(life, "")
                    staying += small_lives.transactions(life)
                if number == len(LIVES[name]) - 1:
                    if number:
                        staying += small_lives.classic(life, "-again")
                    staying += small_lives.consumer(life)
                    if name != "3.9":
                        staying += small_lives.regex(life)
                stop(life, broker)
            kill(staying)
            print(f"life {number} is over", flush=True)
    (data / ".lock").unlink(missing_ok=True)
    answers = ask(data, settings, release)
    store(target / f"release-{name}", data, document(life, "cleanly stopped", **answers))


class Writers:
    """Threads that commit without end: offset N with metadata GROUP N in all partitions of `orders`, N from 1 on.

    `answered` and `asked` are the last N of each group that was answered, and that was sent.
    """

    def __init__(self, life: Life, groups: tuple[str, ...]) -> None:
        self.life = life
        self.answered = dict.fromkeys(groups, 0)
        self.asked = dict.fromkeys(groups, 0)
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(group,), daemon=True) for group in groups]
        for thread in self._threads:
            thread.start()

    def _work(self, group: str) -> None:
        """Ends when the broker is gone, too."""
        while not self._ending.is_set():
            offset = self.asked[group] = self.asked[group] + 1
            commits = [("orders", p, offset, f"{group} {offset}") for p in range(3)]
            try:
                self.life.commit_as_admin(group, commits, noted=False)
            except Exception as e:
                self.life.note(group, "was cut off", why=type(e).__name__)
                return
            self.answered[group] = offset
            self._ending.wait(PAUSE_S)

    def so_far(self) -> Answered:
        """By group: the last that was answered and the last that was sent."""
        return {group: [self.answered[group], self.asked[group]] for group in self.asked}

    def stop(self) -> Answered:
        self._ending.set()
        for thread in self._threads:
            thread.join(120)
        return self.so_far()


def cleaned_to(data: Path) -> dict[str, int]:
    """How far the cleaner has come in each partition of the offsets topic."""
    path = data / "cleaner-offset-checkpoint"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {f"{row[0]}-{row[1]}": int(row[2]) for row in rows if len(row) == 3 and row[0] == OFFSETS}


def wait_cleaned(data: Path, times: int) -> None:
    """Until the cleaner went through both partitions so many times."""
    for _ in range(times):
        before = cleaned_to(data)

        def further(before: dict[str, int] = before) -> bool:
            now = cleaned_to(data)
            return len(now) == 2 and all(now[name] > before.get(name, 0) for name in now)

        wait_until("the cleaner", further, 120)


def listing(path: Path) -> list[tuple[str, int]]:
    return sorted((file.name, file.stat().st_ino) for file in path.iterdir())


def copy_running(data: Path, target: Path) -> None:
    """Copies a directory that a broker writes to, each partition again until no file came, went or was replaced."""
    target.mkdir()
    for path in sorted(data.iterdir()):
        if not path.is_dir():
            shutil.copy2(path, target / path.name)
            continue
        for _ in range(100):
            try:
                before = listing(path)
                shutil.copytree(path, target / path.name)
                if listing(path) == before and not list(path.glob("*.swap")):
                    break
            except (FileNotFoundError, shutil.Error):
                time.sleep(0.1)
            shutil.rmtree(target / path.name, ignore_errors=True)
        else:
            raise RuntimeError(f"{path} never stood still")
    (target / ".lock").unlink(missing_ok=True)


def tear(data: Path) -> None:
    """Cuts the last bytes of each partition of the offsets topic, which end in the middle of a batch then."""
    for path in sorted(data.glob(f"{OFFSETS}-*")):
        segment = max(file for file in path.glob("*.log") if file.stat().st_size > TORN_BYTES)
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - TORN_BYTES)


def first_cleaned_life(
    life: Life, data: Path, copied: Path, broker: RealBroker, staying: Staying
) -> tuple[Life, Answered, Answered]:
    """Until the broker is killed. Returns what was known when the copy began and when the broker was killed."""
    small_lives.topics(life)
    life.commit_as_admin("simple", [("orders", 0, 1, "")])
    for name, value in CLEANED_TOPIC.items():
        life.alter(OFFSETS, name, value)
    small_lives.without_members(life)
    staying += small_lives.classic(life, "")
    staying += small_lives.consumer(life)
    staying += small_lives.regex(life)
    writers = Writers(life, ("busy-0", "busy-1", "busy-2"))
    wait_cleaned(data, ROUNDS_MIN)
    known = Life()
    known.commits, known.events = list(life.commits), list(life.events)
    before = writers.so_far()
    copy_running(data, copied)
    # What was sent while it was copied may be in the copy.
    copied_with = {group: [before[group][0], asked] for group, (_, asked) in writers.so_far().items()}
    wait_cleaned(data, ROUNDS_MIN)
    # Last: the cleaner does not go beyond an open transaction.
    staying += small_lives.transactions(life)
    time.sleep(2)
    broker.stop(kill=True)
    life.note("broker", "killed")
    kill(staying)
    return known, copied_with, writers.stop()


def compacting(home: Path, target: Path) -> None:
    """A broker that compacts all the time: copied while it runs, killed, the same torn, stopped after another life."""
    life = Life()
    data, copied, killed, torn = (home / name for name in ("data", "copied", "killed", "torn"))
    settings = {**SETTINGS, **CLEANING}
    staying: Staying = []
    with ExitStack() as stack:
        stack.callback(kill, staying)
        with life_of(life, data, settings) as broker:
            known, copied_with, killed_with = first_cleaned_life(life, data, copied, broker, staying)
    (data / ".lock").unlink(missing_ok=True)
    shutil.copytree(data, killed)
    shutil.copytree(data, torn)
    tear(torn)
    for path, one, writers, about in (
        (copied, known, copied_with, "copied while the broker wrote and compacted"),
        (killed, life, killed_with, "killed while clients wrote"),
        (torn, life, killed_with, f"as killed, then {TORN_BYTES} bytes cut from the end of each offsets partition"),
    ):
        store(target / path.name, path, document(one, about, writers=writers, **ask(path, settings, "")))
        print(f"{path.name} is done", flush=True)
    last = second_cleaned_life(life, data, settings)
    about = "cleanly stopped after a second life; compacted many times"
    store(target / "compacted", data, document(life, about, writers=last, **ask(data, settings, "")))


def second_cleaned_life(life: Life, data: Path, settings: dict[str, str]) -> Answered:
    with life_of(life, data, settings) as broker:
        # Whoever comes with that id ends the transaction that was left open.
        Transactional(life, "tx-open")
        for entry in life.commits:
            if entry.get("outcome") == "open":
                entry["outcome"] = "aborted"
        for group in ("classic", "aiokafka"):
            places = [(topic, partition) for topic, partition, *_ in life.committed(group)]
            done(life.admin.delete_consumer_groups([group]))
            life.note("admin", "delete group", group=group)
            for topic, partition in places:
                life.note_forgotten(group, topic, partition, "group deleted")
        writers = Writers(life, ("busy-3", "busy-4", "busy-5"))
        wait_cleaned(data, ROUNDS_MIN)
        last = writers.stop()
        stop(life, broker)
    (data / ".lock").unlink(missing_ok=True)
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("release", "compacting"))
    parser.add_argument("release", nargs="?", default="", help="such as 3.9.2")
    parser.add_argument("--target", type=Path, default=TARGET)
    given = parser.parse_args()
    makers: dict[str, Callable[[Path], None]] = {
        "release": lambda home: of_release(home, given.target, given.release),
        "compacting": lambda home: compacting(home, given.target),
    }
    home = Path(tempfile.mkdtemp(prefix="kcoord-small-logs-"))
    started = time.monotonic()
    try:
        makers[given.what](home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
