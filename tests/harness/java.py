"""The Java side of the interop tests: jars from Maven Central, compiled helpers, and how to run them.

`libs()` fills build/interop/libs once from the checked-in pom and reuses it; INTEROP_LIBS names a directory that
is already filled. `spark_libs()` does the same with what Spark's Kafka source needs, and INTEROP_SPARK_LIBS.
`classes()` compiles tests/interop/java once per content. A missing java, javac or mvn raises
`ToolchainMissing`: these tests fail without their toolchain, they never pass by not running.
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
def libs() -> Path:
    """Directory that holds Kafka's jars and all they need."""
    return _filled("INTEROP_LIBS", "libs", "pom.xml", "kafka-clients-*.jar")


@cache
def spark_libs() -> Path:
    """Directory that holds Spark's own Kafka source and what it needs beside Spark."""
    return _filled("INTEROP_SPARK_LIBS", "spark-libs", "spark-pom.xml", "spark-sql-kafka-*.jar")


def _filled(variable: str, name: str, pom: str, proof: str) -> Path:
    """The directory that `variable` names, or build/interop/`name`, filled by Maven when `pom` is new or has changed."""
    given = os.environ.get(variable)
    if given:
        return Path(given)
    target = BUILD / name
    stamp = target / ".complete"
    wanted = hashlib.sha256((SOURCES / pom).read_bytes()).hexdigest()
    with _build_lock(name):
        if stamp.exists() and stamp.read_text() == wanted:
            return target
        shutil.rmtree(target, ignore_errors=True)
        command = [tool("mvn"), "-q", "-B", "-f", str(SOURCES / pom), "dependency:copy-dependencies"]
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
            shutil.rmtree(old, ignore_errors=True)
        scratch = BUILD / "classes.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        command = [tool("javac"), "-nowarn", "-d", str(scratch), "-cp", f"{libs()}/*"]
        command += [str(source) for source in sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVAC_DEADLINE_S)
        if done.returncode != 0:
            raise RuntimeError(f"javac failed:\n{done.stdout}{done.stderr}")
        scratch.rename(target)
    return target


def command(main_class: str, *args: str, heap_mb: int = 256, options: tuple[str, ...] = ()) -> list[str]:
    """Command line that runs a class of Kafka's or of ours."""
    classpath = f"{classes()}{os.pathsep}{libs()}/*"
    return [tool("java"), f"-Xmx{heap_mb}m", *JVM_FLAGS, *options, "-cp", classpath, main_class, *args]
