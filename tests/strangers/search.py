"""The search: a server, polite clients at work, strangers that misbehave beside them, and the promises to the polite.

A violation ends the run. What is checked at the end is in `_check_end`.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kcoord.protocol.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kcoord.protocol.offset_fetch import OffsetFetchResponse
from kcoord.server.probe import Probe, ProbeError
from tests.crash.copy_client import PARTITIONS, names
from tests.crash.copy_reader import first_difference, read_committed
from tests.crash.kill_copies import Copier
from tests.e2e.process import kcoord_command
from tests.harness.ports import own_port
from tests.strangers import requests
from tests.strangers.child import Child
from tests.strangers.feed import Feed
from tests.strangers.ledger import KILL, PAUSE, Ledger
from tests.strangers.members import GROUPS, MEMBERS
from tests.strangers.newcomers import TOPIC, Newcomer, group_of
from tests.strangers.server import STOP_S, Server

POLITE_PARTITIONS: Final = 4
COPIERS: Final = ("confluent-kafka", "aiokafka")
COPY_BATCH: Final = 20
START_S: Final = 60.0
# How long the polite clients may take for what is left once the strangers are gone.
FINISH_S: Final = 60.0
WATCH_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 0.1
ASK_S: Final = 20.0
PAUSE_EVERY_S: Final = 12.0
KILL_EVERY_S: Final = 60.0
PAUSE_S: Final = (1.0, 3.0)
SETTLE_S: Final = 30.0
MEMORY_GROWS_MB: Final = 300.0
# Beside the logs of partitions that clients have used meanwhile.
FILES_GROW: Final = 200
VERIFY_S: Final = 120.0


class Violated(Exception):
    """A promise is broken; the ledger has the text."""


class Search:
    """One run. `violations` is empty afterwards if every promise was kept."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        actions: list[str] | None = None,
        settings: Iterable[str] = (),
        kill_every_s: float = KILL_EVERY_S,
    ) -> None:
        self.seed = seed
        self.seconds = seconds
        self.actions = actions or []
        self.kill_every_s = kill_every_s
        self.ledger = Ledger()
        self.rng = random.Random(seed)
        self.listen = f"127.0.0.1:{own_port()}"
        self.copier_names = (self.rng.choice(COPIERS),)
        exempt = str(self.rng.random() < 0.5).lower()
        own = [
            f"--set=max.connections.per.ip.exempt.loopback={exempt}", f"--set=num.partitions={PARTITIONS}",
            f"--set=group.consumer.session.timeout.ms={requests.SESSION_MS}",
            f"--set=group.consumer.min.session.timeout.ms={requests.SESSION_MS}",
        ]  # fmt: skip
        self.folder = folder
        self.server = Server(folder / "data", self.listen, [*own, *(f"--set={one}" for one in settings)])
        self.children: list[Child] = []
        self.copiers: list[Copier] = []
        self.feed: Feed | None = None
        self.start_sockets = 0
        self.start_files = 0
        self.start_mb = 0.0
        self.most_mb = 0.0
        self.end_mb = 0.0
        self.stop_s = 0.0

    # --- the run -----------------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        try:
            self._start_polite()
            rogues, newcomers = self._start_strangers()
            self._run_faults(time.monotonic() + self.seconds)
            self._end_strangers(rogues, newcomers)
            self._check_end()
        except Violated:
            pass
        finally:
            for child in self.children:
                child.stop()
            for copier in self.copiers:
                copier.end()
            self.server.close()
            self.server.save_log(self.folder / "server.log")
        return self.ledger.violations

    def _start_polite(self) -> None:
        self.start_files, self.start_sockets = self.server.descriptors()
        topics = {TOPIC: POLITE_PARTITIONS}
        for library in self.copier_names:
            topics |= dict.fromkeys(names(library), PARTITIONS)
        admin = AdminClient({"bootstrap.servers": self.listen})
        for made in admin.create_topics([NewTopic(name, count) for name, count in topics.items()]).values():
            made.result(ASK_S)
        fed = {name: count for name, count in topics.items() if not name.startswith("copies-")}
        self.feed = Feed(self.listen, fed, self.ledger.violate)
        for library in GROUPS:
            self._start("members", [library, self.listen])
        self.copiers = [Copier(library, self.listen, COPY_BATCH) for library in self.copier_names]
        groups = [group for groups in GROUPS.values() for group in groups]
        self._wait(
            START_S, "the polite clients have begun to work",
            lambda: all(self._is_settled(group) for group in groups) and all(one.commits for one in self.copiers),
        )  # fmt: skip
        for group in groups:
            self._watch_group(group)
        self.ledger.is_settled = True
        self.start_mb = self.server.memory_mb()

    def _start_strangers(self) -> tuple[Child, Child]:
        rogues = self._start("rogues", [str(self.server.port), str(self.seed), *self.actions])
        self._wait(START_S, "the strangers have their topics", lambda: self.ledger.is_prepared)
        return rogues, self._start("newcomers", [str(self.server.port), str(self.seed)])

    def _start(self, module: str, arguments: list[str]) -> Child:
        child = Child(f"tests.strangers.{module}", arguments, self._take)
        self.children.append(child)
        return child

    def _take(self, kind: str, rest: list[Any]) -> None:
        """A line of a child."""
        ledger = self.ledger
        if kind == "newcomer":
            ledger.newcomer(Newcomer(*rest))
        elif kind == "prepared":
            ledger.is_prepared = True
        elif kind == "began":
            ledger.action_began(*rest)
        elif kind == "cut off":
            ledger.counts["actions cut off"] += 1
        elif kind == "ended":
            ledger.action_ended(*rest)
        elif kind == "asked":
            ledger.asked(*rest)
        elif kind == "committed":
            ledger.acknowledged(*rest)
        elif kind == "stored":
            ledger.stored(*rest)
        elif kind == "failed":
            ledger.failed(*rest)
        else:
            ledger.violate(str(rest[0]))

    def _run_faults(self, ends_at: float) -> None:
        rng = self.rng
        pause_at = time.monotonic() + PAUSE_EVERY_S * rng.expovariate(1.0)
        kill_at = time.monotonic() + self.kill_every_s * rng.expovariate(1.0)
        watch_at = 0.0
        while (now := time.monotonic()) < ends_at:
            self._look()
            if now >= watch_at:
                self._watch()
                watch_at = time.monotonic() + WATCH_EVERY_S
            if now >= pause_at:
                with self.ledger.interruption(PAUSE):
                    self.server.pause(rng.uniform(*PAUSE_S))
                pause_at = time.monotonic() + PAUSE_EVERY_S * rng.expovariate(1.0)
            if now >= kill_at:
                self._look()
                with self.ledger.interruption(KILL):
                    self.server.kill()
                kill_at = time.monotonic() + self.kill_every_s * rng.expovariate(1.0)
            time.sleep(LOOK_EVERY_S)

    def _end_strangers(self, rogues: Child, newcomers: Child) -> None:
        for child in (rogues, newcomers):
            child.ask_to_end()
        self._wait(
            FINISH_S, "the strangers have left",
            lambda: rogues.process.poll() is not None and newcomers.process.poll() is not None,
        )  # fmt: skip
        for child in (rogues, newcomers):
            self.children.remove(child)
            if problem := child.end():
                self._violate(problem)

    # --- what is looked at all the time ------------------------------------------------------------------------

    def _violate(self, text: str) -> None:
        self.ledger.violate(text)
        raise Violated(text)

    def _look(self) -> None:
        """Raises Violated at the first broken promise."""
        for text, fields in self.server.new_lines():
            self.ledger.line(text, fields)
        code = self.server.exit_code()
        if code is not None:
            tail = "".join(self.server.process.stderr[-10:])
            self._violate(f"the server ended by itself with code {code}\n{tail}")
        self.most_mb = max(self.most_mb, self.server.memory_mb())
        for child in self.children:
            if child.process.stdin is not None and not child.process.stdin.closed and (problem := child.problem()):
                self._violate(problem)
        for copier in self.copiers:
            for problem in copier.reader.problems:
                self._violate(problem)
            if self.ledger.actions[KILL] and time.monotonic() > copier.restarts_at:
                # A library may wait for an answer that it does not expect any more (tests/crash/kill_copies.py).
                copier.stop()
                copier.start()
        if self.ledger.violations:
            raise Violated

    def _wait(self, seconds: float, what: str, is_done: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + seconds
        while not is_done():
            self._look()
            if time.monotonic() > ends_at:
                self._violate(f"not within {seconds:.0f} s: {what}")
            time.sleep(LOOK_EVERY_S)
        self._look()

    def _watch(self) -> None:
        for groups in GROUPS.values():
            for group in groups:
                self._watch_group(group)
        for one in self.copiers:
            copied = one.copied
            found = self._ask(partial(stored_offsets, group=one.target, topic=one.source, partitions=PARTITIONS))
            if any(max(found[partition], 0) < offset for partition, offset in copied.items()):
                self._violate(f"{one.target}: transactions committed {copied}, and {found} is stored")

    def _ask(self, ask: Callable[[Probe], Any]) -> Any:
        try:
            with Probe(self.listen, ASK_S) as probe:
                return ask(probe)
        except ProbeError as error:
            self._look()
            self._violate(f"a watcher's request failed: {error}")

    def _watch_group(self, group: str) -> None:
        promised = self.ledger.promised(group)
        _, members, offsets = self._ask(lambda probe: describe(probe, group))
        self.ledger.members(group, members, time.monotonic())
        for partition, offset in promised.items():
            self.ledger.stored(group, partition, offset, offsets[partition])

    def _is_settled(self, group: str) -> bool:
        state, members, offsets = self._ask(lambda probe: describe(probe, group))
        return state == "Stable" and len(members) == MEMBERS and min(offsets.values()) > 0

    # --- the end -----------------------------------------------------------------------------------------------

    def _check_end(self) -> None:
        feed = self.feed
        assert feed is not None
        feed.end()
        groups = [group for groups in GROUPS.values() for group in groups]
        self._wait(
            FINISH_S, "the polite groups have read everything",
            lambda: all(self._is_at_end(group, TOPIC, feed) for group in groups),
        )  # fmt: skip
        self._wait(
            FINISH_S, "the copies are complete",
            lambda: all(self._is_at_end(one.target, one.source, feed) for one in self.copiers),
        )  # fmt: skip
        self._watch()
        self._check_copies(feed)
        self._check_newcomers()
        self.ledger.is_settled = False
        for child in self.children:
            if problem := child.end():
                self.ledger.violate(problem)
        self.children.clear()
        self.ledger.check_invented()
        for copier in self.copiers:
            copier.end()
        self.copiers.clear()
        self._check_returned()
        self._check_stop()

    def _is_at_end(self, group: str, topic: str, feed: Feed) -> bool:
        wanted = {partition: count for (name, partition), count in feed.counts.items() if name == topic}
        return bool(self._ask(lambda probe: stored_offsets(probe, group, topic, len(wanted))) == wanted)

    def _check_copies(self, feed: Feed) -> None:
        for one in self.copiers:
            for partition, values in read_committed(self.listen, one.target).items():
                count = feed.counts[one.source, partition]
                difference = first_difference(values)
                if not difference and len(values) != count:
                    difference = f"{count} were produced"
                if difference:
                    self._violate(f"{one.target}-{partition} of {len(values)} records is no copy: {difference}")

    def _check_newcomers(self) -> None:
        """What they committed is still there."""
        for one in self.ledger.newcomers:
            if one.committed:
                found = self._ask(partial(stored_offsets, group=group_of(one.number), topic=TOPIC, partitions=1))
                if found != {0: one.number + 1}:
                    self._violate(f"newcomer {one.number} committed {one.number + 1}, and {found} is stored")

    def _check_returned(self) -> None:
        """Nobody is connected any more: what they used has to be free."""
        self._wait(
            SETTLE_S, f"no more than the {self.start_sockets} sockets of the start are open",
            lambda: self.server.descriptors()[1] <= self.start_sockets,
        )  # fmt: skip
        files, _ = self.server.descriptors()
        if files > self.start_files + FILES_GROW:
            self._violate(f"{files} files are open; at the start there were {self.start_files}")
        self._wait(
            SETTLE_S, f"the memory is within {MEMORY_GROWS_MB:.0f} MB of the {self.start_mb:.0f} MB of the start",
            lambda: self.server.memory_mb() <= self.start_mb + MEMORY_GROWS_MB,
        )  # fmt: skip
        self.end_mb = self.server.memory_mb()

    def _check_stop(self) -> None:
        code, self.stop_s = self.server.stop()
        for text, fields in self.server.new_lines():
            self.ledger.line(text, fields)
        if code != 0:
            self._violate(f"the server ended with {code} {self.stop_s:.1f} s after SIGTERM (limit: {STOP_S:.0f} s)")
        command = kcoord_command("log", "verify", str(self.server.data))
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERIFY_S, check=False)
        if done.returncode != 0:
            self._violate(f"kcoord log verify: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def describe(probe: Probe, group: str) -> tuple[str, frozenset[str], dict[int, int]]:
    """The state of a polite group, the ids of its members, and its offsets."""
    if group.endswith("-classic"):
        classic = probe.ask(apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([group]), DescribeGroupsResponse).groups[0]
        state, members = classic.group_state, frozenset(one.member_id for one in classic.members)
    else:
        request = ConsumerGroupDescribeRequest([group], False)
        found = probe.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, request, ConsumerGroupDescribeResponse).groups[0]
        state, members = found.group_state, frozenset(one.member_id for one in found.members)
    return state, members, stored_offsets(probe, group, TOPIC, POLITE_PARTITIONS)


def stored_offsets(probe: Probe, group: str, topic: str, partitions: int) -> dict[int, int]:
    answer = probe.ask(*requests.committed(group, topic, partitions), OffsetFetchResponse)
    return {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}
