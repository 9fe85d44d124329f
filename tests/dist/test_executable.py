"""The executable file that `make dist` has built: it needs no Python and no environment, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.dist.test_artifacts import DIST, only, version

BYTES_MAX = 60_000_000
READY_SECONDS = 60.0
END_SECONDS = 30.0
# The C library, which the machine brings.
C_LIBRARY = ("ld-linux-*.so*", "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1",
             "libresolv.so.2", "libnss_files.so.2")  # fmt: skip
LOADED = re.compile(r"/(ld-linux[-\w]*|lib(c|m|dl|rt|pthread|util|resolv|nss_\w+))([-.][\d.]+)?\.so(\.\d+)?$")
SEED = """
topics:
  orders: {partitions: 2, records: [{value: one}]}
"""


def program() -> Path:
    return only(f"kcoord-*-linux-{platform.machine()}")


class Server:
    """The program as a server, in an empty environment. `prefix` runs it, such as in another root folder."""

    def __init__(
        self, folder: Path, *arguments: str | Path, prefix: tuple[str, ...] = (), name: str = "", lines: int = 1
    ) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*prefix, name or program(), "serve", "--listen", "127.0.0.1:0", *arguments],
            cwd=folder, env={"TMPDIR": "/tmp" if prefix else str(self.temporary)}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self.lines = [self.line() for _ in range(lines)]
        self.bootstrap = self.lines[-1].removeprefix("kcoord ready ")

    def line(self) -> str:
        assert self.process.stdout is not None and self.process.stderr is not None
        ready, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline().decode() if ready else ""
        if not line.startswith("kcoord "):
            self.process.kill()
            pytest.fail(f"{line!r}\n{self.process.stderr.read().decode()}")
        return line.rstrip()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "--data", tmp_path / "data")
    yield server
    server.process.kill()
    server.process.wait()


def kcoord(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(), *arguments], env={}, capture_output=True, text=True, timeout=END_SECONDS, check=False
    )


def write_and_read(bootstrap: str) -> None:
    """Ten records with each codec, through a group that commits."""
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for number in range(10):
            producer.produce("things", f"{codec} {number}" * 20)
        assert producer.flush(END_SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["^thin.*"])
    received: list[str] = []
    deadline = time.monotonic() + END_SECONDS
    while len(received) < 10 * len(codecs) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            received.append((message.value() or b"").decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert received == [f"{codec} {number}" * 20 for codec in codecs for number in range(10)]


def test_its_size_is_bounded() -> None:
    assert program().stat().st_size <= BYTES_MAX


def test_it_says_what_it_is() -> None:
    assert kcoord("--version").stdout == f"kcoord {version()}\n"
    assert f"kcoord {version()} (compiled, Python " in kcoord("version").stdout


def test_exit_codes_are_those_of_the_command(tmp_path: Path) -> None:
    assert kcoord("health", "--bootstrap", "127.0.0.1:1").returncode == 1
    unknown = kcoord("serev")
    assert unknown.returncode == 2 and "No such command 'serev'" in unknown.stderr
    assert kcoord("serve", "--set", "num.partitions=none", "--data", str(tmp_path)).returncode == 2
    # Names of modules come from the program itself.
    assert "did you mean" in kcoord("log", "dump", "--type", "offset_comit", str(tmp_path)).stderr


def test_it_serves_clients_and_its_own_commands(server: Server, tmp_path: Path) -> None:
    write_and_read(server.bootstrap)
    assert "readers" in kcoord("groups", "list", "--bootstrap", server.bootstrap).stdout
    assert kcoord("groups", "describe", "readers", "--bootstrap", server.bootstrap).returncode == 0
    assert kcoord("health", "--bootstrap", server.bootstrap).returncode == 0
    # Under the name of the image's health check.
    (tmp_path / "kcoord-health").symlink_to(program())
    for address, code in ((server.bootstrap, 0), ("127.0.0.1:1", 1)):
        done = subprocess.run([tmp_path / "kcoord-health", address], env={}, capture_output=True, timeout=END_SECONDS)
        assert done.returncode == code
    assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_nothing_is_left_behind(server: Server, number: signal.Signals) -> None:
    assert list(server.temporary.iterdir()) == []
    # One process: nobody else gets the signal, or stays.
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    assert children == ""
    assert server.stop(number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert list(server.temporary.iterdir()) == []


def test_it_loads_only_the_c_library_from_the_machine(server: Server) -> None:
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    files = {line.split(maxsplit=5)[5] for line in mapped.splitlines() if len(line.split(maxsplit=5)) == 6}
    own = {name for name in files if name.startswith(("[", "anon_inode:", "/memfd:", f"{program()}"))}
    assert [name for name in files - own if not LOADED.search(name)] == []


def bare_root(folder: Path) -> tuple[str, ...]:
    """Makes a root folder with the program, the C library and an empty /tmp; the command that uses it as such."""
    listed = subprocess.run(["ldd", program()], capture_output=True, text=True, check=True).stdout
    loader = Path(re.findall(r"^\s*(/\S*ld-linux\S*) ", listed, re.MULTILINE)[0])
    library = Path(re.findall(r"libc\.so\.6 => (\S+)", listed)[0])
    for target in (loader.parent, library.parent, Path("/tmp"), Path("/data")):
        (folder / target.relative_to("/")).mkdir(parents=True, exist_ok=True)
    shutil.copy(loader, folder / loader.relative_to("/"))
    for pattern in C_LIBRARY:
        for path in library.parent.glob(pattern):
            shutil.copy(path, folder / path.relative_to("/"))
    shutil.copy(program(), folder / "kcoord")
    changer = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--root"]
    tool = shutil.which(changer[0], path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin")
    assert tool is not None, changer
    return (tool, *changer[1:], str(folder))


def test_it_serves_where_there_is_nothing_but_a_c_library(tmp_path: Path) -> None:
    """Without /proc, memory cannot be loaded as a library: temporary files stand in, and are removed at once."""
    root = tmp_path / "root"
    root.mkdir()
    server = Server(tmp_path, "--data", "/data", prefix=bare_root(root), name="/kcoord")
    try:
        assert list((root / "tmp").iterdir()) == []
        write_and_read(server.bootstrap)
        assert server.stop() == 0
        assert list((root / "tmp").iterdir()) == []
    finally:
        server.process.kill()
        server.process.wait()


def test_it_serves_tests_in_other_languages(tmp_path: Path) -> None:
    (tmp_path / "seed.yaml").write_text(SEED)
    server = Server(
        tmp_path, "--profile", "test", "--control", "127.0.0.1:0", "--exit-with-parent", "--seed", "seed.yaml", lines=2
    )
    try:
        _, _, url, token = server.lines[0].split()
        request = urllib.request.Request(f"{url}/v1/topics", b"{}", {"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=END_SECONDS) as response:
            assert "orders" in json.dumps(json.load(response))
        write_and_read(server.bootstrap)
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    script = '"$0" serve --profile test --control 127.0.0.1:0 --exit-with-parent & echo $!; wait'
    parent = subprocess.Popen(
        ["/bin/sh", "-c", script, program()], env={"TMPDIR": str(tmp_path)}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    assert [parent.stdout.readline().split()[1] for _ in range(2)] == ["control", "ready"]
    assert not has_ended(server)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + END_SECONDS
    while not has_ended(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(server)
    assert list(tmp_path.iterdir()) == []


def has_ended(process: int) -> bool:
    """Gone, or only waiting for somebody to ask for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_processes_that_the_server_starts_work(tmp_path: Path) -> None:
    """A snapshot of the metadata log is written by a process of its own."""
    data = tmp_path / "data"
    server = Server(tmp_path, "--data", data, "--set", "metadata.log.max.record.bytes.between.snapshots=100")
    try:
        for number in range(3):
            assert kcoord("topics", "create", f"t{number}", "--bootstrap", server.bootstrap).returncode == 0
        deadline = time.monotonic() + END_SECONDS
        while not list(data.glob("__cluster_metadata-0/*.checkpoint")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(data.glob("__cluster_metadata-0/*.checkpoint"))
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()


def test_its_bill_of_materials_has_python_and_the_libraries() -> None:
    bill = json.loads(Path(f"{program()}.cdx.json").read_text())
    names = {part["name"] for part in bill["components"]}
    assert names >= {"CPython", "kcoord", "uvloop", "cramjam", "PyYAML", "libcrypto.so.3"}
    assert not names & {"pip", "setuptools", "pytest", "pyspark"}
    properties = {each["name"]: each["value"] for each in bill["metadata"]["properties"]}
    needed = tuple(map(int, properties["kcoord:glibc"].split(".")))
    assert needed <= tuple(map(int, platform.libc_ver()[1].split(".")))
    licences = Path(f"{program()}.licences.txt").read_text()
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in licences and "uvloop" in licences


def test_it_is_among_the_checksums() -> None:
    assert program().name in (DIST / "SHA256SUMS").read_text()
