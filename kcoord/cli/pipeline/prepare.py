"""`kcoord pipeline prepare`."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import click

from kcoord.cli.log.common import Bar, emit_json, emit_rows, fail, format_bytes, output_option, say
from kcoord.cli.pipeline.sample_log import write_sample_log
from kcoord.cli.pipeline.trace_file import TraceFile
from kcoord.server.failures import EXIT_CONFIG, EXIT_STORAGE

# The jobs whose classes are in the archive. The other jobs use mostly the same ones.
JOBS: Final = ("rebalances", "offsets-history", "lag", "snapshot", "verify")
MASTER: Final = "local[2]"
# A JVM writes the archive for some seconds after it was told to end, and longer on a busy machine.
END_DEADLINE_S: Final = 300.0


@click.command("prepare")
@click.option("--remove", is_flag=True, help="Remove all archives instead.")
@output_option
def prepare(remove: bool, output: str) -> None:
    """Let Spark start sooner for jobs over short logs, with an archive of its classes.

    It runs some jobs over a small log. Java writes the classes that they used to a file of about 200 MB in the cache
    folder (~/.cache/kcoord). Spark jobs over local logs of up to 256 MiB then start with this file. Run it again after
    an upgrade of PySpark or Java.

    \b
    Example:
      kcoord pipeline prepare
    """
    from kcoord.cli.pipeline.run import friendly
    from kcoord.cli.pipeline.spark_session import check_installed

    check_installed()
    trace = TraceFile("prepare")
    try:
        with friendly(trace):
            done = _remove() if remove else _prepare(trace)
    finally:
        trace.close()
    if output == "json":
        emit_json(done)
    elif output == "csv":
        emit_rows([*done], [done])
    elif remove:
        say(f"{done['removed']} removed, {format_bytes(done['bytes'])}")
    else:
        say(f"{done['archive']}: {format_bytes(done['bytes'])}, in {done['seconds']:.0f} s")


def _remove() -> dict[str, Any]:
    from kcoord.spark.class_archive import remove_all

    count, size = remove_all()
    return {"removed": count, "bytes": size}


def _prepare(trace: TraceFile) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    from kcoord.cli.pipeline.spark_session import short_options
    from kcoord.spark.class_archive import archive_path, make_base, writing_options
    from kcoord.spark.java import find_java
    from kcoord.spark.session import has_jvm

    if has_jvm() or SparkSession.getActiveSession() is not None:
        fail("this process has a JVM already; run `kcoord pipeline prepare` in one of its own", EXIT_CONFIG)
    java = find_java()
    path = archive_path(java, short_options({}))
    if path is None:
        raise PermissionError("no place for it: the cache folder must be yours, and others must not write to it")
    began = time.monotonic()
    # In the folder of the archive, because a rename has to be within a file system.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as scratch:
        base = make_base(java, path, Path(scratch))
        archive = Path(scratch, path.name)
        _run_jobs(scratch, writing_options(archive, base), trace)
        if not archive.is_file():
            reason = trace.reason() or "it wrote no reason"
            fail(f"Java wrote no archive: {reason}. Its output is in {trace.keep()}", EXIT_STORAGE)
        os.chmod(archive, 0o600)
        os.replace(archive, path)
    return {"archive": str(path), "bytes": path.stat().st_size, "seconds": time.monotonic() - began}


def _run_jobs(scratch: str, jvm: str, trace: TraceFile) -> None:
    """Run all jobs in one JVM with these options, and wait until it has ended."""
    from kcoord.cli.pipeline.spark_session import JVM_OPTIONS, open_session, quiet_pyspark

    log = os.path.join(scratch, "data")
    write_sample_log(log)
    options = ("--master", MASTER, "--output", "json", "--limit", "5")
    with Bar() as bar:
        bar.begin("Running jobs", len(JOBS) + 2)
        quiet_pyspark()
        with trace.as_output():
            spark = open_session("prepare", MASTER, {JVM_OPTIONS: jvm}, 0)
        bar.step(1)
        try:
            for job in JOBS:
                # The session stays: a job ends only its own.
                _run_job(job, [log, *options, "--to", os.path.join(scratch, job)])
                bar.step(1)
        finally:
            spark.stop()
            _end_jvm()
        bar.step(1)


def _run_job(job: str, words: list[str]) -> None:
    from kcoord.cli.pipeline import pipeline

    printed = io.StringIO()
    command: Callable[..., Any] = pipeline.main
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            command([job, *words], prog_name="kcoord pipeline", standalone_mode=False)
        except SystemExit as exit_:
            failed = exit_.code
        else:
            failed = 0
    if failed:
        lines = printed.getvalue().strip().splitlines()
        fail(f"the job {job} failed: {lines[-1] if lines else failed}", EXIT_STORAGE)


def _end_jvm() -> None:
    """End the JVM as the end of this process would, and wait for it. Raises TimeoutError."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise TimeoutError(f"Java had not written the archive after {END_DEADLINE_S:.0f} s") from None
