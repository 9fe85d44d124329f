"""Running Kafka's own command line tools, and reading what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness import java

TOOLS = "org.apache.kafka.tools."
TOPICS = TOOLS + "TopicCommand"
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = TOOLS + "consumer.ConsoleConsumer"
CONSOLE_PRODUCER = TOOLS + "ConsoleProducer"
TRANSACTIONS = TOOLS + "TransactionsCommand"
VERIFIABLE_PRODUCER = TOOLS + "VerifiableProducer"
VERIFIABLE_CONSUMER = TOOLS + "VerifiableConsumer"
PRODUCER_PERFORMANCE = TOOLS + "ProducerPerformance"
CONSUMER_PERFORMANCE = TOOLS + "ConsumerPerformance"
GET_OFFSETS = TOOLS + "GetOffsetShell"
DELETE_RECORDS = TOOLS + "DeleteRecordsCommand"
GROUP_LISTING = TOOLS + "GroupsCommand"
CLUSTER = TOOLS + "ClusterTool"
API_VERSIONS = TOOLS + "BrokerApiVersionsCommand"
DUMP_LOG = TOOLS + "DumpLogSegments"
LOG_DIRS = TOOLS + "LogDirsCommand"
FEATURES = TOOLS + "FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"

DEADLINE_S = 180
# The logging facade, and log4j below it, announce on stderr that they have nothing to log to.
NOISE = ("SLF4J", "log4j:")


@dataclass(frozen=True)
class Result:
    """What a tool left behind; `err` without the noise of its logging."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.strip()]

    def table(self) -> list[dict[str, str]]:
        """Rows of the printed table by column. Cells must hold no blanks (a coordinator's does: use `lines`)."""
        lines = self.lines
        if not lines:
            return []
        columns = [name.strip() for name in lines[0].split("  ") if name.strip()]
        return [dict(zip(columns, line.split(), strict=False)) for line in lines[1:]]


def run(tool: str, *args: str, stdin: str | None = None, release: str = "") -> Result:
    """Runs a tool to its end: of `release`, such as 3.9.2, or of the release that the tests are about."""
    command = java.command(tool, *args, release=release)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
    err = "\n".join(line for line in done.stderr.splitlines() if not line.startswith(NOISE))
    return Result(done.returncode, done.stdout, err)


@contextmanager
def running(tool: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A tool that keeps running until the block ends."""
    process = subprocess.Popen(java.command(tool, *args), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def until(what: str, attempt: Callable[[], Result], good: Callable[[Result], bool], tries: int = 20) -> Result:
    """Runs a tool again and again until its result is good; the JVM's start is the pause."""
    for _ in range(tries):
        result = attempt()
        if good(result):
            return result
    raise TimeoutError(f"waited in vain for {what}; the last result was {result}")
