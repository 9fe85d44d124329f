"""How the command starts and how it fails to: one clear message, an exit code of its own, no traceback."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e.process import END_SECONDS, ServerProcess, clean_environment, kcoord_command, run_to_end


def failure(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The message of a start that failed as it should."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "kcoord ready" not in done.stdout
    lines = done.stderr.splitlines()
    if lines[-1].startswith("{"):
        line = json.loads(lines[-1])
        assert (line["event"], line["exit_code"]) == ("failed", code)
        return str(line["message"])
    assert len(lines) == 1
    return lines[0]


def serve(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end("serve", "--listen", "127.0.0.1:0", "--data", str(data), *arguments)


def test_first_line_ready_line_and_clean_stop(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        assert server.bootstrap.startswith("127.0.0.1:")
        assert server.stop() == 0
        first = server.lines()[0]
        assert (first["event"], first["log_sync"], first["data"]) == ("starting", "always", str(tmp_path / "data"))
        assert first["code"] in ("compiled", "interpreted")
        if os.environ.get("KCOORD_EXPECT_COMPILED"):
            assert first["code"] == "compiled"
        assert first["version"] and first["loop"]
        assert server.lines()[-1]["event"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_that_stop_cleanly(number: signal.Signals) -> None:
    with ServerProcess(None) as server:
        server.process.send_signal(number)
        assert server.wait() == 0


def test_several_listeners_each_report_that_they_are_ready() -> None:
    with ServerProcess(None, "--listen", "127.0.0.1:0") as server:
        assert server.process.stdout is not None
        second = server.process.stdout.readline().split()
        assert second[:2] == ["kcoord", "ready"]
        assert second[2] != server.bootstrap
        for bootstrap in (server.bootstrap, second[2]):
            done = run_to_end("health", "--bootstrap", bootstrap)
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("listen", ["127.0.0.1:{}", "0.0.0.0:{}", "A://:{},B://127.0.0.1:1"])
def test_health_asks_where_the_server_of_this_environment_listens(listen: str) -> None:
    with ServerProcess(None) as server:
        environment = {"KCOORD_LISTEN": listen.format(server.port)}
        done = run_to_end("health", "--output", "json", environment=environment)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["healthy"] is True and found["apis"] > 30
        assert found["bootstrap"] == f"127.0.0.1:{server.port}"
    done = run_to_end("health", "--output", "json", environment=environment)
    assert done.returncode == 1
    assert json.loads(done.stdout)["healthy"] is False


def test_health_cannot_guess_a_port() -> None:
    done = run_to_end("health", environment={"KCOORD_LISTEN": "127.0.0.1:0"})
    assert done.returncode == 1
    assert "--bootstrap" in done.stderr


def test_health_without_a_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = run_to_end("health", "--bootstrap", f"127.0.0.1:{unused.getsockname()[1]}")
    assert done.returncode == 1
    assert "not healthy" in done.stderr and "Traceback" not in done.stderr


def test_health_of_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        process = subprocess.Popen(
            kcoord_command("health", "-b", address), stderr=subprocess.PIPE, env=clean_environment()
        )
        client, _ = other.accept()
        client.recv(1000)
        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        client.close()
        assert process.wait(END_SECONDS) == 1
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
        process.stderr.close()


def test_version() -> None:
    done = run_to_end("version")
    assert done.returncode == 0 and done.stdout.startswith("kcoord 0.")
    found = json.loads(run_to_end("version", "-o", "json").stdout)
    assert found["kcoord"].startswith("0.") and found["code"] in ("compiled", "interpreted")


def test_an_empty_data_directory_is_no_default() -> None:
    done = run_to_end("serve", "--listen", "127.0.0.1:0", "--data", "")
    assert "--data: the name of the directory is empty" in failure(done, 2)


def test_a_used_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run_to_end("serve", "--listen", address, "--data", str(tmp_path / "data"))
    assert f"cannot listen on {address}: another process listens on it" in failure(done, 3)
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    done = run_to_end("serve", "--listen", "192.0.2.1:0", "--data", str(tmp_path / "data"))
    assert "not an address of this machine" in failure(done, 3)


def test_wrong_settings(tmp_path: Path) -> None:
    assert "did you mean log.sync?" in failure(serve(tmp_path, "--set", "log.sink=os"), 2)
    assert "must be one of" in failure(serve(tmp_path, "--set", "log.sync=x"), 2)
    assert "is not an address" in failure(run_to_end("serve", "--listen", "x"), 2)


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data"):
        assert "in use" in failure(serve(tmp_path / "data"), 6)


def test_a_directory_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    (tmp_path / "topic-0").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert "Kafka broker" in failure(serve(tmp_path), 5)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    assert "not empty" in failure(serve(tmp_path), 5)


def test_a_directory_of_another_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        server.stop()
    assert "node 1" in failure(serve(tmp_path / "data", "--set", "node.id=2"), 5)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "is not a directory" in failure(serve(file), 4)
    assert "is not a directory" in failure(serve(file / "data"), 4)
    assert "cannot be written" in failure(serve(Path("/proc/data")), 4)
    if os.geteuid() != 0:  # root may write everywhere
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        assert "cannot be written" in failure(serve(locked / "data"), 4)
        assert "cannot be written" in failure(serve(locked), 4)


def test_a_disk_without_space(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    done = serve(tmp_path / "data", "--set", f"log.reserve.bytes={free * 2}")
    assert "the disk is full" in failure(done, 8)
    with ServerProcess(tmp_path / "data") as server:  # and nothing is broken by it
        assert server.stop() == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_stop_is_quick_even_with_clients_that_wait(tmp_path: Path, signals: int) -> None:
    # Whoever waits for a client that says nothing waits for longer than this test does.
    with ServerProcess(tmp_path / "data", "--set", "shutdown.deadline.ms=3600000") as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            for _ in range(signals):
                server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0


def children_seconds() -> float:
    """The processor's time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_it_is_ready_soon() -> None:
    """The aim is 200 ms on a quiet machine; this only catches a start-up whose work became a multiple of that.

    In the processor's time, which does not count what else the machine does.
    """
    times = []
    for _ in range(3):
        before = children_seconds()
        with ServerProcess(None) as server:
            server.kill()
        times.append(children_seconds() - before)
    assert min(times) < 1.0, times
