"""Newcomers while others work: `make bench ARGS="--only newcomers"`.

The benchmark measures the time from connect to first response of a client, while BUSY connections have IN_FLIGHT
heartbeats in flight each. It also measures the time until a group of MEMBERS agrees, for either protocol; each member
opens its own connection while the others work. It shows the CPU time of the servers as well, which depends less on
other load of the machine. The limit on new connections per second is raised, so that it does not affect the figures.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import members, servers
from bench.workload import Client
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse

BUSY = 400
IN_FLIGHT = 8
MEMBERS = 5000
NEWCOMERS = 20
BUSY_S = 60
DEADLINE_S = 900.0

Figures = dict[str, float]


def child(address: servers.Address, *arguments: object, compiled: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "bench.newcomers_child", address.host, str(address.port)]
    variables = servers.environment(compiled)
    variables["PYTHONPATH"] += f":{servers.ROOT}"
    return subprocess.Popen(
        [*command, *map(str, arguments)], env=variables, cwd=tempfile.gettempdir(), text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip


def cpu_s(server: servers.Server) -> float:
    """The CPU time that a server has used, from /proc; not-a-number on systems without /proc."""
    try:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def newcomer(address: servers.Address) -> float:
    """Seconds from connect to the first response."""
    began = time.perf_counter()
    client = Client(address.host, address.port)
    client.call(apis.API_VERSIONS, 3, ApiVersionsRequest("bench", "1"), ApiVersionsResponse)
    seconds = time.perf_counter() - began
    client.close()
    return seconds


def beside(address: servers.Address, compiled: bool) -> Figures:
    """The waiting times of newcomers while other connections are busy."""
    with child(address, "busy", BUSY, IN_FLIGHT, BUSY_S, compiled=compiled) as busy:
        try:
            assert busy.stdout is not None
            if busy.stdout.readline() != "busy\n":
                raise RuntimeError("the load did not start")
            times = sorted(newcomer(address) for _ in range(NEWCOMERS))
        finally:
            busy.terminate()
    return {"newcomer_p50_s": statistics.median(times), "newcomer_max_s": times[-1]}


def joined(server: servers.Server, kind: str, compiled: bool) -> Figures:
    """The time until all members of a group agree."""
    work = child(servers.Address(server.host, server.port), kind, MEMBERS, compiled=compiled)
    assert work.stdout is not None
    work.stdout.readline()
    before = cpu_s(server)
    output, _ = work.communicate(timeout=DEADLINE_S)
    if work.returncode != 0:
        raise RuntimeError(f"{MEMBERS} members ({kind}) did not join")
    answer = json.loads(output)
    return {
        f"{kind}_s": answer["seconds"],
        f"{kind}_server_cpu_s": cpu_s(server) - before,
        f"{kind}_client_cpu_s": answer["client_cpu_s"],
    }


def kcoord(compiled: bool, sync: str) -> Figures:
    """The figures of one kind of server. The clients are compiled if the server is."""
    figures: Figures = {}
    settings = {**members.settings(0), "max.connection.creation.rate": "100000"}
    chosen = [f"{name}={value}" for name, value in settings.items()]
    for kind in ("beside", "consumer", "classic"):
        with servers.scratch_folder() as data:
            with servers.kcoord(compiled, data / "data", sync, *chosen) as server:
                if kind == "beside":
                    figures |= beside(servers.Address(server.host, server.port), compiled)
                else:
                    figures |= joined(server, kind, compiled)
    return figures


def print_table(results: dict[str, Figures]) -> None:
    print(f"\nseconds: a newcomer beside {BUSY} connections; {MEMBERS:,} members until they agree (CPU of the server)")
    print(f"{'newcomers':<20}{'p50':>10}{'max':>10}{'consumer':>20}{'classic':>20}")
    for label, figures in results.items():
        kinds = ("consumer", "classic")
        joins = [f"{figures[f'{kind}_s']:.2f} ({figures[f'{kind}_server_cpu_s']:.2f})" for kind in kinds]
        waits = f"{figures['newcomer_p50_s']:>10.3f}{figures['newcomer_max_s']:>10.3f}"
        print(f"{label:<20}{waits}" + "".join(f"{text:>20}" for text in joins))
