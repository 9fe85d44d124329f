"""Consumer groups of KIP-848: `make bench ARGS="--only members"`.

How long a group takes from the first join until all members agree and own every partition (as many partitions as
members), with 1,000 and 5,000 members that come at once, and how many heartbeats a second it answers when nothing
happens. The assignment interval is 0, so that what is measured is work and not waiting. A Kafka broker is measured in
the same way where Java and its jars are there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import servers, workload
from bench.load import Traffic, measure
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

SIZES = (1000, 5000)
DEADLINE_S = 180.0
LOADS = ((8, 1), (8, 32), (64, 1))
SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
}

# {"1000": seconds, ..., "8x1": heartbeats a second, ...}
Figures = dict[str, float]


def join(host: str, port: int, count: int, compiled: bool) -> float:
    child = [sys.executable, "-m", "bench.members_child", host, str(port), str(count)]
    environment = servers.environment(compiled)
    if not compiled:
        environment["PYTHONPATH"] = str(servers.ROOT)
    else:
        environment["PYTHONPATH"] += f":{servers.ROOT}"
    done = subprocess.run(
        child, env=environment, cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=DEADLINE_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"{count} members did not join:\n{done.stderr[-2000:]}")
    seconds: float = json.loads(done.stdout)["seconds"]
    return seconds


def steady(host: str, port: int, seconds: float) -> Figures:
    """Heartbeats a second of members that own what they are to own: one group for each connection."""
    lanes: list[Traffic] = []
    client = workload.Client(host, port)
    workload.create_topic(client, workload.TOPIC, workload.PARTITIONS)
    for number in range(max(connections for connections, _ in LOADS)):
        body = ConsumerGroupHeartbeatRequest(f"steady-{number}", "member", 0, None, None, 60_000)
        body.subscribed_topic_names = [workload.TOPIC]
        body.topic_partitions = []
        frame = client.exchange(workload.request_frame(apis.CONSUMER_GROUP_HEARTBEAT, 1, body))
        epoch = workload.decode(apis.CONSUMER_GROUP_HEARTBEAT, 1, frame).member_epoch  # type: ignore[attr-defined]
        beat = ConsumerGroupHeartbeatRequest(f"steady-{number}", "member", epoch)
        request = workload.request_frame(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)
        lanes.append(Traffic(request, client.exchange(request)))
    client.close()
    figures: Figures = {}
    for connections, in_flight in LOADS:
        result = measure(host, port, lanes[:connections], in_flight, seconds)
        figures[f"{connections}x{in_flight}"] = result.per_second
    return figures


def kcoord(compiled: bool, sync: str, seconds: float) -> Figures:
    figures: Figures = {}
    scratch = servers.ROOT / "build" / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    for count in SIZES:
        data = Path(tempfile.mkdtemp(dir=scratch))
        try:
            with servers.kcoord(compiled, data / "data", sync, *[f"{k}={v}" for k, v in SETTINGS.items()]) as server:
                figures[str(count)] = join(server.host, server.port, count, compiled)
                if count == SIZES[-1]:
                    figures.update(steady(server.host, server.port, seconds))
        finally:
            shutil.rmtree(data, ignore_errors=True)
    return figures


def print_table(results: dict[str, Figures]) -> None:
    columns = [f"{count:,} join, s" for count in SIZES] + [f"beats/s {c}x{n}" for c, n in LOADS]
    print(f"\n{'consumer group':<20}" + "".join(f"{column:>16}" for column in columns))
    for label, figures in results.items():
        cells = [f"{figures[str(count)]:>16.2f}" for count in SIZES]
        cells += [f"{figures[f'{c}x{n}']:>16,.0f}" for c, n in LOADS]
        print(f"{label:<20}" + "".join(cells))
