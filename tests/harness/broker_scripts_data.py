"""Scripts about records: produce, fetch, offsets by time, leader epochs, deletion, idempotent producers."""

from __future__ import annotations

from typing import Any

from tests.harness.batches import BASE_TIME_MS, batch, batch_text
from tests.harness.script_steps import b64, create_topic, versions, wait_for_coordinator
from tests.harness.session import Session

UNKNOWN_ID = "AAAAAAAAAAAAAAAAAAAAZQ"

# The scripts' records carry old, fixed timestamps; without this they would be past the default retention.
FOREVER = {"retention.ms": "-1"}


def produce_request(s: Session, topic: str, records: str | None, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    """A Produce of one partition that fits every version."""
    data = [{"index": partition, "records": records}]
    topics = [{"name": topic, "topicId": s.topic_ids.get(topic, UNKNOWN_ID), "partitionData": data}]
    return {"transactionalId": None, "acks": acks, "timeoutMs": 5000, "topicData": topics}


def fetch_request(s: Session, topic: str, offset: int, partition: int = 0, **fields: Any) -> dict[str, Any]:
    """A sessionless Fetch of one partition that fits every version."""
    part = {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": 1 << 20, "currentLeaderEpoch": -1}
    part.update(
        {
            key: fields.pop(key)
            for key in list(fields)
            if key in ("currentLeaderEpoch", "lastFetchedEpoch", "partitionMaxBytes")
        }
    )
    topics = [{"topic": topic, "topicId": s.topic_ids.get(topic, UNKNOWN_ID), "partitions": [part]}]
    request: dict[str, Any] = {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 1 << 20, "topics": topics}
    request.update(fields)
    return request


def produce(s: Session) -> None:
    create_topic(s, "pr", 2, FOREVER)
    good = batch_text([b"one", b"two"])
    for version in versions("Produce"):
        s.call("two records", "Produce", version, produce_request(s, "pr", good))
        s.call("an unknown topic", "Produce", version, produce_request(s, "pr-nowhere", good))
        s.call("an unknown partition", "Produce", version, produce_request(s, "pr", good, 9))
        s.call("acks 1", "Produce", version, produce_request(s, "pr", good, acks=1))
        s.call("acks 2", "Produce", version, produce_request(s, "pr", good, acks=2), on="acks")
        s.call("no bytes", "Produce", version, produce_request(s, "pr", ""), on="empty")
        s.call(
            "a broken checksum", "Produce", version, produce_request(s, "pr", batch_text([b"x"], break_crc=1)), on="crc"
        )
        s.call(
            "two batches in one",
            "Produce",
            version,
            produce_request(s, "pr", b64(batch([b"a"]) + batch([b"b"]))),
            on="two",
        )
        s.call("cut off", "Produce", version, produce_request(s, "pr", b64(batch([b"a"])[:-1])), on="cut")
        s.call(
            "a batch and a cut one",
            "Produce",
            version,
            produce_request(s, "pr", b64(batch([b"a"]) + batch([b"a"])[:-1])),
            on="cut",
        )
        s.call("magic 1", "Produce", version, produce_request(s, "pr", batch_text([b"x"], magic=1)), on="magic")
        s.call("magic 3", "Produce", version, produce_request(s, "pr", batch_text([b"x"], magic=3)), on="magic")
        s.call(
            "a control batch",
            "Produce",
            version,
            produce_request(s, "pr", batch_text([b"x"], attributes=0x20)),
            on="control",
        )
        s.call(
            "a transactional batch without a transaction",
            "Produce",
            version,
            produce_request(s, "pr", batch_text([b"x"], attributes=0x10)),
            on="txn",
        )
    s.call("to the offsets topic", "Produce", 9, produce_request(s, "__consumer_offsets", good))
    s.one_way("acks 0", "Produce", 9, produce_request(s, "pr", good, acks=0), on="zero")
    s.one_way("acks 0 to an unknown topic", "Produce", 9, produce_request(s, "pr-nowhere", good, acks=0), on="zero")
    create_topic(s, "pr-small", 1, {**FOREVER, "max.message.bytes": "200"})
    s.call("too large for the topic", "Produce", 9, produce_request(s, "pr-small", batch_text([b"x" * 300])))
    create_topic(s, "pr-compact", 1, {"cleanup.policy": "compact"})
    s.call("no key in a compacted topic", "Produce", 9, produce_request(s, "pr-compact", good))
    create_topic(s, "pr-append", 1, {**FOREVER, "message.timestamp.type": "LogAppendTime"})
    s.call("log append time", "Produce", 9, produce_request(s, "pr-append", good))
    future = batch_text([b"x"], base_time_ms=BASE_TIME_MS * 2)
    s.call("a time far in the future", "Produce", 9, produce_request(s, "pr", future))
    several = [
        {
            "name": "pr",
            "partitionData": [
                {"index": 0, "records": good},
                {"index": 1, "records": good},
                {"index": 9, "records": good},
            ],
        },
        {"name": "pr-nowhere", "partitionData": [{"index": 0, "records": good}]},
    ]
    s.call(
        "several partitions",
        "Produce",
        9,
        {"transactionalId": None, "acks": -1, "timeoutMs": 5000, "topicData": several},
    )
    s.call("no topics", "Produce", 9, {"transactionalId": None, "acks": -1, "timeoutMs": 5000, "topicData": []})
    s.call("the end", "ListOffsets", 7, list_request(s, "pr", -1))


def odd_records(s: Session) -> None:
    """Records that old consumers may not know, and times that clocks do not show."""
    create_topic(s, "od-zstd", 1, {**FOREVER, "compression.type": "zstd"})
    s.call("to a topic of zstd", "Produce", 9, produce_request(s, "od-zstd", batch_text([b"one", b"two"])))
    create_topic(s, "od", 1, FOREVER)
    for time in (-86_400_000, -2, -1, 0):
        s.call(f"the time {time}", "Produce", 9, produce_request(s, "od", batch_text([b"x"], base_time_ms=time)))
    create_topic(s, "od-limit", 1, {**FOREVER, "message.timestamp.before.max.ms": "1000"})
    old = batch_text([b"x"], base_time_ms=-2)
    s.call("before 1970, and too old for the topic", "Produce", 9, produce_request(s, "od-limit", old))
    for version in versions("Fetch"):
        s.call("what was stored", "Fetch", version, fetch_request(s, "od", 0))
        s.call("zstd", "Fetch", version, fetch_request(s, "od-zstd", 0))
        # The bytes are those of a compressor.
        for part in s.last_step()["response"]["responses"][0]["partitions"]:
            part["records"] = f"<{'some' if part['records'] else 'no'} bytes>"
    for timestamp in (0, 1):
        s.call(f"time {timestamp}", "ListOffsets", 7, list_request(s, "od", timestamp))


def old_versions(s: Session) -> None:
    """Requests below or beyond what is served, each on a connection of its own."""
    create_topic(s, "old")
    wait_for_coordinator(s)
    body = b"\xff\xff\x00\x00\x13\x88\x00\x00\x00\x01\x00\x03old\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"
    for version in (0, 1, 2):
        s.raw(f"Produce v{version}", 0, version, body, False, on=f"produce{version}")
    s.raw("Produce v99", 0, 99, b"", True, on="produce99")
    s.raw("Fetch v3", 1, 3, b"", False, on="fetch3")
    s.raw("Fetch v99", 1, 99, b"", True, on="fetch99")
    s.raw("ListOffsets v0", 2, 0, b"", False, on="list0")
    s.raw("OffsetCommit v1", 8, 1, b"\x00\x01g\x00\x00\x00\x00", False, on="commit1")
    s.raw("OffsetFetch v0", 9, 0, b"\x00\x01g\x00\x00\x00\x00", False, on="fetch0")
    s.raw("Metadata v99", 3, 99, b"", True, on="metadata99")
    s.raw("CreateTopics v1", 19, 1, b"", False, on="create1")
    s.raw("ControlledShutdown", 7, 0, b"", False, on="shutdown")
    s.raw("an unknown API", 999, 0, b"", False, on="unknown")
    s.raw("a negative API", -1, 0, b"", False, on="negative")
    s.raw("Heartbeat cut short", 12, 0, b"\x00\x05g", False, on="short")
    s.raw("Heartbeat with a negative string", 12, 0, b"\xff\xff\x00\x00\x00\x01\x00\x01m", False, on="null")
    s.raw("Heartbeat with bytes left over", 12, 0, b"\x00\x01g\x00\x00\x00\x01\x00\x01m\x00\x00", False, on="long")
    s.raw(
        "Heartbeat v4 with an unknown tagged field",
        12,
        4,
        b"\x02g\x00\x00\x00\x01\x02m\x00\x01\x63\x02ab",
        True,
        on="tag",
    )
    s.raw("Metadata v1 with more topics than bytes", 3, 1, b"\x7f\xff\xff\xff", False, on="array")


def list_request(s: Session, topic: str, timestamp: int, partition: int = 0, **fields: Any) -> dict[str, Any]:
    part = {"partitionIndex": partition, "timestamp": timestamp, "currentLeaderEpoch": -1, **fields}
    return {"replicaId": -1, "topics": [{"name": topic, "partitions": [part]}]}


def list_offsets(s: Session) -> None:
    create_topic(s, "lo", 2, FOREVER)
    s.call("two records", "Produce", 9, produce_request(s, "lo", batch_text([b"one", b"two"])))
    s.call(
        "two later records",
        "Produce",
        9,
        produce_request(s, "lo", batch_text([b"3", b"4"], base_time_ms=BASE_TIME_MS + 10000)),
    )
    times = [
        -1,
        -2,
        -3,
        -4,
        -5,
        -6,
        -7,
        0,
        BASE_TIME_MS,
        BASE_TIME_MS + 1,
        BASE_TIME_MS + 1000,
        BASE_TIME_MS + 1001,
        BASE_TIME_MS + 11000,
        BASE_TIME_MS + 11001,
    ]
    for version in versions("ListOffsets"):
        for timestamp in times:
            s.call(f"time {timestamp}", "ListOffsets", version, list_request(s, "lo", timestamp))
            if timestamp < 0:
                s.call(f"time {timestamp}, nothing there", "ListOffsets", version, list_request(s, "lo", timestamp, 1))
        s.call("a time, nothing there", "ListOffsets", version, list_request(s, "lo", 5, 1))
        s.call("an unknown partition", "ListOffsets", version, list_request(s, "lo", -1, 9))
        s.call("an unknown topic", "ListOffsets", version, list_request(s, "lo-nowhere", -1))
        if version >= 4:
            for epoch in (0, 5, -7):
                s.call(
                    f"leader epoch {epoch}", "ListOffsets", version, list_request(s, "lo", -1, currentLeaderEpoch=epoch)
                )
        if version >= 2:
            s.call("read committed", "ListOffsets", version, {**list_request(s, "lo", -1), "isolationLevel": 1})
    both = [
        {"partitionIndex": 0, "timestamp": -1},
        {"partitionIndex": 0, "timestamp": -2},
        {"partitionIndex": 1, "timestamp": -1},
    ]
    s.call(
        "the same partition twice", "ListOffsets", 7, {"replicaId": -1, "topics": [{"name": "lo", "partitions": both}]}
    )
    s.call("nothing", "ListOffsets", 7, {"replicaId": -1, "topics": []})


def leader_epoch(s: Session) -> None:
    create_topic(s, "le", 2, FOREVER)
    s.call("two records", "Produce", 9, produce_request(s, "le", batch_text([b"one", b"two"])))
    for version in versions("OffsetForLeaderEpoch"):
        for epoch in (-1, 0, 1, 7, -2):
            for current in (-1, 0, 1):
                for partition in (0, 1, 9):
                    part = {"partition": partition, "currentLeaderEpoch": current, "leaderEpoch": epoch}
                    request = {"replicaId": -2, "topics": [{"topic": "le", "partitions": [part]}]}
                    s.call(
                        f"epoch {epoch} at {current}, partition {partition}", "OffsetForLeaderEpoch", version, request
                    )
        unknown = {"partition": 0, "currentLeaderEpoch": -1, "leaderEpoch": 0}
        s.call(
            "an unknown topic",
            "OffsetForLeaderEpoch",
            version,
            {"replicaId": -2, "topics": [{"topic": "le-nowhere", "partitions": [unknown]}]},
        )


def fetch(s: Session) -> None:
    create_topic(s, "fe", 2, FOREVER)
    s.call("two records", "Produce", 9, produce_request(s, "fe", batch_text([b"one", b"two"])))
    s.call("one more", "Produce", 9, produce_request(s, "fe", batch_text([b"three"])))
    for version in versions("Fetch"):
        for offset in (0, 1, 2, 3, 4, -1):
            s.call(f"offset {offset}", "Fetch", version, fetch_request(s, "fe", offset))
        s.call("an empty partition", "Fetch", version, fetch_request(s, "fe", 0, 1))
        s.call("an unknown partition", "Fetch", version, fetch_request(s, "fe", 0, 9))
        s.call("an unknown topic", "Fetch", version, fetch_request(s, "fe-nowhere", 0))
        s.call("one byte at most", "Fetch", version, fetch_request(s, "fe", 0, maxBytes=1))
        s.call("one byte of the partition at most", "Fetch", version, fetch_request(s, "fe", 0, partitionMaxBytes=1))
        s.call("read committed", "Fetch", version, fetch_request(s, "fe", 0, isolationLevel=1))
        if version >= 9:
            s.call("a later leader epoch", "Fetch", version, fetch_request(s, "fe", 0, currentLeaderEpoch=5))
            s.call("the right leader epoch", "Fetch", version, fetch_request(s, "fe", 0, currentLeaderEpoch=0))
        if version >= 12:
            s.call("last fetched epoch 0", "Fetch", version, fetch_request(s, "fe", 2, lastFetchedEpoch=0))
            s.call("last fetched epoch 7", "Fetch", version, fetch_request(s, "fe", 2, lastFetchedEpoch=7))
        if version >= 7:
            s.call("no such session", "Fetch", version, fetch_request(s, "fe", 0, sessionId=12345, sessionEpoch=1))
            s.call(
                "a session epoch without a session",
                "Fetch",
                version,
                fetch_request(s, "fe", 0, sessionId=0, sessionEpoch=3),
            )
        s.call("nothing", "Fetch", version, {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 1000, "topics": []})


def fetch_sessions(s: Session) -> None:
    """Sessions that begin or become empty (KIP-227)."""
    create_topic(s, "fs", 2, FOREVER)
    s.call("two records", "Produce", 9, produce_request(s, "fs", batch_text([b"one", b"two"])))
    named = {"topic": "fs", "topicId": s.topic_ids["fs"]}

    def ask(step: str, version: int, session: int, epoch: int, *partitions: int, forget: int | None = None) -> int:
        fields: dict[str, Any] = {"sessionId": session, "sessionEpoch": epoch}
        if forget is not None:
            fields["forgottenTopicsData"] = [{**named, "partitions": [forget]}]
        parts = [{"partition": number, "fetchOffset": 0, "partitionMaxBytes": 1 << 20} for number in partitions]
        topics = [{**named, "partitions": parts}] if parts else []
        request = {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 1 << 20, "topics": topics, **fields}
        answer = s.call(step, "Fetch", version, request)
        return int(answer["sessionId"])

    for version in (7, 12, 13):
        session = ask("a session of nothing", version, 0, 0)
        ask("nothing again", version, session, 1)
        ask("and again", version, session, 2)
        session = ask("another of nothing", version, 0, 0)
        ask("a partition", version, session, 1, 0)
        ask("no change", version, session, 2)
        ask("the epoch before", version, session, 2)
        ask("another partition", version, session, 3, 1)
        ask("one goes", version, session, 4, forget=0)
        ask("both are gone", version, session, 5, forget=1)
        ask("after that", version, session, 6)
        session = ask("one partition", version, 0, 0, 0)
        ask("one comes and goes", version, session, 1, 1, forget=1)
        ask("the end", version, session, -1)
        ask("after the end", version, session, 2)


def delete_records(s: Session) -> None:
    create_topic(s, "dr", 2, FOREVER)
    s.call("three records", "Produce", 9, produce_request(s, "dr", batch_text([b"1", b"2", b"3"])))

    def delete(step: str, version: int, topic: str, partition: int, offset: int) -> None:
        part = {"partitionIndex": partition, "offset": offset}
        request = {"topics": [{"name": topic, "partitions": [part]}], "timeoutMs": 5000}
        s.call(step, "DeleteRecords", version, request)

    for version in versions("DeleteRecords"):
        delete("to 1", version, "dr", 0, 1)
        delete("back to 0", version, "dr", 0, 0)
        delete("beyond the end", version, "dr", 0, 4)
        delete("negative", version, "dr", 0, -2)
        delete("an unknown partition", version, "dr", 9, 0)
        delete("an unknown topic", version, "dr-nowhere", 0, 0)
        delete("an empty partition", version, "dr", 1, 0)
        delete("an empty partition's end", version, "dr", 1, -1)
        delete("an internal topic", version, "__consumer_offsets", 0, 0)
    s.call("the start", "ListOffsets", 7, list_request(s, "dr", -2))
    s.call("below the start", "Fetch", 11, fetch_request(s, "dr", 0))
    s.call("inside a batch", "Fetch", 11, fetch_request(s, "dr", 1))
    delete("to the end", 2, "dr", 0, -1)
    s.call("the start", "ListOffsets", 7, list_request(s, "dr", -2))
    s.call("the end", "ListOffsets", 7, list_request(s, "dr", -1))
    s.call("a time", "ListOffsets", 7, list_request(s, "dr", BASE_TIME_MS))
    create_topic(s, "dr-compact", 1, {"cleanup.policy": "compact"})
    delete("a compacted topic", 2, "dr-compact", 0, 0)


def wait_for_producer_ids(s: Session) -> None:
    """A broker fetches its first block of producer ids when it is first asked."""
    for _ in range(2000):
        with s.unrecorded():
            answer = s.call("wait", "InitProducerId", 4, {"transactionalId": None, "transactionTimeoutMs": 60000})
        if answer["errorCode"] == 0:
            return
    raise TimeoutError("no producer ids came")


def idempotent_producer(s: Session) -> None:
    wait_for_producer_ids(s)
    create_topic(s, "ip", 1, FOREVER)
    for version in versions("InitProducerId"):
        if version > 5:
            continue
        for step, fields in {
            "new": {},
            "with an unknown id and epoch": {"producerId": 123456, "producerEpoch": 3},
            "with an id alone": {"producerId": 123456, "producerEpoch": -1},
            "with an epoch alone": {"producerId": -1, "producerEpoch": 3},
            "timeout 0": {"transactionTimeoutMs": 0},
            "negative timeout": {"transactionTimeoutMs": -1},
        }.items():
            request = {"transactionalId": None, "transactionTimeoutMs": 60000, **fields}
            s.call(step, "InitProducerId", version, request)
        s.call(
            "an empty transactional id",
            "InitProducerId",
            version,
            {"transactionalId": "", "transactionTimeoutMs": 60000},
        )
    pid = s.call("a producer", "InitProducerId", 4, {"transactionalId": None, "transactionTimeoutMs": 60000})[
        "producerId"
    ]

    def send(step: str, sequence: int, values: int = 1, epoch: int = 0, producer: int = pid) -> None:
        records = batch_text([b"x"] * values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        request = produce_request(s, "ip", records)
        recorded = s.call(step, "Produce", 9, request)
        if producer == pid and recorded is not None:
            part = s.last_step()["request"]["topicData"][0]["partitionData"][0]
            part["records"] = f"<{values} records, sequence {sequence}, epoch {epoch}>"

    send("the first", 0, 2)
    send("the first again", 0, 2)
    send("the next", 2)
    send("a gap", 9)
    send("older, but not the same batch", 1)
    for sequence in range(3, 9):
        send(f"sequence {sequence}", sequence)
    send("the last again", 8)
    send("the fifth from the end again", 4)
    send("the sixth from the end again", 3)
    send("long ago again", 0, 2)
    send("a new epoch at a wrong sequence", 5, epoch=1)
    send("a new epoch", 0, epoch=1)
    send("the old epoch", 9, epoch=0)
    send("a negative epoch", 1, epoch=-2)
    send("a negative sequence", -2, epoch=1)
    send("a producer nobody knows, first sequence 5", 5, producer=999999)
    send("the same goes on", 6, producer=999999)
    send("the same with a gap", 9, producer=999999)


DATA_SCRIPTS = {
    "produce": produce,
    "odd_records": odd_records,
    "old_versions": old_versions,
    "list_offsets": list_offsets,
    "leader_epoch": leader_epoch,
    "fetch": fetch,
    "fetch_sessions": fetch_sessions,
    "delete_records": delete_records,
    "idempotent_producer": idempotent_producer,
}
