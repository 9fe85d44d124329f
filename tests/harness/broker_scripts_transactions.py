"""Scripts about transactions: producers with a transactional id, what they write, and how it is listed and read."""

from __future__ import annotations

import base64
import time
from typing import Any

from kcoord.wire.record_batch import decode_records, parse_header
from tests.harness.batches import batch_text
from tests.harness.broker_scripts_data import fetch_request, list_request, produce_request
from tests.harness.script_steps import create_topic, stable_member, versions, wait_for_coordinator
from tests.harness.session import Session

CONCURRENT_TRANSACTIONS = 51
# Records with old timestamps are kept, and share a segment with markers of today.
FOREVER = {"retention.ms": "-1", "segment.ms": "100000000000000"}
ENDING = ("PrepareCommit", "PrepareAbort")
TRIES = 2000
LONG = 1000


def wait_for_transactions(s: Session) -> None:
    """Until the coordinator of transactions is up and has producer ids."""
    wait_for_coordinator(s)
    for _ in range(TRIES):
        with s.unrecorded():
            found = s.call("wait", "FindCoordinator", 4, {"keyType": 1, "coordinatorKeys": ["txn-warm-up"]})
            request = {"transactionalId": "txn-warm-up", "transactionTimeoutMs": 60000}
            made = s.call("wait", "InitProducerId", 4, request)
        if found["coordinators"][0]["errorCode"] == 0 and made["errorCode"] == 0:
            return
    raise TimeoutError("no coordinator of transactions came up")


def settled(s: Session, transactional_id: str) -> str:
    """Waits, unrecorded, until no end of a transaction is under way; its state."""
    for _ in range(TRIES):
        with s.unrecorded():
            found = s.call("wait", "DescribeTransactions", 0, {"transactionalIds": [transactional_id]}, on="wait")
        state: str = found["transactionStates"][0]["transactionState"]
        if state not in ENDING:
            return state
    raise TimeoutError(f"the transaction of {transactional_id} never ends")


def sort_results(topics: list[dict[str, Any]]) -> None:
    """Brokers list the results of AddPartitionsToTxn in the order of hash maps."""
    topics.sort(key=lambda topic: str(topic["name"]))
    for topic in topics:
        topic["resultsByPartition"].sort(key=lambda one: int(one["partitionIndex"]))


class Producer:
    """A transactional producer: its id, and what its next request has."""

    def __init__(self, s: Session, transactional_id: str, timeout_ms: int = 60000) -> None:
        self.s = s
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.sequences: dict[tuple[str, int], int] = {}
        self.renew()

    def renew(self) -> None:
        """A new epoch, unrecorded."""
        for _ in range(TRIES):
            with self.s.unrecorded():
                request = {"transactionalId": self.transactional_id, "transactionTimeoutMs": self.timeout_ms}
                made = self.s.call("init", "InitProducerId", 4, request)
            if made["errorCode"] != CONCURRENT_TRANSACTIONS:
                break
        self.producer_id: int = made["producerId"]
        self.epoch: int = made["producerEpoch"]
        self.sequences.clear()

    def ids(self, **fields: Any) -> dict[str, Any]:
        return {
            "transactionalId": self.transactional_id,
            "producerId": self.producer_id,
            "producerEpoch": self.epoch,
            **fields,
        }

    def add(self, step: str, version: int, topics: dict[str, list[int]], **fields: Any) -> Any:
        """AddPartitionsToTxn in the form of clients. `fields` replace those of `ids`."""
        ids = self.ids(**fields)
        listed = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        request = {
            "v3AndBelowTransactionalId": ids["transactionalId"],
            "v3AndBelowProducerId": ids["producerId"],
            "v3AndBelowProducerEpoch": ids["producerEpoch"],
            "v3AndBelowTopics": listed,
        }
        answer = self.s.call(step, "AddPartitionsToTxn", version, request)
        sort_results(answer["resultsByTopicV3AndBelow"])
        return answer

    def batched(self, topics: dict[str, list[int]], verify_only: bool = False, **fields: Any) -> dict[str, Any]:
        """One transaction of an AddPartitionsToTxn in the form of brokers."""
        listed = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        return self.ids(topics=listed, verifyOnly=verify_only, **fields)

    def end(self, step: str, version: int, commit: bool = True, **fields: Any) -> Any:
        """EndTxn, and the state after it, which is recorded as a step of its own."""
        answer = self.s.call(step, "EndTxn", version, self.ids(committed=commit, **fields))
        settled(self.s, self.transactional_id)
        if version >= 5 and answer["errorCode"] == 0:
            if answer["producerEpoch"] != self.epoch:
                self.sequences.clear()
            self.producer_id, self.epoch = answer["producerId"], answer["producerEpoch"]
        return answer

    def produce(
        self, step: str, version: int, topic: str, partition: int = 0, values: int = 1, flag: int = 0x10, **fields: Any
    ) -> Any:
        """Produce of one batch, whose next sequence follows if it is accepted."""
        ids = self.ids(**fields)
        sequence = self.sequences.get((topic, partition), 0)
        records = batch_text(
            [b"x"] * values, producer_id=ids["producerId"], producer_epoch=ids["producerEpoch"],
            base_sequence=sequence, attributes=flag,
        )  # fmt: skip
        request = {**produce_request(self.s, topic, records, partition), "transactionalId": ids["transactionalId"]}
        answer = self.s.call(step, "Produce", version, request)
        part = self.s.last_step()["request"]["topicData"][0]["partitionData"][0]
        part["records"] = f"<{values} records, sequence {sequence}, epoch {ids['producerEpoch']}, flags {flag}>"
        if answer is not None and answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0:
            self.sequences[topic, partition] = sequence + values
        return answer


def batches_text(data: bytes) -> str:
    """Batches without what differs from run to run."""
    found = []
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        text = f"{header.base_offset} {header.attributes:#x} epoch {header.producer_epoch} at {header.base_sequence}"
        for one in decode_records(data, position, header, 1 << 22):
            text += f" {part_text(one.key)}={part_text(one.value)}"
        found.append(text)
        position += header.size
    return "; ".join(found)


def part_text(part: bytes | None) -> str:
    """A key or value; of a long one only its size."""
    if part is None:
        return "null"
    return bytes(part).hex() if len(part) < LONG else f"<{len(part)} bytes>"


def fetch_from(s: Session, step: str, version: int, topic: str, offset: int, isolation: int) -> None:
    """A Fetch whose answer is recorded with the batches as text."""
    answer = s.call(step, "Fetch", version, fetch_request(s, topic, offset, isolationLevel=isolation))
    for one in answer["responses"]:
        for part in one["partitions"]:
            if part["records"]:
                part["records"] = batches_text(base64.b64decode(part["records"]))


# ---- InitProducerId


def txn_init(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txi", 1, FOREVER)

    def init(step: str, version: int, transactional_id: str | None, timeout_ms: int = 60000, **fields: Any) -> Any:
        request = {"transactionalId": transactional_id, "transactionTimeoutMs": timeout_ms, **fields}
        return s.call(step, "InitProducerId", version, request)

    for version in range(6):
        name = f"txi-{version}"
        init("fresh", version, name)
        init("again", version, name)
        init("timeout 0", version, name, 0)
        init("a negative timeout", version, name, -1)
        init("the largest timeout", version, name, 900_000)
        init("a timeout too large", version, name, 900_001)
        init("a fresh one with a timeout too large", version, name + "-large", 900_001)
        init("an empty id", version, "")
        ongoing = Producer(s, name + "-open")
        ongoing.add("a partition", 3, {"txi": [0]})
        init("while a transaction is open", version, name + "-open")
        settled(s, name + "-open")
        init("after it", version, name + "-open")
        if version >= 3:
            init_with_ids(s, version)


def init_with_ids(s: Session, version: int) -> None:
    """KIP-360: the request names the producer id and epoch that it goes on from."""
    name = f"txi-ids-{version}"

    def init(step: str, producer_id: int, epoch: int, transactional_id: str = name) -> Any:
        request = {"transactionalId": transactional_id, "transactionTimeoutMs": 60000}
        return s.call(step, "InitProducerId", version, {**request, "producerId": producer_id, "producerEpoch": epoch})

    one = Producer(s, name)
    pid = one.producer_id
    init("the current epoch", pid, 0)
    init("the same again, as a retry", pid, 0)
    init("the current epoch", pid, 1)
    init("an epoch before the last", pid, 0)
    init("a later epoch", pid, 9)
    init("another producer id", pid + 100_000, 2)
    init("an id alone", pid, -1)
    init("an epoch alone", -1, 2)
    init("fresh, with an id and epoch", pid, 2, name + "-fresh")
    one.renew()
    one.add("a partition", 3, {"txi": [0]})
    init("an old epoch while a transaction is open", pid, 0)
    settled(s, name)
    init("the epoch before the abort", pid, one.epoch)
    init("the epoch of the abort", pid, one.epoch + 1)
    one.renew()
    one.produce("implicit", 12, "txi")
    before = one.epoch
    one.end("commit", 5)
    init("the epoch before the commit", pid, before)
    init("the epoch after the commit", pid, before + 1)


# ---- adding


def txn_add_partitions(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txa", 3, FOREVER)
    for version in range(4):
        one = Producer(s, f"txa-{version}")
        one.add("no topics", version, {})
        one.add("one", version, {"txa": [0]})
        one.add("the same", version, {"txa": [0]})
        one.add("more", version, {"txa": [0, 1, 2]})
        one.add("an unknown topic", version, {"txa-nowhere": [0]})
        one.add("an unknown partition", version, {"txa": [9]})
        one.add("good and unknown ones", version, {"txa": [0, 9], "txa-nowhere": [1]})
        one.add("the offsets topic", version, {"__consumer_offsets": [0]})
        one.add("the topic of transactions", version, {"__transaction_state": [0], "txa": [1]})
        one.add("a later epoch", version, {"txa": [0]}, producerEpoch=5)
        one.add("a negative epoch", version, {"txa": [0]}, producerEpoch=-1)
        one.add("another producer id", version, {"txa": [0]}, producerId=one.producer_id + 100_000)
        one.add("an unknown id", version, {"txa": [0]}, transactionalId=f"txa-nobody-{version}")
        one.add("an empty id", version, {"txa": [0]}, transactionalId="")
        old = one.epoch
        one.renew()
        one.add("an old epoch", version, {"txa": [0]}, producerEpoch=old)


def txn_add_partitions_batched(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txb", 3, FOREVER)
    for version in range(4, 6):
        one, two = Producer(s, f"txb-one-{version}"), Producer(s, f"txb-two-{version}")

        def ask(step: str, *transactions: dict[str, Any], version: int = version) -> None:
            answer = s.call(step, "AddPartitionsToTxn", version, {"transactions": list(transactions)})
            for one in answer["resultsByTransaction"]:
                sort_results(one["topicResults"])

        ask("verify nothing there", one.batched({"txb": [0, 1]}, True))
        ask("add", one.batched({"txb": [0]}))
        ask("verify one of two", one.batched({"txb": [0, 1]}, True))
        ask("two transactions", one.batched({"txb": [1]}), two.batched({"txb": [0, 2]}))
        ask("verify two", one.batched({"txb": [1]}, True), two.batched({"txb": [1, 2]}, True))
        ask("an unknown topic", one.batched({"txb-nowhere": [0], "txb": [0]}), two.batched({"txb": [1]}))
        ask("an unknown partition", one.batched({"txb": [0, 9]}, True))
        ask("a later epoch", one.batched({"txb": [0]}, producerEpoch=7), two.batched({"txb": [0]}, True))
        ask("verify a later epoch", one.batched({"txb": [0]}, True, producerEpoch=7))
        ask("another producer id", one.batched({"txb": [0]}, producerId=one.producer_id + 100_000))
        ask("verify an unknown id", one.batched({"txb": [0]}, True, transactionalId="txb-nobody"))
        ask("an empty id", one.batched({"txb": [0]}, transactionalId=""))
        one.end("commit", 5)
        ask("verify after the commit", one.batched({"txb": [0]}, True))


def txn_add_offsets(s: Session) -> None:
    wait_for_transactions(s)
    for version in range(5):
        one = Producer(s, f"txo-{version}")

        def add(step: str, group: str = "txo", one: Producer = one, version: int = version, **fields: Any) -> None:
            s.call(step, "AddOffsetsToTxn", version, one.ids(groupId=group, **fields))

        add("a group")
        add("the same")
        add("an empty group id", "")
        add("a later epoch", producerEpoch=4)
        add("another producer id", producerId=one.producer_id + 100_000)
        add("an unknown id", transactionalId="txo-nobody")
        add("an empty id", transactionalId="")
        one.end("commit without offsets", 3)
        add("after the end")
        one.end("abort", 3, False)


# ---- offsets


def commit(one: Producer, step: str, version: int, group: str, offset: int = 7, **fields: Any) -> Any:
    """TxnOffsetCommit of one partition."""
    metadata = fields.pop("committedMetadata", "note")
    part = {"partitionIndex": fields.pop("partition", 0), "committedOffset": offset, "committedMetadata": metadata}
    topics = [{"name": fields.pop("topic", "txc"), "partitions": [part]}]
    defaults = {"groupId": group, "generationId": -1, "memberId": "", "groupInstanceId": None, "topics": topics}
    return one.s.call(step, "TxnOffsetCommit", version, {**one.ids(), **defaults, **fields})


def fetched_offset(s: Session, step: str, group: str, stable: bool) -> None:
    topics = [{"name": "txc", "partitionIndexes": [0]}]
    request = {"groups": [{"groupId": group, "topics": topics}], "requireStable": stable}
    s.call(step, "OffsetFetch", 8, request)


def txn_offset_commit(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txc", 2, FOREVER)
    for version in versions("TxnOffsetCommit"):
        one = Producer(s, f"txc-{version}")
        group = f"txc-simple-{version}"
        commit(one, "an unknown id", version, group, transactionalId="txc-nobody")
        if version < 5:
            commit(one, "before AddOffsetsToTxn", version, group)
            s.call("add the group", "AddOffsetsToTxn", 3, one.ids(groupId=group))
        commit(one, "a group that is not there", version, group)
        fetched_offset(s, "a pending offset", group, False)
        fetched_offset(s, "a pending offset, stable", group, True)
        commit(one, "an unknown topic", version, group, topic="txc-nowhere")
        commit(one, "an unknown partition", version, group, partition=9)
        commit(one, "metadata too large", version, group, committedMetadata="x" * 5000)
        commit(one, "a later epoch", version, group, producerEpoch=9)
        commit(one, "another producer id", version, group, producerId=one.producer_id + 100_000)
        commit(one, "an unknown id in the transaction of another", version, group, transactionalId="txc-nobody")
        commit(one, "an empty group id", version, "")
        if version >= 3:
            commit(one, "a generation of no group", version, f"{group}-new", generationId=3, memberId="who")
            commit(one, "a member in a simple group", version, group, generationId=1, memberId="who")
        one.end("commit", 5 if version >= 5 else 3)
        fetched_offset(s, "after the commit", group, True)
        commit(one, "after the end", version, group, 9)
        fetched_offset(s, "after that", group, False)
        one.end("abort", 5 if version >= 5 else 3, False)
        fetched_offset(s, "after the abort", group, True)


def txn_offset_commit_members(s: Session) -> None:
    """Who may commit for a group with members."""
    wait_for_transactions(s)
    with s.unrecorded():
        create_topic(s, "txc", 2, FOREVER)
    for version in versions("TxnOffsetCommit"):
        group = f"txm-{version}"
        member, generation = stable_member(s, group, on=f"member {version}")
        one = Producer(s, f"txm-{version}")
        s.call("add the group", "AddOffsetsToTxn", 3, one.ids(groupId=group))
        commit(one, "without membership", version, group)
        if version >= 3:
            commit(one, "the member", version, group, 8, generationId=generation, memberId=member)
            commit(one, "an old generation", version, group, generationId=generation - 1, memberId=member)
            commit(one, "a later generation", version, group, generationId=generation + 1, memberId=member)
            commit(one, "an unknown member", version, group, generationId=generation, memberId="who")
            commit(one, "a member without generation", version, group, memberId=member)
            commit(one, "a generation without member", version, group, generationId=generation)
            fields: dict[str, Any] = {"generationId": generation, "memberId": member, "groupInstanceId": "nobody"}
            commit(one, "an unknown instance", version, group, **fields)
        s.call("delete the group", "DeleteGroups", 2, {"groupsNames": [group]})
        one.end("commit", 3)
        fetched_offset(s, "after the commit", group, True)
        s.call("leave", "LeaveGroup", 2, {"groupId": group, "memberId": member})


def txn_offset_commit_consumers(s: Session) -> None:
    """The same for a consumer group, whose members have epochs."""
    wait_for_transactions(s)
    with s.unrecorded():
        create_topic(s, "txc", 2, FOREVER)
    for version in versions("TxnOffsetCommit"):
        group, member = f"txg-{version}", f"txg-member-{version}"
        request = {
            "groupId": group, "memberId": member, "memberEpoch": 0, "rebalanceTimeoutMs": 60000,
            "subscribedTopicNames": ["txc"], "topicPartitions": [],
        }  # fmt: skip
        epoch = s.call("join", "ConsumerGroupHeartbeat", 1, request)["memberEpoch"]
        one = Producer(s, f"txg-{version}")
        s.call("add the group", "AddOffsetsToTxn", 3, one.ids(groupId=group))
        commit(one, "without membership", version, group)
        if version >= 3:
            commit(one, "the member", version, group, 8, generationId=epoch, memberId=member)
            commit(one, "an old epoch", version, group, generationId=epoch - 1, memberId=member)
            commit(one, "a later epoch", version, group, generationId=epoch + 1, memberId=member)
            commit(one, "an unknown member", version, group, generationId=epoch, memberId="who")
            commit(one, "a member without epoch", version, group, memberId=member)
            commit(one, "an epoch without member", version, group, generationId=epoch)
        one.end("commit", 3)
        fetched_offset(s, "after the commit", group, True)
        leaving = {"groupId": group, "memberId": member, "memberEpoch": -1}
        s.call("leave", "ConsumerGroupHeartbeat", 1, leaving)


# ---- the end


def txn_end(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txe", 2, FOREVER)
    for version in versions("EndTxn"):
        for commit_first in (True, False):
            one = Producer(s, f"txe-{version}-{commit_first}")
            word = "commit" if commit_first else "abort"
            one.end(f"{word} of nothing", version, commit_first)
            one.add("a partition", 3, {"txe": [0, 1]})
            one.end("a later epoch", version, commit_first, producerEpoch=one.epoch + 5)
            one.end("a negative epoch", version, commit_first, producerEpoch=-1)
            one.end("another producer id", version, commit_first, producerId=one.producer_id + 100_000)
            one.end("an unknown id", version, commit_first, transactionalId="txe-nobody")
            one.end("an empty id", version, commit_first, transactionalId="")
            before = one.epoch
            one.end(word, version, commit_first)
            one.end("the same again", version, commit_first, producerEpoch=before)
            one.end("the other decision", version, not commit_first, producerEpoch=before)
            one.end("the same with the epoch after it", version, commit_first)
            one.end("the other with the epoch after it", version, not commit_first)
            one.renew()
            one.end("the old epoch", version, commit_first, producerEpoch=before)


def expired(s: Session, transactional_id: str) -> None:
    """Waits, unrecorded, until the transaction was aborted. A broker looks for such ones every ten seconds."""
    for _ in range(400):
        if settled(s, transactional_id) == "CompleteAbort":
            return
        time.sleep(0.05)
    raise TimeoutError(f"the transaction of {transactional_id} does not time out")


def txn_timeout(s: Session) -> None:
    """What a producer gets that comes back after its transaction was aborted."""
    wait_for_transactions(s)
    create_topic(s, "txt", 1, FOREVER)
    late: list[tuple[Producer, int]] = []
    for name in ("end", "produce", "add", "offsets", "init"):
        for version in (3, 5):
            one = Producer(s, f"txt-{name}-{version}", 500)
            if version == 5:
                one.produce("implicit", 12, "txt")
            else:
                one.add("a partition", 3, {"txt": [0]})
            late.append((one, version))
    for one, version in late:
        expired(s, one.transactional_id)
        s.call("the state", "DescribeTransactions", 0, {"transactionalIds": [one.transactional_id]})
        if "end" in one.transactional_id:
            one.end("a late commit", version)
            one.end("a late abort", version, False)
        elif "produce" in one.transactional_id:
            one.produce("a late batch", 12 if version == 5 else 11, "txt")
        elif "add" in one.transactional_id:
            one.add("a late partition", 3, {"txt": [0]})
        elif "offsets" in one.transactional_id:
            commit(one, "a late offset", version, "txt", topic="txt")
        else:
            ids = {"producerId": one.producer_id, "producerEpoch": one.epoch}
            request = {"transactionalId": one.transactional_id, "transactionTimeoutMs": 500, **ids}
            s.call("goes on with its epoch", "InitProducerId", 5, request)
            s.call("once more", "InitProducerId", 5, request)
        one.renew()
        s.call("a new producer", "DescribeTransactions", 0, {"transactionalIds": [one.transactional_id]})


# ---- writing and reading


def txn_produce(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txp", 2, FOREVER)
    for version in range(9, 14):
        one = Producer(s, f"txp-{version}")
        is_implicit = version >= 12
        one.produce("an unknown id", version, "txp", transactionalId="txp-nobody")
        one.produce("not added", version, "txp")
        if not is_implicit:
            one.add("a partition", 3, {"txp": [0]})
        one.produce("in the transaction", version, "txp", values=2)
        one.produce("another partition", version, "txp", 1)
        one.produce("without the flag", version, "txp", flag=0)
        one.produce("without the id", version, "txp", transactionalId=None)
        one.produce("a later epoch", version, "txp", producerEpoch=one.epoch + 3)
        one.produce("another producer id", version, "txp", producerId=one.producer_id + 100_000)
        one.produce("an unknown partition", version, "txp", 9)
        before = one.epoch
        one.end("commit", 5 if is_implicit else 3)
        one.produce("after the end", version, "txp")
        if is_implicit:
            one.produce("the epoch before", version, "txp", producerEpoch=before)
            one.produce("the new epoch", version, "txp")
        one.renew()
        one.produce("an old epoch", version, "txp", producerEpoch=before)


def txn_read(s: Session) -> None:
    """Fetch and ListOffsets by isolation level, with open, committed and aborted transactions."""
    wait_for_transactions(s)
    create_topic(s, "txr", 1, FOREVER)
    one, two = Producer(s, "txr-one"), Producer(s, "txr-two")
    for producer in (one, two):
        producer.add("a partition", 3, {"txr": [0]})
    one.produce("one", 11, "txr")
    two.produce("two", 11, "txr")
    read_all(s, "both open")
    two.end("abort two", 3, False)
    read_all(s, "one open")
    one.end("commit one", 3)
    read_all(s, "none open")
    one.produce("again, implicit", 12, "txr", values=3)
    one.end("abort with version 2", 5, False)
    read_all(s, "an abort of version 2")
    one.produce("and again", 12, "txr")
    one.end("commit with version 2", 5)
    read_all(s, "a commit of version 2")
    one.produce("open at the end", 12, "txr")
    read_all(s, "open at the end")
    one.end("abort", 5, False)


def read_all(s: Session, when: str) -> None:
    for version in (4, 11, 12, 13):
        for isolation in (0, 1):
            for offset in (0, 3, 5):
                fetch_from(s, f"{when}: from {offset}, isolation {isolation}", version, "txr", offset, isolation)
    for isolation in (0, 1):
        for timestamp in (-1, -2, -3, 0):
            request = {**list_request(s, "txr", timestamp), "isolationLevel": isolation}
            s.call(f"{when}: time {timestamp}, isolation {isolation}", "ListOffsets", 7, request)


# ---- looking at transactions


def txn_describe(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txd", 2, FOREVER)
    one = Producer(s, "txd-one")

    def describe(step: str, *ids: str) -> None:
        answer = s.call(step, "DescribeTransactions", 0, {"transactionalIds": list(ids)})
        for state in answer["transactionStates"]:
            for topic in state["topics"]:
                topic["partitions"].sort()

    def producers(step: str, topic: str = "txd", partitions: tuple[int, ...] = (0, 1)) -> None:
        s.call(step, "DescribeProducers", 0, {"topics": [{"name": topic, "partitionIndexes": list(partitions)}]})

    describe("nothing")
    describe("a new one, an unknown and an empty one", "txd-one", "txd-nobody", "")
    describe("the same twice", "txd-one", "txd-one")
    producers("none")
    one.add("partitions", 3, {"txd": [1, 0]})
    describe("an open one", "txd-one")
    one.produce("a batch", 11, "txd")
    producers("in an open transaction")
    one.end("commit", 3)
    describe("a committed one", "txd-one")
    producers("after the commit")
    one.produce("with version 2", 12, "txd", 1, values=2)
    describe("an open one of version 2", "txd-one")
    one.end("abort", 5, False)
    describe("an aborted one", "txd-one")
    producers("after the abort")
    producers("unknown partitions", partitions=(9, -1))
    producers("an unknown topic", "txd-nowhere")
    producers("no partitions", partitions=())


def txn_list(s: Session) -> None:
    wait_for_transactions(s)
    create_topic(s, "txl", 1, FOREVER)
    new, going, done = Producer(s, "txl-new"), Producer(s, "txl-open"), Producer(s, "txl-done")
    for producer in (going, done):
        producer.add("a partition", 3, {"txl": [0]})
    done.end("commit", 3)

    def listing(step: str, version: int, **fields: Any) -> None:
        answer = s.call(step, "ListTransactions", version, fields)
        # Those of other scripts are there as well, in the order of a hash map.
        mine = [one for one in answer["transactionStates"] if one["transactionalId"].startswith("txl-")]
        answer["transactionStates"] = sorted(mine, key=lambda one: str(one["transactionalId"]))

    for version in versions("ListTransactions"):
        listing("all", version)
        listing("open ones", version, stateFilters=["Ongoing"])
        listing("two states", version, stateFilters=["Empty", "CompleteCommit"])
        listing("an unknown state", version, stateFilters=["Nonsense", "Empty"])
        listing("a state in lower case", version, stateFilters=["ongoing"])
        listing("states of no transaction", version, stateFilters=["Dead", "PrepareEpochFence", ""])
        listing("by producer", version, producerIdFilters=[going.producer_id, new.producer_id])
        listing("by producer and state", version, producerIdFilters=[going.producer_id], stateFilters=["Empty"])
        listing("by an unknown producer", version, producerIdFilters=[999_999])
        if version >= 1:
            for duration in (-2, -1, 0, 3_600_000):
                listing(f"longer than {duration}", version, durationFilter=duration)
        if version >= 2:
            for pattern in ("txl-.*", "txl", "", "txl-(new|open)", "(?i)TXL-NEW", "[", "a{1001}"):
                listing(f"pattern {pattern!r}", version, transactionalIdPattern=pattern)


def txn_markers(s: Session) -> None:
    """Markers that a client sends itself, as the tools do for hanging transactions."""
    wait_for_transactions(s)
    create_topic(s, "txw", 2, FOREVER)
    one = Producer(s, "txw-one")
    one.renew()
    one.produce("a batch", 12, "txw")

    def markers(step: str, version: int, topics: dict[str, list[int]], **fields: Any) -> None:
        listed = [{"name": name, "partitionIndexes": partitions} for name, partitions in topics.items()]
        marker = {
            "producerId": one.producer_id, "producerEpoch": one.epoch, "transactionResult": False,
            "coordinatorEpoch": 0, "topics": listed, **fields,
        }  # fmt: skip
        answer = s.call(step, "WriteTxnMarkers", version, {"markers": [marker]})
        for result in answer["markers"]:
            result["topics"].sort(key=lambda topic: str(topic["name"]))

    for version in versions("WriteTxnMarkers"):
        s.call("none", "WriteTxnMarkers", version, {"markers": []})
        markers("an unknown topic", version, {"txw-nowhere": [0]})
        markers("an unknown partition", version, {"txw": [9]})
        markers("an unknown and a good one", version, {"txw": [0, 9]})
        markers("once more", version, {"txw": [0]})
        markers("an older coordinator", version, {"txw": [0]}, coordinatorEpoch=-1)
        markers("an older epoch", version, {"txw": [0]}, producerEpoch=one.epoch - 1)
        markers("of nobody", version, {"txw": [1]}, producerId=999_999)
        markers("a commit", version, {"txw": [1]}, transactionResult=True)
        fetch_from(s, "what is there", 12, "txw", 0, 1)
        s.call("the end", "ListOffsets", 7, {**list_request(s, "txw", -1), "isolationLevel": 1})
    one.end("the end of the transaction", 5)


TRANSACTION_SCRIPTS = {
    "txn_init": txn_init,
    "txn_add_partitions": txn_add_partitions,
    "txn_add_partitions_batched": txn_add_partitions_batched,
    "txn_add_offsets": txn_add_offsets,
    "txn_offset_commit": txn_offset_commit,
    "txn_offset_commit_members": txn_offset_commit_members,
    "txn_offset_commit_consumers": txn_offset_commit_consumers,
    "txn_end": txn_end,
    "txn_timeout": txn_timeout,
    "txn_produce": txn_produce,
    "txn_read": txn_read,
    "txn_describe": txn_describe,
    "txn_list": txn_list,
    "txn_markers": txn_markers,
}
