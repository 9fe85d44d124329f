"""Consumer groups of KIP-848: `make bench ARGS="--only members"`.

The benchmark measures the time from the first join until all members agree and own every partition (as many partitions
as members), with 1,000 and 5,000 members that join at once, and the heartbeats a second of a stable group. It uses two
assignment intervals. With 0, each join leads to a new assignment, so the figure is work and not waiting. With the
default of one second, the members wait most of the time: the first one gets all partitions at once, and the others get
theirs when the second is over.

A Kafka broker is measured in the same way if Java and its jars are available; otherwise a line gives the reason. It is
one node, broker and controller, with the defaults of its start script and its settings. It does not wait for the disk,
so it compares with `os`. Every server is a new process for each size, on the loopback interface, and has the same
compiled clients. Before the measured group, every server gets WARM_UP_GROUPS groups of WARM_UP_MEMBERS members. Only a
JVM needs this: without them a broker takes about twice as long.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench import members_child, servers, workload
from bench.load import Traffic, measure
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

SIZES = (1000, 5000)
# Milliseconds. The heartbeats are measured with the last interval.
INTERVALS = (0, 1000)
WARM_UP_GROUPS = 5
WARM_UP_MEMBERS = 400
# The limit of one child process on a busy machine. It includes the warm-up and a topic of thousands of partitions.
DEADLINE_S = 900.0
LOADS = ((8, 1), (8, 32), (64, 1))
KAFKA = "Kafka 4.3"

# {"1000": seconds, ..., "1000 at 1000 ms": seconds, ..., "8x1": heartbeats a second, ...}
Figures = dict[str, float]
# Starts a server with these settings that keeps its data in the directory, which does not exist yet.
Start = Callable[[Path, dict[str, str]], AbstractContextManager[servers.Address]]


def settings(interval_ms: int) -> dict[str, str]:
    return {
        "group.consumer.assignment.interval.ms": str(interval_ms),
        "group.consumer.min.assignment.interval.ms": "0",
    }


def key(count: int, interval_ms: int) -> str:
    return f"{count} at {interval_ms} ms" if interval_ms else str(count)


def join(address: servers.Address, count: int) -> float:
    """Seconds until `count` members agree."""
    sizes = [str(number) for number in (count, WARM_UP_GROUPS, WARM_UP_MEMBERS)]
    child = [sys.executable, "-P", "-m", "bench.members_child", address.host, str(address.port), *sizes]
    environment = servers.environment(compiled=True)
    environment["PYTHONPATH"] += f":{servers.ROOT}"
    done = subprocess.run(
        child, env=environment, cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=DEADLINE_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"{count} members did not join:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    if not answer["compiled"]:
        raise RuntimeError("the clients are not compiled: does build/compiled exist?")
    seconds: float = answer["seconds"]
    return seconds


def steady(address: servers.Address, seconds: float) -> Figures:
    """Heartbeats a second of members in stable groups, one group for each connection."""
    lanes: list[Traffic] = []
    client = workload.Client(address.host, address.port)
    members_child.make_topic(client, workload.TOPIC, workload.PARTITIONS)
    for number in range(max(connections for connections, _ in LOADS)):
        group_id = f"steady-{number}"
        members_child.find_coordinator(client, group_id)
        body = ConsumerGroupHeartbeatRequest(group_id, "member", 0, None, None, members_child.REBALANCE_TIMEOUT_MS)
        body.subscribed_topic_names = [workload.TOPIC]
        body.topic_partitions = []
        answer = client.call(apis.CONSUMER_GROUP_HEARTBEAT, 1, body, ConsumerGroupHeartbeatResponse)
        workload.check(answer.error_code, "join")
        beat = ConsumerGroupHeartbeatRequest(group_id, "member", answer.member_epoch)
        request = workload.request_frame(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)
        frame = client.exchange(request)
        settled = workload.decode(apis.CONSUMER_GROUP_HEARTBEAT, 1, frame)
        assert isinstance(settled, ConsumerGroupHeartbeatResponse)
        workload.check(settled.error_code, "heartbeat")
        lanes.append(Traffic(request, frame))
    client.close()
    figures: Figures = {}
    for connections, in_flight in LOADS:
        result = measure(address.host, address.port, lanes[:connections], in_flight, seconds)
        figures[f"{connections}x{in_flight}"] = result.per_second
    return figures


def measured(start: Start, seconds: float) -> Figures:
    """The figures of one kind of server."""
    figures: Figures = {}
    runs = [(count, interval_ms) for interval_ms in INTERVALS for count in SIZES]
    for count, interval_ms in runs:
        with servers.scratch_folder() as data:
            with start(data / "data", settings(interval_ms)) as address:
                figures[key(count, interval_ms)] = join(address, count)
                if (count, interval_ms) == runs[-1]:
                    figures.update(steady(address, seconds))
    return figures


def kcoord(compiled: bool, sync: str, seconds: float) -> Figures:
    @contextmanager
    def start(data: Path, chosen: dict[str, str]) -> Iterator[servers.Address]:
        with servers.kcoord(compiled, data, sync, *[f"{name}={value}" for name, value in chosen.items()]) as server:
            yield servers.Address(server.host, server.port)

    return measured(start, seconds)


def kafka(seconds: float) -> Figures | str:
    """The same figures of a Kafka broker, or a text with the reason if Java, Maven or the jars are missing."""
    from tests.harness.java import ToolchainMissing

    try:
        return measured(servers.kafka, seconds)
    except ToolchainMissing as e:
        return str(e).splitlines()[0]


def print_table(results: dict[str, Figures | str]) -> None:
    runs = [(count, interval_ms) for interval_ms in INTERVALS for count in SIZES]
    columns = [f"{count:,} at {interval_ms / 1000:g} s" for count, interval_ms in runs]
    columns += [f"beats/s {c}x{n}" for c, n in LOADS]
    print("\nseconds until all members agree, by members and assignment interval; heartbeats, connections x in flight")
    print(f"{'consumer group':<20}" + "".join(f"{column:>16}" for column in columns))
    for label, figures in results.items():
        if isinstance(figures, str):
            print(f"{label:<20}not measured: {figures}")
            continue
        cells = [f"{figures[key(count, interval_ms)]:>16.2f}" for count, interval_ms in runs]
        cells += [f"{figures[f'{c}x{n}']:>16,.0f}" for c, n in LOADS]
        print(f"{label:<20}" + "".join(cells))
