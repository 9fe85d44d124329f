"""A standalone cluster of Spark on this machine: a master and workers, each a process with an environment of its own.

The workers know nothing of the environment that the tests run in: `python3` is the system's, and there is no PYTHONPATH.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Final, Self

import pyspark

import kcoord
from kcoord.spark.java import find_java

SPARK_HOME: Final = Path(pyspark.__file__).parent
READY_S: Final = 300
# What reading a log needs beside kcoord, as it lies in site-packages, and parts of it that only take space.
PACKAGES: Final = (
    "pyarrow", "numpy", "numpy.libs", "librt", "mypy_extensions.py", "crc32c", "cramjam", "re2", "xxhash", "click",
)  # fmt: skip
NOT_NEEDED: Final = ("tests", "include", "__pycache__")


class SparkCluster:
    """Workers have one core each. `folder` has their work and what they write."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.workers = workers
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        at = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start("master", "org.apache.spark.deploy.master.Master", *at, "--port", str(self.port))
        self._wait("master", "I have been elected leader")
        for number in range(self.workers):
            words = [*at, "--cores", "1", "--memory", "600m", "--work-dir", str(self.folder / f"work-{number}")]
            self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *words, self.url)
        for number in range(self.workers):
            self._wait(f"worker-{number}", "Successfully registered with master")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(READY_S)

    def _start(self, name: str, *command: str) -> None:
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": str(self.folder), "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }  # fmt: skip
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), *command], env=environment, cwd=self.folder,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )
            )  # fmt: skip

    def _wait(self, name: str, words: str) -> None:
        deadline = time.monotonic() + READY_S
        log = self.folder / f"{name}.log"
        while words not in log.read_text(errors="replace"):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.2)


def pack_environment(target: Path) -> None:
    """What `venv-pack` makes of an environment with kcoord in it: an archive with `bin/python` and site-packages."""
    site = SPARK_HOME.parent
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = f"lib/{version}/site-packages"
    folder = target.parent / "unpacked"
    (folder / "bin").mkdir(parents=True)
    base = Path(os.path.realpath(sys.executable))
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    root = Path(kcoord.__file__).parent.parent
    # Spark unpacks a .tar by rules that refuse links out of it, as that of bin/python is.
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for name in ("bin", "pyvenv.cfg"):
            archive.add(folder / name, name)
        for name in PACKAGES:
            archive.add(site / name, f"{packages}/{name}", filter=_needed)
        for about in site.glob("*.dist-info"):
            archive.add(about, f"{packages}/{about.name}")
        for name in ("kcoord", "pyspark_kcoord"):
            archive.add(root / name, f"{packages}/{name}", filter=_needed)


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in NOT_NEEDED else entry


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
