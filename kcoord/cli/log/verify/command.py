"""`kcoord log verify`: checks every byte of a data directory and replays every record of the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    emit_rows,
    exit_if,
    format_bytes,
    friendly,
    note,
    output_option,
    plural,
    progress,
    say,
)
from kcoord.cli.log.dump import choose
from kcoord.cli.log.verify.findings import Findings
from kcoord.cli.log.verify.group_checks import GroupChecks
from kcoord.cli.log.verify.index_checks import IndexChecks, check_snapshots
from kcoord.cli.log.verify.invariants import Invariants
from kcoord.cli.log.verify.metadata_checks import SnapshotCheck
from kcoord.cli.log.verify.state_checks import StateCheck
from kcoord.cli.log.verify.transaction_checks import TransactionChecks
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC, LogId
from kcoord.log.errors import StorageError
from kcoord.log.inspect import (
    DataDirectory,
    PartitionFiles,
    SegmentFile,
    has_topic_id,
    inspect_directory,
)
from kcoord.log.lost_logs import lost_logs
from kcoord.log.reader import DamagedBytes, StoredBatch
from kcoord.log.recovery import NOT_FINISHED, REPLACED, TO_BE_DELETED, UNDONE, RecoveredFiles
from kcoord.log.typed_records import COORDINATOR_TOPICS, DECOMPRESSED_BYTES_MAX, RecordReader
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import LOG_APPEND_TIME

LEFT_OUT: Final = "the next start deletes them, and all tools ignore them"
# How many file names one finding lists.
NAMES_MAX: Final = 6
# The topic id of the metadata log is fixed and not in any record.
NO_TOPIC_RECORD: Final = (METADATA_TOPIC,)


@final
class LogCheck:
    """Checks one log, batch by batch."""

    def __init__(
        self,
        directory: DataDirectory,
        files: PartitionFiles,
        findings: Findings,
        invariants: Invariants,
        snapshots: SnapshotCheck | None = None,
    ) -> None:
        self.directory = directory
        self.snapshots = snapshots
        self.files = files
        self.findings = findings
        self.invariants = invariants
        self.log_id = LogId(files.topic, files.partition)
        self.reader = RecordReader()
        self.is_compacted = _is_compacted(files, invariants)
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.end_offset = files.start_offset
        self.epoch = -1
        self.epochs: list[tuple[int, int]] = []
        self._segment: SegmentFile | None = None
        self._indexes: IndexChecks | None = None
        self._transactions = TransactionChecks(files.name, findings)
        self._damage: DamagedBytes | None = None
        self._is_damaged = False
        is_groups = files.topic == OFFSETS_TOPIC
        self._state = StateCheck(files, directory.format_1_end(files), findings) if is_groups else None
        self._groups = GroupChecks(directory, files, invariants.groups, self._tell) if is_groups else None

    def run(self, step: Callable[[int], None]) -> None:
        """Raises OSError."""
        self._check_interrupted()
        for item in self.directory.batches(self.files, has_unwritten=True):
            if isinstance(item, DamagedBytes):
                step(item.size_bytes)
                if self.directory.is_unwritten(self.files, item):
                    self._note_zeros(item)
                    continue
                self._settle_damage(True)
                self._enter(item.file)
                self._damage = item
                continue
            step(item.header.size)
            self._settle_damage(True)
            self._enter(item.file)
            self._batch(item)
        self._settle_damage(False)
        if self._groups is not None:
            self._groups.finish(self._is_damaged or self.end_offset < self.directory.mark_of(self.files))
        self._leave()
        self._check_files()
        if self.snapshots is not None:
            self.snapshots.finish(self.end_offset, self._is_damaged)
        # Records that a running server wrote after its last mark were not read.
        if self._state is not None and not self._is_damaged and not self.directory.in_use:
            self._state.finish(self.end_offset)

    def _check_interrupted(self) -> None:
        """Report files of an unfinished exchange of segments. In the log of a running broker they are normal."""
        if self.directory.in_use:
            return
        for reason, names in interrupted(self.files.recovered):
            self.findings.warning("interrupted", self.files.name, f"{names}: {reason}")

    def _note_zeros(self, zeros: DamagedBytes) -> None:
        """Zeros where nothing durable was. A broker preallocates, too."""
        if self.directory.is_kcoord:
            text = f"{plural(zeros.size_bytes, 'zero')} behind the end: preallocated, or a crash kept the contents "
            text += "from the disk; opening the log removes them"
            self.findings.warning("torn end", self.files.name, text, zeros.file, zeros.position, zeros.next_offset)

    def _settle_damage(self, is_inside: bool) -> None:
        """Report unreadable bytes: an error if valid batches follow or the bytes were durable, else a torn end."""
        damage = self._damage
        if damage is None:
            return
        self._damage = None
        self._is_damaged = True
        self._transactions.lost()
        if self._groups is not None and is_inside:
            self._groups.lost()
        place = (damage.file, damage.position, damage.next_offset)
        text = f"{plural(damage.size_bytes, 'byte')} cannot be read: {damage.reason}"
        if damage.zeros and not self.directory.is_kcoord:
            # Preallocated by a broker.
            return
        is_torn = not is_inside and not self.directory.was_clean
        if is_torn and damage.next_offset >= self.directory.mark_of(self.files):
            text += "; a crash cut the last write short, and opening the log removes it"
            self.findings.warning("torn end", self.files.name, text, *place)
        else:
            self.findings.error("checksum", self.files.name, text, *place)

    def _enter(self, path: str) -> None:
        if self._segment is not None and self._segment.path == path:
            return
        self._leave()
        for segment in self.files.segments:
            if segment.path == path:
                self._segment = segment
                is_last = segment is self.files.segments[-1]
                # After an unclean stop the indexes of the last segment are rebuilt.
                if not is_last or self.directory.state == "clean":
                    self._indexes = IndexChecks(self.files.name, segment, self.findings)

    def _leave(self) -> None:
        segment = self._segment
        if segment is None:
            return
        if self._indexes is not None:
            self._indexes.finish(self.end_offset)
        self._transactions.leave(segment, self._indexes is not None)
        self._segment = self._indexes = None

    def _batch(self, batch: StoredBatch) -> None:
        header = batch.header
        self._offsets(batch)
        self._transactions.note(batch)
        if self._indexes is not None:
            self._indexes.note(batch.position, header)
        if header.leader_epoch < self.epoch:
            text = f"leader epoch {header.leader_epoch} after {self.epoch}"
            self._error("leader epoch", batch, text)
        elif header.leader_epoch > self.epoch:
            self.epoch = header.leader_epoch
            self.epochs.append((self.epoch, int(header.base_offset)))
        producer, newest = int(header.producer_id), int(header.max_timestamp)
        fenced = self.invariants.producers.check(self.log_id, producer, int(header.producer_epoch), newest)
        if fenced:
            # Only a warning: a broker forgets producers by time, and timestamps mostly come from clients.
            base = int(header.base_offset)
            self.findings.warning("producer epoch", self.files.name, fenced, batch.file, batch.position, base)
        self.batches += 1
        self.bytes += header.size
        self.end_offset = max(self.end_offset, int(header.last_offset) + 1)
        self._records(batch)

    def _error(self, check: str, batch: StoredBatch, text: str, offset: int = -1) -> None:
        at = offset if offset >= 0 else int(batch.header.base_offset)
        self.findings.error(check, self.files.name, text, batch.file, batch.position, at)

    def _tell(self, rule: str, text: str, file: str, position: int, offset: int) -> None:
        self.findings.error(rule, self.files.name, text, file, position, offset)

    def _offsets(self, batch: StoredBatch) -> None:
        header = batch.header
        if header.base_offset < self.end_offset:
            text = f"offset {header.base_offset}, {self.end_offset} or later expected"
            self._error("offsets", batch, text)
            return
        is_active = batch.file == self.files.segments[-1].path
        if self.is_compacted and not (is_active and header.base_offset > self.files.segments[-1].base_offset):
            return
        due = max(self.end_offset, self.files.segments[-1].base_offset) if self.is_compacted else self.end_offset
        if header.base_offset > due:
            self._error("offsets", batch, f"offset {due} expected, the batch begins at {header.base_offset}")
        elif header.count != header.last_offset_delta + 1 and not self.is_compacted:
            text = f"{plural(int(header.count), 'record')} for {header.last_offset_delta + 1} offsets"
            self._error("offsets", batch, text)

    def _records(self, batch: StoredBatch) -> None:
        header = batch.header
        if self._groups is not None:
            self._groups.begin_batch(batch)
        try:
            records = batch.records(DECOMPRESSED_BYTES_MAX)
        except (DecodeError, DecompressionError) as error:
            self._error("records", batch, f"its records cannot be read: {error}")
            if self._groups is not None:
                self._groups.lost()
            return
        self.records += len(records)
        is_typed = self.files.topic in COORDINATOR_TOPICS
        start = self.directory.start_of(self.files)
        if self.snapshots is not None:
            start = max(start, self.snapshots.from_offset)
            if not self._is_damaged:
                self.snapshots.before(int(header.base_offset))
        last = -1
        for record in records:
            if record.offset <= last:
                self._error("records", batch, f"record {record.offset} after {last}", record.offset)
            last = record.offset
            if record.timestamp > header.max_timestamp and header.timestamp_type != LOG_APPEND_TIME:
                self._error("records", batch, "a record is newer than the max timestamp of its batch", record.offset)
            if not is_typed or record.offset < start:
                continue
            if self._state is not None:
                self._state.note(header, record)
            typed = self.reader.read(self.files.topic, header, record)
            if typed.error:
                self._error("records", batch, f"record {record.offset}: {typed.error}", record.offset)
                if self._groups is not None:
                    self._groups.lost()
            elif not header.is_control:
                report = _Report(self, batch, record.offset)
                self.invariants.check(self.log_id, typed, report.tell, self._groups)
        if self._groups is not None:
            if header.is_control:
                self._groups.marker(batch)
            self._groups.end_batch()

    def _check_files(self) -> None:
        files, directory, findings = self.files, self.directory, self.findings
        mark = directory.mark_of(files)
        if mark > self.end_offset:
            text = f"the log ends at {self.end_offset}, but was synced up to {mark}"
            findings.error("durable mark", files.name, text, "", -1, self.end_offset)
        start = directory.starts.get((files.topic, files.partition), 0)
        if start > self.end_offset:
            findings.error("log start", files.name, f"the log ends at {self.end_offset}, its start is {start}")
        check_snapshots(files, self.end_offset, findings)
        try:
            listed = files.epochs()
        except StorageError as error:
            findings.error("leader epoch", files.name, str(error))
            return
        for i in range(1, len(listed)):
            if listed[i][0] <= listed[i - 1][0] or listed[i][1] < listed[i - 1][1]:
                findings.error("leader epoch", files.name, "the epochs in its checkpoint are not ascending")
        starts = dict(listed)
        for epoch, offset in self.epochs if listed else []:
            if starts.get(epoch, offset + 1) > offset:
                text = f"a batch of epoch {epoch} at offset {offset}, which is missing in its checkpoint"
                findings.error("leader epoch", files.name, text, "", -1, offset)

    def plain(self) -> dict[str, Any]:
        return {
            "log": self.files.name,
            "end_offset": self.end_offset,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
        }


@final
class _Report:
    """Receives the violations of invariants for one record."""

    def __init__(self, check: LogCheck, batch: StoredBatch, offset: int) -> None:
        self.check = check
        self.batch = batch
        self.offset = offset

    def tell(self, rule: str, text: str) -> None:
        place = (self.batch.file, self.batch.position, self.offset)
        self.check.findings.error(rule, self.check.files.name, text, *place)


def interrupted(files: RecoveredFiles) -> list[tuple[str, str]]:
    """(what the next start does, file names) for the files of an unfinished exchange of segments."""
    texts = (
        (TO_BE_DELETED, "of removed or replaced segments; the next start deletes them, and no record is lost"),
        (NOT_FINISHED, f"of a compaction that did not finish; {LEFT_OUT}"),
        (UNDONE, f"of an exchange of segments that did not begin; {LEFT_OUT}"),
        (REPLACED, "replaced by .swap files; the next start deletes them, and all tools read the .swap files"),
    )
    found = [(text, [one.name for one in files.dropped if one.reason == reason]) for reason, text in texts]
    swaps = "new segments of a compaction; the next start removes the suffix .swap, and all tools read them as segments"
    found.append((swaps, sorted(files.names.values())))
    return [(text, _shown(names)) for text, names in found if names]


def _shown(names: list[str]) -> str:
    return ", ".join(names[:NAMES_MAX]) + (f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else "")


def _is_compacted(files: PartitionFiles, invariants: Invariants) -> bool:
    if files.topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC):
        return True
    topics = invariants.core.topics
    topic = topics.get(files.topic)
    # The settings of an unknown topic are not available, so gaps may be valid.
    if topic is None:
        return files.topic != METADATA_TOPIC
    return "compact" in topics.config_value(topic, "cleanup.policy")


def check_directory(directory: DataDirectory, invariants: Invariants, findings: Findings) -> None:
    """Compare the directories with the topics of the metadata log, as far as it could be read."""
    for log in lost_logs(directory):
        findings.error("durable mark", log.name, log.reason)
    topics = invariants.core.topics
    if not topics.topics or directory.find(METADATA_TOPIC, 0) is None:
        return
    for files in directory.partitions:
        topic = topics.get(files.topic)
        if files.topic in NO_TOPIC_RECORD:
            continue
        if topic is None or files.partition >= topic.partition_count:
            text = "no topic of the metadata log has this partition; opening the directory puts it aside"
            findings.warning("topics", files.name, text)
        elif has_topic_id(files) and files.topic_id != topic.topic_id:
            findings.error("topics", files.name, "its directory belongs to a topic with another id")
    # A partition without a directory was never written: the first write creates its files.


def verify_directory(
    directory: DataDirectory, chosen: list[PartitionFiles], findings: Findings, step: Callable[[int], None]
) -> tuple[list[LogCheck], Invariants]:
    """Check the logs, the metadata log first: it determines which others exist. Raises OSError."""
    metadata = directory.find(METADATA_TOPIC, 0)
    count = max((files.partition for files in directory.of_topic(OFFSETS_TOPIC)), default=-1) + 1
    invariants = Invariants(count if directory.properties else 0, False)
    snapshots: SnapshotCheck | None = None
    if metadata is not None:
        is_asked = metadata in chosen
        snapshots = SnapshotCheck(directory, metadata, invariants.core, findings if is_asked else Findings())
        invariants.is_whole = snapshots.is_whole
        if not is_asked:
            LogCheck(directory, metadata, Findings(), invariants, snapshots).run(lambda _: None)
    checks = []
    for files in sorted(chosen, key=lambda files: files is not metadata):
        if files is not metadata:
            invariants.core.assume_offsets_logs(count)
        check = LogCheck(directory, files, findings, invariants, snapshots if files is metadata else None)
        check.run(step)
        checks.append(check)
    return checks, invariants


# The columns of CSV.
FIELDS: Final = ("severity", "check", "log", "file", "position", "offset", "message")


@click.command()
@directory_argument
@click.argument("logs", metavar="[LOG]...", nargs=-1)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@output_option
@friendly
def verify(directory: str, logs: tuple[str, ...], strict: bool, output: str) -> None:
    """Check everything in DIR, or in these LOGs of it.

    It checks checksums, offsets (gaps only where compaction can leave them), leader epochs and record encodings. It
    compares indexes with batches, checkpoints with logs, and directories with topics, and checks producer snapshots.
    It replays the coordinator's records: generations and epochs never decrease, a leader is a member, a partition has
    one owner, a group is in its partition, and no producer id is assigned twice. The log of a running server is checked
    up to its durable mark.

    An error is a violated rule. A warning is a state that opening the log handles, such as a write that a crash cut
    short. The exit code is 1 if there are errors.

    \b
    Examples:
      kcoord log verify data
      kcoord log verify data __consumer_offsets --strict
      kcoord log verify data -o json | jq '.problems[] | {file, position}'
    """
    damaged_files: list[StorageError] = []
    found = inspect_directory(directory, damaged_files)
    if found.in_use:
        note("a server is running: checking up to the durable mark")
    findings = Findings()
    for error in damaged_files:
        findings.error("checkpoint", "", str(error))
    chosen = choose(found, logs) if logs else found.partitions
    with progress("Checking", sum(files.size_bytes for files in chosen)) as step:
        checks, invariants = verify_directory(found, chosen, findings, step)
    if found.properties and not logs:
        check_directory(found, invariants, findings)
    core = invariants.core
    replayed = {
        "groups": sum(1 for group in core.groups.groups.values() if group.value is not None)
        + len(core.groups.consumer_groups),
        "offsets": core.offsets.count,
        "topics": len(core.topics.topics),
    }
    if output == "json":
        emit_json(
            {
                "directory": found.root,
                "state": found.state,
                "errors": findings.errors,
                "warnings": findings.warnings,
                "problems": [finding.plain() for finding in findings.found],
                "logs": [check.plain() for check in checks],
                "replayed": replayed,
            }
        )
    elif output == "csv":
        emit_rows(FIELDS, [finding.plain() for finding in findings.found])
    else:
        _print(findings, checks, replayed)
        if findings.errors and found.is_kcoord:
            say(f"`kcoord log repair {found.root}` lists what it would change, and changes it with --execute", 2, 0)
    exit_if(findings.errors > 0 or (strict and findings.warnings > 0))


def _print(findings: Findings, checks: list[LogCheck], replayed: dict[str, int]) -> None:
    for finding in findings.found:
        say(finding.text(), 4, 0)
    if findings.left_out():
        click.echo(f"and {findings.left_out()} more of the same kinds")
    size = format_bytes(sum(check.bytes for check in checks))
    batches = plural(sum(check.batches for check in checks), "batch").replace("batchs", "batches")
    records = plural(sum(check.records for check in checks), "record")
    read = f"{plural(len(checks), 'log')}, {size}, {batches}, {records}"
    state = ", ".join(plural(count, name.removesuffix("s")) for name, count in replayed.items())
    say(f"read: {read}", 2, 0)
    say(f"replayed: {state}", 2, 0)
    if findings.errors or findings.warnings:
        click.echo(f"{plural(findings.errors, 'error')}, {plural(findings.warnings, 'warning')}")
    else:
        click.echo("no problems found")
