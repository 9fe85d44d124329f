"""Check the installation of kcoord that belongs to this interpreter: `python smoke.py [--expect pure|compiled]`.

Starts `kcoord serve` in an empty folder, writes and reads ten records in a group, commits, restarts the server, reads
the committed offset, and stops it. Prints one line of JSON. Uses nothing but the installation itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

READY_SECONDS = 60.0
END_SECONDS = 60.0
DEADLINE_SECONDS = 60.0
RECORDS = 10


def command() -> Path:
    return Path(sysconfig.get_path("scripts")) / ("kcoord.exe" if os.name == "nt" else "kcoord")


class Server:
    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [command(), "serve", "--listen", "127.0.0.1:0", "--data", folder / "data"],
            cwd=folder, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("kcoord ready "):
            self.process.kill()
            raise SystemExit(f"smoke: the server did not start: {line!r}")
        self.bootstrap = line.split()[2]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(END_SECONDS):
            raise SystemExit(f"smoke: the server ended with {self.process.returncode}")


async def write_and_read(bootstrap: str) -> None:
    from kcoord.client import Consumer, Producer

    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send("smoke", f"record {number}".encode(), key=b"key")
    async with Consumer(
        "smoke", bootstrap_servers=bootstrap, group_id="smoke", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        for number in range(RECORDS):
            record = await consumer.getone()
            if record.value != f"record {number}".encode():
                raise SystemExit(f"smoke: record {number} is {record.value!r}")
        await consumer.commit()


async def committed(bootstrap: str) -> int:
    from kcoord.client import Admin, KafkaError

    async with Admin(bootstrap_servers=bootstrap) as admin:
        (found,) = (await admin.list_group_offsets("smoke")).values()
    if isinstance(found, KafkaError):
        raise found
    return found.offset


def code() -> str:
    """`compiled` or `pure`, as `kcoord version` reports it."""
    done = subprocess.run([command(), "version", "-o", "json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    return "compiled" if report["code"].startswith("compiled") else "pure"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--expect", choices=["pure", "compiled"], help="fail if the installation is of the other kind")
    args = parser.parse_args()
    found = code()
    if args.expect and found != args.expect:
        raise SystemExit(f"smoke: the installation is {found}, not {args.expect}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = Server(folder)
        try:
            asyncio.run(asyncio.wait_for(write_and_read(server.bootstrap), DEADLINE_SECONDS))
            server.stop()
            server = Server(folder)
            offset = asyncio.run(asyncio.wait_for(committed(server.bootstrap), DEADLINE_SECONDS))
            server.stop()
        finally:
            server.process.kill()
            server.process.wait()
    if offset != RECORDS:
        raise SystemExit(f"smoke: the committed offset after a restart is {offset}, not {RECORDS}")
    from kcoord import __version__

    print(json.dumps({"version": __version__, "code": found, "records": RECORDS, "committed": offset}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
