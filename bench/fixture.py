"""`make bench-fixture`: how fast the pytest fixture is, beside EmbeddedKafka and kfake.

The first table has the calls of the fixture, with 10,000 records of 100 bytes for `snapshot`, `restore` and `restart`.
The second one has a whole test with two members and a rebalance (bench/doubles, the same in Python, Go and Java): one
after the other, and many of them on two workers, from the start of the process to its end. So the figure of each line
has what its users wait for: pytest's start, or that of the JVM and its broker. `kcoord` in Go and Java is a server that
runs already, so that clients of the same language meet. Each figure is the better one of two rounds.

A tool that is missing leaves its lines out. Nothing of this is a test: no figure fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import servers

DOUBLES: Final = servers.ROOT / "bench" / "doubles"
BUILD: Final = servers.ROOT / "build" / "bench"
CALLS: Final = ("start", "reset", "snapshot", "restore", "restart")
ALONE: Final = 10
TESTS: Final = 100
WORKERS: Final = 2
# On a busy machine the best of several rounds says most.
ROUNDS: Final = 2
DEADLINE_S: Final = 900.0
# As in a project that has only what it needs, and not all plugins of this one.
PYTEST_PLUGINS: Final = ("-p", "xdist", "-p", "pytest_asyncio.plugin", "-p", "kcoord.testing.pytest_plugin")
PYTEST_SETTINGS: Final = "[pytest]\nasyncio_mode = auto\naddopts = -q -p no:cacheprovider\n"

Figures = dict[str, float]
# {line: figures}, or a text with the reason why a line was not measured.
Results = dict[str, Figures | str]


class NotMeasured(Exception):
    """A tool is missing, or a program has failed; the text says why."""


def run(
    command: list[str],
    environment: dict[str, str] | None = None,
    folder: Path = servers.ROOT,
    deadline_s: float = DEADLINE_S,
) -> tuple[str, float]:
    """Run a program to its end. Returns its output and its seconds. Raises NotMeasured."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, env={**os.environ, **(environment or {})}, cwd=folder, capture_output=True, text=True,
            timeout=deadline_s, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise NotMeasured(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"{command[0]} took more than {deadline_s:g} s") from error
    if done.returncode != 0:
        raise NotMeasured(f"{command[0]} failed: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout, time.perf_counter() - began


def calls(compiled: bool) -> Figures:
    """The medians of the fixture's calls, in milliseconds."""
    done = servers.run_module(compiled, "bench.fixture_child", [], DEADLINE_S)
    if done.returncode != 0:
        raise NotMeasured(done.stderr[-1500:])
    found: dict[str, Any] = json.loads(done.stdout)
    if found["compiled"] != compiled:
        raise NotMeasured("the tree is not compiled: run `make compile`")
    return {name: statistics.median(found["ms"][name]) for name in CALLS}


def lines(output: str, word: str) -> list[float]:
    """The numbers of the lines `word MS` that the programs in Go and Java print."""
    return [float(line.split()[1]) for line in output.splitlines() if line.startswith(f"{word} ")]


def both(count: int, once: Callable[[int, int], tuple[list[float], list[float], float]]) -> Figures:
    """The figures of a line. `once(tests, workers)` returns the starts and tests in ms, and the seconds of all."""
    alone = [once(ALONE, 1) for _ in range(ROUNDS)]
    figures = {
        "first_ms": min(tests[0] for _, tests, _ in alone),
        "test_ms": min(statistics.median(tests) for _, tests, _ in alone),
        "all_s": min(once(count, WORKERS)[2] for _ in range(ROUNDS)),
    }
    starts = [statistics.median(found) for found, _, _ in alone if found]
    return figures | ({"start_ms": min(starts)} if starts else {})


def in_python(compiled: bool, test: str) -> Callable[[int, int], tuple[list[float], list[float], float]]:
    def once(tests: int, workers: int) -> tuple[list[float], list[float], float]:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            settings = Path(folder) / "pytest.ini"
            settings.write_text(PYTEST_SETTINGS)
            command = [
                sys.executable,
                "-P",
                "-m",
                "pytest",
                "-c",
                str(settings),
                f"--junitxml={report}",
                *PYTEST_PLUGINS,
            ]
            command += ["-n", str(workers if workers > 1 else 0), "-k", test, str(DOUBLES / "test_two_members.py")]
            variables = servers.environment(compiled)
            variables["PYTHONPATH"] += f":{servers.ROOT}"
            _, seconds = run(command, {**variables, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DOUBLES_TESTS": str(tests)})
            tree = ET.parse(report)  # noqa: S314 - pytest has written it
            cases = [float(case.get("time", "nan")) * 1000 for case in tree.iter("testcase")]
        if len(cases) != tests:
            raise NotMeasured(f"{len(cases)} of {tests} tests ran")
        return [], cases, seconds

    return once


def in_go(broker: str) -> Callable[[int, int], tuple[list[float], list[float], float]]:
    """With kfake, or with a broker. Raises NotMeasured."""
    program = BUILD / "two-members.test"
    run(["go", "test", "-c", "-o", str(program), "."], folder=DOUBLES / "go")

    def once(tests: int, workers: int) -> tuple[list[float], list[float], float]:
        variables = {"DOUBLES_TESTS": str(tests), "DOUBLES_BROKER": broker}
        output, seconds = run([str(program), f"-test.parallel={workers}"], variables)
        return lines(output, "start"), lines(output, "test"), seconds

    return once


def in_java(broker: str) -> Callable[[int, int], tuple[list[float], list[float], float]]:
    """With EmbeddedKafka (`embedded`), or with a broker. Raises NotMeasured."""
    libraries = embedded_kafka()
    classes = BUILD / "two-members-classes"
    run(["javac", "-nowarn", "-d", str(classes), "-cp", f"{libraries}/*", str(DOUBLES / "java" / "TwoMembers.java")])

    def once(tests: int, workers: int) -> tuple[list[float], list[float], float]:
        command = ["java", "-cp", f"{classes}{os.pathsep}{libraries}/*", "TwoMembers", broker, str(tests), str(workers)]
        output, seconds = run(command)
        return lines(output, "start"), lines(output, "test"), seconds

    return once


def embedded_kafka() -> Path:
    """The jars of the pom, which Maven fetches once. Raises NotMeasured."""
    pom = DOUBLES / "java" / "pom.xml"
    target = BUILD / f"embedded-kafka-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if not target.exists():
        scratch = target.with_suffix(".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={scratch}"])
        scratch.rename(target)
    return target


def kcoord(compiled: bool) -> servers.Server:
    """A server with the settings of the fixture."""
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "serve", "--profile", "test", "--listen", "127.0.0.1:0"]
    return servers.Server(command, servers.environment(compiled))


def measure(compiled: bool, count: int, wanted: str) -> dict[str, Results]:
    results: dict[str, Results] = {"calls": {}, "tests": {}}

    def line(table: str, name: str, figures: Callable[[], Figures]) -> None:
        if wanted not in name:
            return
        print(f"  {name}", file=sys.stderr, flush=True)
        try:
            results[table][name] = figures()
        except NotMeasured as error:
            results[table][name] = str(error)

    BUILD.mkdir(parents=True, exist_ok=True)
    trees = [False, True] if compiled else [False]
    for tree in trees:
        line("calls", f"kcoord, {'compiled' if tree else 'interpreted'}", lambda tree=tree: calls(tree))  # type: ignore[misc]
    line("tests", "kcoord, confluent-kafka, pytest", lambda: both(count, in_python(compiled, "test_confluent_kafka")))
    line("tests", "kcoord, kcoord.client, pytest", lambda: both(count, in_python(compiled, "test_own_client")))
    with kcoord(compiled) as server:
        broker = f"{server.host}:{server.port}"
        line("tests", "kcoord, franz-go", lambda: both(count, in_go(broker)))
        line("tests", "kcoord, Java client", lambda: both(count, in_java(broker)))
    line("tests", "kfake, franz-go", lambda: both(count, in_go("")))
    line("tests", "EmbeddedKafka, Java client", lambda: both(count, in_java("embedded")))
    return results


def print_tables(results: dict[str, Results], count: int) -> None:
    print(f"{'ms, medians':<34}" + "".join(f"{name:>10}" for name in CALLS))
    for name, figures in results["calls"].items():
        cells = figures if isinstance(figures, str) else "".join(f"{figures[call]:>10.1f}" for call in CALLS)
        print(f"{name:<34}{cells}")
    title = f"{count} tests, s"
    print(f"\n{f'{WORKERS} members, a rebalance':<34}{'start, ms':>12}{'first, ms':>12}{'median, ms':>12}{title:>16}")
    for name, figures in results["tests"].items():
        if isinstance(figures, str):
            print(f"{name:<34}not measured: {figures}")
            continue
        start = f"{figures['start_ms']:>12.1f}" if "start_ms" in figures else f"{'-':>12}"
        print(f"{name:<34}{start}{figures['first_ms']:>12.0f}{figures['test_ms']:>12.0f}{figures['all_s']:>16.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--tests", type=int, default=TESTS, help=f"tests on {WORKERS} workers")
    parser.add_argument("--interpreted", action="store_true", help="leave out the compiled tree")
    parser.add_argument("--only", default="", metavar="WORD", help="only lines with this word, such as kfake")
    args = parser.parse_args()
    results = measure(not args.interpreted, args.tests, args.only)
    if args.output == "json":
        print(json.dumps(results, indent=2))
    else:
        print_tables(results, args.tests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
