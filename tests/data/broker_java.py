"""A consumer of Java's client, of the release of Kafka that the broker has; tests/interop/java/GroupClient.java."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from typing import Any

from tests.data.broker_life import DEADLINE_S, Commit, Life, wait_until
from tests.harness import java

# As in broker_life: a commit that meets a rebalance is refused, writes nothing and is sent again.
PASSING = ("RebalanceInProgress", "CommitFailed", "StaleMemberEpoch", "Timeout")


class JavaMember:
    """As `Member`, but of Java. It reads from the beginning, and commits only what it is asked for."""

    def __init__(self, life: Life, name: str, group: str, topics: str, **settings: str) -> None:
        assert name.startswith("java-"), name
        self.life = life
        self.name = name
        self.group = group
        given = {"client.id": name, "metadata.max.age.ms": "500"}
        given.update({key.replace("_", "."): value for key, value in settings.items()})
        words = [word for pair in given.items() for word in pair]
        command = java.command(
            "GroupClient", life.bootstrap, group, topics, *words, heap_mb=128, release=life.release
        )
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._owned: set[tuple[str, int]] = set()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        life.note(name, "join", group=group, topics=topics, settings=settings)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "event" not in line:
                self._answers.put(line)
                continue
            given = {(topic, partition) for topic, partition in line["partitions"]}
            self._owned = self._owned | given if line["event"] == "assigned" else self._owned - given
            self.life.note(self.name, line["event"], group=self.group, partitions=sorted(line["partitions"]))

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        return self._answers.get(timeout=DEADLINE_S)

    def owned(self) -> list[list[Any]]:
        return sorted([topic, partition] for topic, partition in self._owned)

    def wait_owned(self, count: int) -> None:
        wait_until(f"{self.name} to own {count}", lambda: len(self._owned) == count)

    def positions(self) -> list[list[Any]]:
        return self._noted("positions")

    def committed(self) -> list[list[Any]]:
        return self._noted("committed")

    def _noted(self, what: str) -> list[list[Any]]:
        found = sorted(self._ask(what)["answer"])
        self.life.note(self.name, what, group=self.group, **{what: found})
        return found

    def commit(self, *commits: Commit) -> None:
        for attempt in range(20):
            told = self._ask("commit", offsets=[list(commit) for commit in commits])
            if "error" not in told:
                break
            assert attempt < 19 and any(word in told["error"] for word in PASSING), told
            time.sleep(0.3)
        for commit in commits:
            self.life.note_commit(self.name, self.group, commit, "commit")

    def close(self) -> None:
        self._ask("close")
        self._end()
        self.life.note(self.name, "close", group=self.group)

    def kill(self) -> None:
        self._process.kill()
        self._end()
        self.life.note(self.name, "killed")

    def _end(self) -> None:
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()
