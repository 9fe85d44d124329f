"""A group of 10,000 members, and 10,000 idle connections: `python -m bench.crowd [--only NAME]`.

Three servers are started, one after the other. The first gets CONNECTIONS connections that only ask for ApiVersions.
The two others get CONNECTIONS members of one group, each with a connection of its own, with the classic and with the
consumer protocol. The figures are the resident memory that each server adds (Linux only), for its size at the end of
the step, and the CPU time of the server.

All but PROBES members are in one process. The probes are in another one, and only their heartbeats are timed, since a
process with 10,000 members may itself be late. They beat every PROBE_S, the others every BEAT_S. The latencies are
measured twice, for COUNT_S each: while nothing happens, and while REJOINING other members leave and join again, which
in a classic group makes all members join again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Self

from bench import servers
from bench.crowd_child import TOPIC
from bench.members_child import make_topic
from bench.newcomers import cpu_s
from bench.workload import Client

CONNECTIONS = 10_000
PROBES = 100
REJOINING = 100
BEAT_S = 3.0
PROBE_S = 0.2
COUNT_S = 20.0
SETTLE_S = 10.0
MIB = 1024 * 1024
# Loopback has one address and one burst of connections; neither limit is what is measured.
SETTINGS = ("max.connection.creation.rate=100000", "max.connections=20000")

Figures = dict[str, float]


class Child:
    """A process of `crowd_child`; used in a with statement."""

    def __init__(self, server: servers.Server, *arguments: object) -> None:
        command = [sys.executable, "-P", "-m", "bench.crowd_child", server.host, str(server.port)]
        variables = servers.environment(compiled=True)
        variables["PYTHONPATH"] += f":{servers.ROOT}"
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], env=variables, cwd=tempfile.gettempdir(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def answer(self) -> Figures:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of clients ended")
        figures: Figures = json.loads(line)
        return figures

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> Figures:
        self.send(command)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.communicate()


class Added:
    """Memory and CPU time of a server since the last look."""

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.mb, self.cpu_s = server.rss_mb(), cpu_s(server)

    def look(self, what: str) -> Figures:
        """MiB and CPU seconds, by a name that begins with `what`."""
        mb, seconds = self.server.rss_mb(), cpu_s(self.server)
        figures = {f"{what}_mib": (mb - self.mb) * 1e6 / MIB, f"{what}_cpu_s": seconds - self.cpu_s}
        self.mb, self.cpu_s = mb, seconds
        return figures


def idle(server: servers.Server, count: int) -> Figures:
    with Child(server, "classic", count, 0, BEAT_S, "") as child:
        added = Added(server)
        child.ask("connect")
        return added.look("connections")


def group(server: servers.Server, protocol: str, count: int) -> Figures:
    client = Client(server.host, server.port)
    topic_id = make_topic(client, TOPIC, count).hex() if protocol == "consumer" else ""
    client.close()
    with (
        Child(server, protocol, count - PROBES, 0, BEAT_S, topic_id) as others,
        Child(server, protocol, PROBES, count * 2, PROBE_S, topic_id) as probes,
    ):
        added = Added(server)
        others.ask("connect")
        probes.ask("connect")
        figures = added.look("connections")
        joined = others.ask(f"join {count if topic_id else 0}")
        figures |= {"join_s": joined["seconds"], "join_client_cpu_s": joined["cpu_s"], **added.look("members")}
        probes.ask("join 0")
        others.ask(f"count {SETTLE_S}")
        added.look("probes")
        for what in ("calm", "rejoin"):
            if what == "rejoin":
                others.ask(f"rejoin {REJOINING}")
            others.send(f"count {COUNT_S}")
            beats = probes.ask(f"count {COUNT_S}")
            figures |= {f"{what}_{name}": value for name, value in beats.items()}
            figures |= {f"{what}_crowd_{name}": value for name, value in others.answer().items()}
            figures |= added.look(what)
        return figures


def measured(what: str, compiled: bool, count: int) -> Figures:
    with servers.scratch_folder() as data:
        with servers.kcoord(compiled, data / "data", "os", *SETTINGS) as server:
            return idle(server, count) if what == "idle" else group(server, what, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="measure the steps whose names contain this")
    parser.add_argument("--count", type=int, default=CONNECTIONS)
    parser.add_argument("--interpreted", action="store_true", help="measure the interpreted server")
    arguments = parser.parse_args()
    for what in ("idle", "classic", "consumer"):
        if arguments.only in what:
            figures = measured(what, not arguments.interpreted, arguments.count)
            print(what, " ".join(f"{name}={value:.3f}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
