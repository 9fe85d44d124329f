"""Kafka Streams with `exactly_once_v2`: a word count is exact though its JVM and the server are killed with kill -9.

Streams runs on the classic group protocol. Its own protocol (KIP-1071, `group.protocol=streams`) is not served.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import java
from tests.harness.kcoord_server import KcoordServer
from tests.harness.present import present

DEADLINE_S = 120.0
PARTITIONS = 2
WORDS = 40
WORDS_IN_LINE = 4
# Members that were killed do not delay the group.
SETTINGS = {"group.min.session.timeout.ms": "1000"}
STORES = ("memory", "rocksdb")


@pytest.fixture(scope="session")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("streams-classes")
    source = java.SOURCES / "streams" / "WordCount.java"
    jars = f"{java.streams_libs()}/*"
    command = [java.tool("javac"), "-nowarn", "-d", str(target), "-cp", jars, str(source)]
    subprocess.run(command, check=True, timeout=java.JAVAC_DEADLINE_S)
    return f"{target}{os.pathsep}{jars}"


class App:
    """One JVM with the word count; its state directory stays when it is killed."""

    def __init__(self, classpath: str, home: Path, *arguments: str) -> None:
        self._command = [java.tool("java"), "-Xmx256m", *java.JVM_FLAGS, "-cp", classpath, "WordCount", *arguments]
        self._output = home / "output.txt"
        self.start()

    def start(self) -> None:
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def errors(self) -> list[str]:
        return [line for line in self._output.read_text().splitlines() if line.startswith("error ")]

    def tail(self) -> str:
        return self._output.read_text()[-3000:]


class Reader:
    """Committed values of each key of a topic, in their order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
                "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self.values: dict[str, list[bytes]] = {}
        self.count = 0

    def read_until(self, count: int, apps: list[App]) -> None:
        """Until there are so many values."""
        ends_at = time.monotonic() + DEADLINE_S
        while self.count < count:
            assert time.monotonic() < ends_at, (
                f"{self.count} counts, waited for {count}\n{[app.tail() for app in apps]}"
            )
            self._read()

    def read_to_end(self) -> None:
        """Up to the last stable offsets. The reader is new: the end of a partition is reported once."""
        ends_at = time.monotonic() + DEADLINE_S
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            assert time.monotonic() < ends_at, f"the ends of {sorted(ended)}, of {PARTITIONS} partitions"
            if (partition := self._read()) is not None:
                ended.add(partition)

    def _read(self) -> int | None:
        """The partition that was read to its end, if one was."""
        message = self._consumer.poll(0.5)
        if message is None:
            return None
        if message.error() is not None:
            return present(message.partition())
        key, value = present(message.key()), present(message.value())
        self.values.setdefault(bytes(key).decode(), []).append(bytes(value))
        self.count += 1
        return None

    def close(self) -> None:
        self._consumer.close()


class Feed:
    """Lines of random words, and how often each word occurred."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self._rng = random.Random(seed)
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer(settings)
        self._topic = topic
        self.words: Counter[str] = Counter()

    def produce(self, lines: int) -> None:
        for _ in range(lines):
            words = [f"word{self._rng.randrange(WORDS)}" for _ in range(WORDS_IN_LINE)]
            self.words.update(words)
            self._producer.produce(self._topic, " ".join(words).encode())
            self._producer.poll(0)
        assert self._producer.flush(DEADLINE_S) == 0


@pytest.fixture
def server() -> Iterator[KcoordServer]:
    with KcoordServer(SETTINGS) as running:
        yield running


def create_topics(server: KcoordServer, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(DEADLINE_S)


def read_committed(server: KcoordServer, topic: str) -> dict[str, list[bytes]]:
    """All committed values of each key."""
    with closing(Reader(server.bootstrap, topic)) as reader:
        reader.read_to_end()
        return reader.values


def check_counts(server: KcoordServer, words: Counter[str]) -> None:
    """Each word has all its counts once, in order, and its store agrees."""
    counts = read_committed(server, "words-counts")
    for word, number in words.items():
        assert [int(value) for value in counts[word]] == list(range(1, number + 1)), word
    assert counts.keys() == words.keys()
    changelog = read_committed(server, "words-counts-changelog")
    assert {word: int.from_bytes(values[-1]) for word, values in changelog.items()} == words


def count_words(server: KcoordServer, apps: list[App], victims: list[App | KcoordServer], lines: int) -> None:
    """Feeds as many lines before each kill, and kills in the middle of them."""
    feed = Feed(server.bootstrap, "words-lines", seed=len(victims))
    with closing(Reader(server.bootstrap, "words-counts")) as counts:
        for victim in victims:
            feed.produce(lines)
            counts.read_until(feed.words.total() - lines * WORDS_IN_LINE // 2, apps)
            if isinstance(victim, App):
                victim.kill()
            else:
                victim.stop(kill=True)
            victim.start()
        feed.produce(lines)
        counts.read_until(feed.words.total(), apps)
    for app in apps:
        app.kill()
    check_counts(server, feed.words)
    for app in apps:
        assert app.errors() == []


@contextmanager
def running(server: KcoordServer, classpath: str, home: Path, store: str, count: int) -> Iterator[list[App]]:
    """As many instances of the word count."""
    create_topics(server, "words-lines", "words-counts")
    apps: list[App] = []
    try:
        for number in range(count):
            own = home / str(number)
            own.mkdir()
            apps.append(App(classpath, own, server.bootstrap, "words", str(own / "state"), store))
        yield apps
    finally:
        for app in apps:
            app.kill()


def test_words_are_counted_exactly_once(server: KcoordServer, classpath: str, tmp_path: Path) -> None:
    with running(server, classpath, tmp_path, "rocksdb", 1) as apps:
        count_words(server, apps, [apps[0], server], 700)


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
def test_two_instances_count_words_exactly_once(
    store: str, server: KcoordServer, classpath: str, tmp_path: Path
) -> None:
    with running(server, classpath, tmp_path, store, 2) as apps:
        first, second = apps
        count_words(server, apps, [first, server, second, server, second, first, server], 3000)
