"""The Java side of the interop tests: jars from Maven Central, compiled helpers, and how to run them.

`libs()` fills build/interop/libs once from the checked-in pom and reuses it; INTEROP_LIBS names a directory that
is already filled. `spark_libs()` does the same with what Spark's Kafka source needs, and INTEROP_SPARK_LIBS, `hdfs_libs()`
with Hadoop's cluster for tests, and INTEROP_HDFS_LIBS, `streams_libs()` with Kafka Streams, and INTEROP_STREAMS_LIBS.
`libs(release)` fills a directory beside it with another release of Kafka, for a broker and tools of that release; its
jars run under our helpers, which are compiled against the pom's.
`classes()` compiles tests/interop/java once per content. A missing java, javac or mvn raises
`ToolchainMissing`: these tests fail without their toolchain, they never pass by not running.

`make_archive()` keeps the classes of one run in the form in which a JVM has them in memory (class data sharing). With
it a tool starts with half the work; a JVM that cannot use it goes on without.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "interop"
SOURCES = ROOT / "tests" / "interop" / "java"
MAVEN_DEADLINE_S = 600
JAVAC_DEADLINE_S = 120

# Small heaps and one compiler tier: these are short runs of many JVMs on few cores.
JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    # An archive that does not fit is not worth a line in a tool's output.
    "-Xlog:cds*=off",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class ToolchainMissing(RuntimeError):
    """Java 17 or Maven is not installed, or Maven could not fetch the jars."""


def tool(name: str) -> str:
    """Full path of a tool of the Java toolchain."""
    home = os.environ.get("JAVA_HOME")
    if home and name != "mvn" and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise ToolchainMissing(f"{name} is not installed; the interop tests need Java 17 and Maven 3.8 or newer")
    return found


@contextmanager
def _build_lock(name: str) -> Iterator[None]:
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / f".{name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@cache
def libs(release: str = "") -> Path:
    """Directory that holds Kafka's jars and all they need: of `release`, such as 3.9.2, or of the one in the pom."""
    if release:
        return _filled("", f"libs-{release}", "pom.xml", f"kafka-clients-{release}.jar", f"-Dkafka.version={release}")
    return _filled("INTEROP_LIBS", "libs", "pom.xml", "kafka-clients-*.jar")


@cache
def spark_libs() -> Path:
    """Directory that holds Spark's own Kafka source and what it needs beside Spark."""
    return _filled("INTEROP_SPARK_LIBS", "spark-libs", "spark-pom.xml", "spark-sql-kafka-*.jar")


@cache
def hdfs_libs() -> Path:
    """Directory that holds Hadoop's cluster for tests; what it needs beside are jars that PySpark brings."""
    return _filled("INTEROP_HDFS_LIBS", "hdfs-libs", "hdfs-pom.xml", "hadoop-client-minicluster-*.jar")


@cache
def streams_libs() -> Path:
    """Directory that holds Kafka Streams and all it needs."""
    return _filled("INTEROP_STREAMS_LIBS", "streams-libs", "streams-pom.xml", "kafka-streams-*.jar")


def _filled(variable: str, name: str, pom: str, proof: str, *options: str) -> Path:
    """The directory that `variable` names, or build/interop/`name`, filled by Maven when `pom` is new or has changed."""
    given = os.environ.get(variable) if variable else None
    if given:
        return Path(given)
    target = BUILD / name
    stamp = target / ".complete"
    wanted = hashlib.sha256((SOURCES / pom).read_bytes()).hexdigest()
    with _build_lock(name):
        if stamp.exists() and stamp.read_text() == wanted:
            return target
        shutil.rmtree(target, ignore_errors=True)
        command = [tool("mvn"), "-q", "-B", "-f", str(SOURCES / pom), *options, "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={target}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_DEADLINE_S)
        if done.returncode != 0 or not list(target.glob(proof)):
            raise ToolchainMissing(f"Maven could not fetch the jars of {pom}:\n{done.stdout}{done.stderr}")
        stamp.write_text(wanted)
    return target


@cache
def classes() -> Path:
    """Directory of our own compiled Java helpers; compiled anew when a source changes."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    target = BUILD / f"classes-{digest.hexdigest()[:16]}"
    with _build_lock("classes"):
        if target.exists():
            return target
        for old in BUILD.glob("classes-*"):
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink()
        scratch = BUILD / "classes.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        command = [tool("javac"), "-nowarn", "-d", str(scratch), "-cp", f"{libs()}/*"]
        command += [str(source) for source in sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVAC_DEADLINE_S)
        if done.returncode != 0:
            raise RuntimeError(f"javac failed:\n{done.stdout}{done.stderr}")
        scratch.rename(target)
    return target


@cache
def _helpers() -> Path:
    """The same classes as a jar: archives take no directories."""
    target = BUILD / f"{classes().name}.jar"
    with _build_lock("helpers"):
        if not target.exists():
            scratch = BUILD / "helpers.tmp"
            subprocess.run(
                [tool("jar"), "--create", "--file", str(scratch), "-C", str(classes()), "."],
                check=True, capture_output=True, timeout=JAVAC_DEADLINE_S,
            )  # fmt: skip
            scratch.rename(target)
    return target


@cache
def archive() -> Path:
    """Where `make_archive` puts its file, for this Java and these very jars; it need not be there."""
    parts = (tool("java"), libs(), libs().stat().st_mtime_ns, _helpers().stat().st_mtime_ns)
    return BUILD / f"archive-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"


def make_archive(main_class: str, *args: str) -> None:
    """Runs a class of Kafka's and keeps what it had loaded at its end, if that was not done yet."""
    target = archive()
    with _build_lock("archive"):
        if target.exists():
            return
        for old in BUILD.glob("archive-*"):
            old.unlink()
        scratch = BUILD / "archive-new.jsa"
        run = command(main_class, *args, options=(f"-XX:ArchiveClassesAtExit={scratch}",))
        done = subprocess.run(run, capture_output=True, text=True, timeout=JAVAC_DEADLINE_S)
        if done.returncode != 0 or not scratch.exists():
            raise RuntimeError(f"no archive was made:\n{done.stdout}{done.stderr}")
        scratch.rename(target)


def command(
    main_class: str, *args: str, heap_mb: int = 256, options: tuple[str, ...] = (), release: str = ""
) -> list[str]:
    """Command line that runs a class of Kafka's or of ours, with the jars of `release` or of the pom."""
    classpath = f"{_helpers()}{os.pathsep}{libs(release)}/*"
    # The archive fits the pom's jars alone.
    shared = (f"-XX:SharedArchiveFile={archive()}",) if not release and archive().exists() else ()
    return [tool("java"), f"-Xmx{heap_mb}m", *JVM_FLAGS, *shared, *options, "-cp", classpath, main_class, *args]
