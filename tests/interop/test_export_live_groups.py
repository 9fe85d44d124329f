"""Consumer groups at work: their server is stopped, its log exported, and a real broker started on it.

Kafka's tools print there what they printed before, while no client can reach that broker: all it knows of members is
from the log. Then a broker takes the server's place, and clients go on with the partitions and offsets they had.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kcoord.cli.main import main
from tests.harness import format_1
from tests.harness.kcoord_server import KcoordServer
from tests.harness.ports import own_port
from tests.harness.real_broker import RealBroker
from tests.interop import tools

PARTITIONS = 6
DEADLINE_S = 60.0
NEW = {"group.protocol": "consumer"}
OLD = {"group.protocol": "classic", "partition.assignment.strategy": "range", "session.timeout.ms": 300_000}
# Members stay without a heartbeat until the tools have run.
BROKER = {"group.consumer.session.timeout.ms": "300000", "group.consumer.max.session.timeout.ms": "300000"}
TOPIC = "orders"
# Per group: settings and subscription of each member.
GROUPS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "live": [({**NEW, "group.instance.id": "till-1"}, TOPIC), (NEW, TOPIC), (NEW, "^ord.*")],
    "mixed": [(NEW, TOPIC), (OLD, TOPIC)],
}


class Member:
    """A client of librdkafka on a thread of its own, which commits every message it got."""

    def __init__(self, bootstrap: str, group: str, settings: dict[str, Any], subscription: str) -> None:
        common = {"group.id": group, "bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
        common |= {"reconnect.backoff.max.ms": "500", "topic.metadata.refresh.interval.ms": "1000"}
        self.got: list[bytes] = []
        self.is_over = False
        self.consumer = Consumer({**common, "enable.auto.commit": False, "log_level": 2, **settings})
        self.consumer.subscribe([subscription])
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while not self.is_over:
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.consumer.commit(message=message, asynchronous=False)
                self.got.append(message.value() or b"")
        self.consumer.close()


@contextmanager
def members(bootstrap: str) -> Iterator[dict[str, list[Member]]]:
    made: dict[str, list[Member]] = {}
    try:
        for group, settings in GROUPS.items():
            for one, subscription in settings:
                made.setdefault(group, []).append(Member(bootstrap, group, one, subscription))
        yield made
    finally:
        for member in (one for group in made.values() for one in group):
            member.is_over = True
        for member in (one for group in made.values() for one in group):
            member.thread.join(DEADLINE_S)


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)


def fill(bootstrap: str, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(first, end):
        producer.produce(TOPIC, f"line {i}", partition=i % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def wait_for_lines(groups: dict[str, list[Member]], end: int) -> None:
    """Until each group got every line up to `end`, and that no line came twice."""
    wanted = sorted(f"line {i}".encode() for i in range(end))
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = {group: sorted(value for one in many for value in one.got) for group, many in groups.items()}
        if all(lines == wanted for lines in found.values()):
            return
        time.sleep(0.2)
    raise TimeoutError(f"lines up to {end} were wanted; there were {found}")


def described(bootstrap: str, group: str, *what: str) -> list[str]:
    shown = tools.run(tools.GROUPS, "--bootstrap-server", bootstrap, "--describe", "--group", group, *what)
    assert shown.code == 0, shown
    head, *rows = [" ".join(line.split()) for line in shown.out.replace(bootstrap, "HOST:PORT").splitlines() if line]
    # Rows come in the order of a hash map, and widths follow the longest cell.
    return [head, *sorted(rows)]


VIEWS = (("--members", "--verbose"), ("--offsets",), ("--state", "--verbose"))


def views(bootstrap: str) -> dict[str, list[str]]:
    return {f"{group} {' '.join(what)}": described(bootstrap, group, *what) for group in GROUPS for what in VIEWS}


def stable_views(bootstrap: str) -> dict[str, list[str]]:
    """The same when all members have what they are to have."""
    for _ in range(10):
        found = views(bootstrap)
        if all(is_settled(group, found) for group in GROUPS):
            return found
    raise TimeoutError(f"the groups do not settle: {found}")


def is_settled(group: str, found: dict[str, list[str]]) -> bool:
    """Whether each member has its share in the newest epoch, so that no rebalance is under way or follows.

    The views are not of one moment.
    """
    shares = [share(row) for row in found[f"{group} --members --verbose"][1:]]
    epochs = {epoch for one in shares for epoch in one[::2]}
    state = found[f"{group} --state --verbose"][-1].split()
    count = len(GROUPS[group])
    return (
        len(shares) == count
        and all(len(one) == 4 and one[1] == one[3] for one in shares)
        and len(epochs) == 1
        and state[-4:] == ["Stable", *epochs, *epochs, str(count)]
    )


def share(row: str) -> list[str]:
    """Epoch and assignment of a member, and those it is to have; nothing without partitions."""
    words = row.split()
    first = next((at for at, word in enumerate(words) if word.startswith(f"{TOPIC}:")), 0)
    return words[first - 1 : first + 3] if first else []


def export(source: Path, target: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["log", "export", str(target), "--data", str(source), "--output", "json"])
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.output)
    return report


def test_a_broker_continues_with_live_consumer_groups(tmp_path: Path) -> None:
    port = own_port()
    server = KcoordServer(data=tmp_path / "data")
    server.port = port
    with ExitStack() as stack:
        stack.enter_context(server)
        create(server.bootstrap)
        groups = stack.enter_context(members(server.bootstrap))
        fill(server.bootstrap, 0, 30)
        wait_for_lines(groups, 30)
        before = stable_views(server.bootstrap)
        server.stop()
        export(tmp_path / "data", tmp_path / "broker")
        with RealBroker(BROKER, data=tmp_path / "broker") as elsewhere:
            assert views(elsewhere.bootstrap) == before
        broker = stack.enter_context(RealBroker(BROKER, data=tmp_path / "broker", port=port))
        fill(broker.bootstrap, 30, 60)
        wait_for_lines(groups, 60)


def test_a_broker_reads_members_that_an_older_kcoord_wrote(tmp_path: Path) -> None:
    export(format_1.unpack(tmp_path / "data"), tmp_path / "broker")
    with RealBroker(BROKER, data=tmp_path / "broker") as broker:
        arguments = ["--describe", "--group", format_1.GROUP, "--members", "--verbose"]
        shown = tools.run(tools.GROUPS, "--bootstrap-server", broker.bootstrap, *arguments)
        # Members without an instance id have an empty cell.
        found = {line.split()[1]: line.split()[-1] for line in shown.lines[1:]}
        assert found == {format_1.STATIC: "true", format_1.REGEX: "true", format_1.CLASSIC: "false"}, shown
        assert format_1.INSTANCE in shown.out
