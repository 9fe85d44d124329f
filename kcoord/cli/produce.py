"""`kcoord produce`: records from lines, files or JSON."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, final

import click

from kcoord.cli.bar import Bar
from kcoord.cli.groups.common import partitions_of
from kcoord.cli.online.record_text import GivenRecord, Headers, RecordProblem, parse_escapes, parse_json
from kcoord.cli.online.run import (
    EXIT_CLUSTER,
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    TIMEOUT_S,
    bootstrap_options,
    complain,
    friendly,
    online,
    output_option,
    warn,
)
from kcoord.cli.output import Column, emit, plural
from kcoord.client.errors import BrokerError, KafkaError, RecordTooLarge, TransactionAborted, UnknownTopicOrPartition

if TYPE_CHECKING:
    import asyncio

    from kcoord.client.producer.batch import RecordMetadata
    from kcoord.client.producer.producer import Producer

COLUMNS: Final = [
    Column("topic", "TOPIC"), Column("partition", "PARTITION", True), Column("records", "RECORDS", True),
    Column("first_offset", "FIRST OFFSET", True), Column("last_offset", "LAST OFFSET", True),
]  # fmt: skip
LINGER_MS: Final = 5
BATCH_BYTES: Final = 64 * 1024
REQUEST_TIMEOUT_MS: Final = 30_000
MAX_REQUEST_SIZE: Final = 1_048_576
CODECS: Final = ["none", "gzip", "snappy", "lz4", "zstd"]


def parse_header(text: str) -> tuple[str, bytes | None]:
    """NAME=VALUE; NAME alone has the value null. Raises BadParameter. A default is returned unchanged."""
    name, equals, value = text.partition("=")
    if not name:
        raise click.BadParameter(f"{text!r}: give NAME=VALUE")
    return name, value.encode(errors="surrogateescape") if equals else None


def parse_delimiter(text: str) -> bytes:
    """Raises BadParameter."""
    try:
        return parse_escapes(text)
    except RecordProblem as error:
        raise click.BadParameter(str(error)) from None


@final
class Maker:
    """Makes records of lines, by the options of the command."""

    def __init__(
        self, key: bytes | None, key_delimiter: bytes, headers: Headers, partition: int | None, null_value: bool,
        is_json: bool, is_base64: bool,
    ) -> None:  # fmt: skip
        self.key = key
        self.key_delimiter = key_delimiter
        self.headers = headers
        self.partition = partition
        self.null_value = null_value
        self.is_json = is_json
        self.is_base64 = is_base64

    def make(self, content: bytes) -> GivenRecord | None:
        """None for an empty line of JSON. Raises RecordProblem."""
        if self.is_json:
            return self._of_json(content) if content.strip() else None
        key = self.key
        if self.key_delimiter:
            before, delimiter, after = content.partition(self.key_delimiter)
            if delimiter:
                key, content = before, after
        value = None if self.null_value and not content else content
        return GivenRecord(value, key, self.headers, self.partition)

    def _of_json(self, content: bytes) -> GivenRecord:
        record = parse_json(content, self.is_base64)
        return record._replace(
            key=self.key if record.key is None else record.key,
            value=None if self.null_value and not record.value else record.value,
            headers=[*self.headers, *record.headers],
            partition=record.partition if self.partition is None else self.partition,
        )


@final
class Progress:
    """What was written, by partition, and what was not."""

    def __init__(self) -> None:
        # Records whose result is not known yet, in their order.
        self.pending: deque[tuple[str, asyncio.Future[RecordMetadata]]] = deque()
        # (records, first offset, last offset) by topic and partition.
        self.written: dict[tuple[str, int], list[int]] = {}
        self.failures: list[tuple[str, KafkaError]] = []
        self.problem = ""
        self.is_interrupted = False
        # The transaction was aborted: nothing counts as written.
        self.is_aborted = False

    def reap(self) -> None:
        """Note the results that have arrived."""
        while self.pending and self.pending[0][1].done():
            where, future = self.pending.popleft()
            error = future.exception()
            if isinstance(error, TransactionAborted):
                continue
            if isinstance(error, KafkaError):
                self.failures.append((where, error))
            elif error is not None:
                raise error
            else:
                self._count(future.result())

    def _count(self, result: RecordMetadata) -> None:
        row = self.written.setdefault((result.topic, result.partition), [0, -1, -1])
        row[0] += 1
        if result.offset >= 0:
            row[1] = result.offset if row[1] < 0 else min(row[1], result.offset)
            row[2] = max(row[2], result.offset)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": topic,
                "partition": partition,
                "records": count,
                "first_offset": first if first >= 0 else None,
                "last_offset": last if last >= 0 else None,
            }
            for (topic, partition), (count, first, last) in sorted(self.written.items())
        ]


async def send_all(
    producer: Producer, topic: str, maker: Maker, paths: tuple[str, ...], delimiter: bytes, done: Progress, bar: Bar
) -> None:
    """Send every line; stop at the first that is no record or cannot be written."""
    from kcoord.cli.online.lines import STDIN, lines_of

    for path in paths or (STDIN,):
        async with aclosing(lines_of(path, delimiter, bar.step)) as lines:
            async for where, content in lines:
                try:
                    record = maker.make(content)
                    if record is None:
                        continue
                    future = await producer.send_nowait(
                        topic, record.value, record.key, partition=record.partition, headers=record.headers,
                        timestamp_ms=record.timestamp_ms,
                    )  # fmt: skip
                except (RecordProblem, RecordTooLarge, UnknownTopicOrPartition, ValueError) as error:
                    done.problem = f"{where}: {error}"
                    return
                except KafkaError as error:
                    done.failures.append((where, error))
                    return
                done.pending.append((where, future))
                done.reap()
                if done.failures:
                    return


async def end_transaction(producer: Producer, done: Progress) -> None:
    """Commit the transaction if all input was sent and written, and abort it otherwise. Raises KafkaError."""
    if not (done.problem or done.failures or done.is_interrupted):
        try:
            await producer.commit_transaction()
            return
        except BrokerError as error:
            done.problem = str(error)
    done.is_aborted = True
    await producer.abort_transaction()


def report(done: Progress, output: str) -> None:
    """Print the result and set the exit code."""
    if done.is_aborted:
        done.written.clear()
    emit(COLUMNS, done.rows(), output)
    written = plural(sum(row[0] for row in done.written.values()), "record")
    if done.is_aborted:
        warn("the transaction was aborted: read_committed consumers see none of its records")
    code = 0
    if done.failures:
        where, error = done.failures[0]
        complain(f"{plural(len(done.failures), 'record')} not written, {written} written. The first: {where}: {error}")
        code = EXIT_PROBLEMS if all(isinstance(one, RecordTooLarge) for _, one in done.failures) else EXIT_CLUSTER
    if done.problem:
        complain(f"{done.problem}; stopped there, {written} written")
        code = code or EXIT_PROBLEMS
    if done.is_interrupted:
        warn(f"interrupted: {written} written")
        code = EXIT_INTERRUPTED
    if code:
        sys.exit(code)


@click.command()
@bootstrap_options
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S, show_default=True, metavar="SECONDS",
    help="Time limit of each record.",
)  # fmt: skip
@click.argument("topic")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--key-delimiter", "-k", metavar="TEXT", default="", type=parse_delimiter, help="Separates key and value."
)
@click.option("--key", metavar="KEY", help="The key of all records that have none of their own.")
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Write to this partition.")
@click.option("--header", "-H", "headers", multiple=True, type=parse_header, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object with key, value, headers, ...")
@click.option("--base64", "is_base64", is_flag=True, help="With --json: keys and values are in base64.")
@click.option("--null-value", is_flag=True, help="Write an empty value as null: a tombstone.")
@click.option("--delimiter", metavar="TEXT", default="\\n", type=parse_delimiter, help=r"Separates records (\n).")
@click.option("--whole", is_flag=True, help="Each file is one record.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="As acks of Kafka's producer.",
)
@click.option(
    "--compression", "-z", type=click.Choice(CODECS), default="none", show_default=True, help="Of the batches."
)
@click.option(
    "--max-request-size", type=click.IntRange(min=1), default=MAX_REQUEST_SIZE, show_default=True, metavar="BYTES",
    help="A larger record is refused.",
)  # fmt: skip
@click.option("--transactional-id", metavar="ID", help="Write everything in one transaction of this id.")
@click.option("--create", is_flag=True, help="Let the broker create a topic that does not exist.")
@output_option
@friendly
def produce(
    bootstrap: str, timeout: float, topic: str, files: tuple[str, ...], key_delimiter: bytes, key: str | None,
    partition: int | None, headers: tuple[tuple[str, bytes | None], ...], is_json: bool, is_base64: bool,
    null_value: bool, delimiter: bytes, whole: bool, acks: str, compression: str, max_request_size: int,
    transactional_id: str | None, create: bool, output: str,
) -> None:  # fmt: skip
    """Write records to TOPIC: the lines of standard input, or of the FILEs.

    It prints the offsets of the records. At a line that is invalid or too large it stops with exit code 1; the records
    before that line are written. Ctrl-C ends the input.

    JSON may have the fields key, value, headers, partition and timestamp_ms. A key or value is a string, null,
    {"base64": ...} for bytes, or any other JSON, which is written as it is.

    \b
    Examples:
      echo hello | kcoord produce orders
      kcoord produce orders -k : -H source=test < lines.txt
      echo '{"key": "a", "value": {"amount": 3}, "headers": {"n": "1"}}' | kcoord produce orders --json
      kcoord produce images --key logo --whole logo.png
    """
    if is_base64 and not is_json:
        raise click.UsageError("--base64 is for --json only")
    if transactional_id is not None and acks != "all":
        raise click.UsageError("--transactional-id needs --acks all")
    if is_json and (key_delimiter or whole):
        raise click.UsageError("--json excludes --key-delimiter and --whole")
    if not create:
        # A topic with a typing mistake should not be created, nor waited for.
        named = None if partition is None else {partition}
        online(bootstrap, timeout, lambda admin: partitions_of(admin, {topic: named}))
    import asyncio

    from kcoord.cli.online.lines import STDIN, size_of
    from kcoord.client.producer.producer import Producer

    timeout_ms = max(timeout * 1000, 2 * LINGER_MS)
    maker = Maker(
        None if key is None else key.encode(errors="surrogateescape"), key_delimiter, list(headers), partition,
        null_value, is_json, is_base64,
    )  # fmt: skip
    done = Progress()

    async def work(bar: Bar) -> None:
        producer = Producer(
            bootstrap_servers=bootstrap, acks=acks, compression_type=compression, linger_ms=LINGER_MS,
            batch_bytes_max=BATCH_BYTES, max_request_size=max_request_size, delivery_timeout_ms=timeout_ms,
            request_timeout_ms=min(timeout_ms - LINGER_MS, REQUEST_TIMEOUT_MS), max_block_ms=timeout_ms,
            transactional_id=transactional_id,
        )  # fmt: skip
        async with producer:
            if transactional_id is not None:
                await producer.init_transactions()
                await producer.begin_transaction()
            try:
                await send_all(producer, topic, maker, files, b"" if whole else delimiter, done, bar)
            except asyncio.CancelledError:
                # Ctrl-C ends the input. Leaving the block delivers what was read.
                done.is_interrupted = True
            if transactional_id is not None:
                await end_transaction(producer, done)
        done.reap()

    with Bar() as bar:
        bar.begin("Writing", sum(map(size_of, files or (STDIN,))))
        asyncio.run(work(bar))
    report(done, output)
