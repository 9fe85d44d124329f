"""`make stall`: sends every worst frame that is known, and says what it costs and who has to wait.

    python -m tests.stall                                  everything
    python -m tests.stall --only engine --match Metadata   some frames, without a server
    python -m tests.stall --seconds 60 --seed 1            a sample

Three measurements: `engine` takes the CPU of each turn of an engine in this process, for one frame and, of small ones,
for a burst of many; `server` the longest ping of another client of a real server; `crowd` a server's memory with many
clients that never read or never finish. With `--output json` there is more. The exit code is 1 when a limit is broken.
This measures the tree that is imported: `make stall` puts the compiled one first.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from kcoord.log.storage import MemoryStorage
from kcoord.server.pump import read_clocks
from tests.stall.catalogue import catalogue, schema_frames
from tests.stall.crowd import crowds, hold
from tests.stall.frames import Frame
from tests.stall.report import Row, header
from tests.stall.rig import CPU_SECONDS_MAX, burst_of, measure_apart
from tests.stall.server_rig import WorldServer
from tests.stall.worlds import CONTENTS, make_world

MEASUREMENTS = ("engine", "server", "crowd")


class Run:
    """Measures frames until the time is up and prints a line for each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.until: float = time.monotonic() + args.seconds
        self.rows: dict[str, Row] = {}

    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def note(self, row: Row) -> None:
        self.rows[row.name] = row
        if self.args.output == "table" and (row.problems() or not self.args.problems):
            print(row.line(), flush=True)

    def chosen(self, frames: list[Frame]) -> dict[str, list[Frame]]:
        """Frames by world. A sample is in an order that the seed decides, so that others come with other seeds."""
        chosen = [frame for frame in frames if self.args.match in frame.name]
        if self.args.seconds != float("inf"):
            random.Random(self.args.seed).shuffle(chosen)
        return {name: [frame for frame in chosen if frame.world == name] for name in CONTENTS}

    def engine(self, frames: list[Frame]) -> None:
        worlds = self.chosen(frames)
        ends = _shares(self.until, worlds)
        for name, mine in worlds.items():
            if not mine:
                continue
            world = make_world(name, MemoryStorage(), read_clocks(), scale=self.args.scale)
            for frame in mine:
                if time.monotonic() > ends[name]:
                    break
                data = frame.build(world, 1.0)
                cost = measure_apart(world, [data], frame.prepare, self.args.cpu_seconds)
                many = burst_of(data, cost)
                burst = measure_apart(world, [many], frame.prepare, self.args.cpu_seconds) if many else None
                self.note(Row(frame.name, len(data), cost, burst=burst))

    def server(self) -> None:
        worlds = self.chosen(catalogue())
        ends = _shares(self.until, worlds)
        for name, mine in worlds.items():
            if not mine:
                continue
            with WorldServer(name, self.args.scale) as server:
                for frame in mine:
                    if time.monotonic() > ends[name]:
                        break
                    data = frame.build(server.world, 1.0)
                    known = self.rows.get(frame.name)
                    row = Row(frame.name, len(data), visit=server.visit(frame, data))
                    if known is not None:
                        row.cost, row.burst = known.cost, known.burst
                    self.note(row)

    def crowd(self) -> None:
        for crowd in crowds():
            if self.args.match not in crowd.what or self.is_over():
                continue
            with WorldServer(crowd.world, self.args.scale) as server:
                held = hold(crowd, server, self.args.connections)
            self.note(Row(crowd.what, len(crowd.frame()), held=held))


def _shares(until: float, worlds: dict[str, list[Frame]]) -> dict[str, float]:
    """When to go on to the next world, so that each gets its share of the time."""
    now = time.monotonic()
    total = sum(len(frames) for frames in worlds.values()) or 1
    ends = {}
    done = 0
    for name, frames in worlds.items():
        done += len(frames)
        ends[name] = now + (until - now) * done / total
    return ends


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stall", description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="measure only this; may be repeated")
    parser.add_argument("--match", default="", help="only frames whose name has this in it, as in 'Produce v9: zstd'")
    parser.add_argument("--shapes", action="store_true", help="also frames of every shape that the schemas give")
    parser.add_argument("--problems", action="store_true", help="print only what is beyond a limit")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="a sample, for so long")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--scale", type=float, default=1.0, help="how large the worlds are; for tests of this tool")
    parser.add_argument("--connections", type=int, default=1_000, help="connections of a crowd")
    parser.add_argument("--cpu-seconds", type=int, default=CPU_SECONDS_MAX, help="CPU after which a frame is given up")
    args = parser.parse_args(argv)
    only = args.only or MEASUREMENTS
    run = Run(args)
    if args.output == "table":
        print(header())
    # Of a sample each measurement gets the same time.
    end = run.until
    for number, name in enumerate(only):
        now = time.monotonic()
        run.until = now + (end - now) / (len(only) - number)
        if name == "engine":
            run.engine(catalogue() + (schema_frames() if args.shapes else []))
        elif name == "server":
            run.server()
        else:
            run.crowd()
    rows = list(run.rows.values())
    broken = [row for row in rows if row.problems()]
    if args.output == "json":
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        print(f"{len(rows)} measured, {len(broken)} beyond a limit")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
