"""A client of kill_copies.py: copies a topic with transactions, exactly once, for ever.

    python -m tests.crash.copy_client LIBRARY BOOTSTRAP BATCH

Each transaction reads up to BATCH records of SOURCE, writes their copies to the same partitions of TARGET, and commits
the offsets of the group. Some transactions are aborted, with records that nobody may read. After an error that the
library does not hide, the client begins again with the same transactional id, from the committed offsets. On standard
output: `copied PARTITION:OFFSET ...`, the offsets that a transaction has committed, when the library says so; `failed
ERROR`. tests/interop/java/Copier.java does the same in Java.
"""

from __future__ import annotations

import asyncio
import sys

ABORTS_EVERY = 5
PARTITIONS = 2
TIMEOUT_S = 30.0
POLL_S = 0.2
# With `rebootstrap`, its default, librdkafka 2.16 may hang in send_offsets_to_transaction after its only broker was
# down: the request waits for a coordinator that the library has discarded (issues 5511 and 5456 of librdkafka).
RECOVERY = "none"
# Offsets of aborted transactions: whoever starts from one leaves records out.
TOO_FAR = 1000


def names(library: str) -> tuple[str, str]:
    """Source and target; the group and the transactional id have the name of the target."""
    return f"source-{library}", f"copies-{library}"


def report(*words: object) -> None:
    print(*words, flush=True)


def report_copied(offsets: dict[int, int]) -> None:
    report("copied", *(f"{partition}:{offset}" for partition, offset in sorted(offsets.items())))


def copy_confluent(bootstrap: str, source: str, target: str, batch: int) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    def positions(offsets: dict[int, int], ahead: int = 0) -> list[TopicPartition]:
        return [TopicPartition(source, partition, offset + ahead) for partition, offset in offsets.items()]

    quick = {
        "bootstrap.servers": bootstrap, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": 0,
        "error_cb": lambda error: None, "metadata.recovery.strategy": RECOVERY,
    }  # fmt: skip
    reader = Consumer({**quick, "group.id": target, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    producer = Producer({**quick, "transactional.id": target, "linger.ms": 0})
    try:
        producer.init_transactions(TIMEOUT_S)
        stored = reader.committed(positions(dict.fromkeys(range(PARTITIONS), 0)), TIMEOUT_S)
        reader.assign([TopicPartition(source, one.partition, max(one.offset, 0)) for one in stored])
        number = 0
        while True:
            messages = [one for one in reader.consume(batch, POLL_S) if one.error() is None]
            if not messages:
                continue
            offsets = {one.partition() or 0: (one.offset() or 0) + 1 for one in messages}
            if number % ABORTS_EVERY == 0:
                producer.begin_transaction()
                for partition in offsets:
                    producer.produce(target, b"aborted", partition=partition)
                ahead = positions(offsets, TOO_FAR)
                producer.send_offsets_to_transaction(ahead, reader.consumer_group_metadata(), TIMEOUT_S)
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
            number += 1
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), partition=message.partition() or 0)
            producer.send_offsets_to_transaction(positions(offsets), reader.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
            report_copied(offsets)
    finally:
        reader.close()


async def copy_aiokafka(bootstrap: str, source: str, target: str, batch: int) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    partitions = [TopicPartition(source, number) for number in range(PARTITIONS)]
    reader = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=target, enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=target, request_timeout_ms=2000)
    try:
        await reader.start()
        await producer.start()
        reader.assign(partitions)
        for one in partitions:
            reader.seek(one, await reader.committed(one) or 0)
        number = 0
        while True:
            found = await reader.getmany(*partitions, timeout_ms=200, max_records=batch)
            if not found:
                continue
            offsets = {one: messages[-1].offset + 1 for one, messages in found.items()}
            if number % ABORTS_EVERY == 0:
                await producer.begin_transaction()
                for one in offsets:
                    await producer.send_and_wait(target, b"aborted", partition=one.partition)
                ahead = {one: offset + TOO_FAR for one, offset in offsets.items()}
                await producer.send_offsets_to_transaction(ahead, target)
                await producer.abort_transaction()
            number += 1
            await producer.begin_transaction()
            sent = [
                await producer.send(target, message.value, partition=one.partition)
                for one, messages in found.items()
                for message in messages
            ]  # fmt: skip
            await asyncio.gather(*sent)
            await producer.send_offsets_to_transaction(offsets, target)
            await producer.commit_transaction()
            report_copied({one.partition: offset for one, offset in offsets.items()})
    finally:
        # Without these the next client would be a second one in the same process.
        for one in (producer, reader):
            try:
                await asyncio.wait_for(one.stop(), TIMEOUT_S)
            except Exception as error:
                report("failed", type(error).__name__)


def main() -> None:
    library, bootstrap, batch = sys.argv[1:]
    source, target = names(library)
    while True:
        try:
            if library == "aiokafka":
                asyncio.run(copy_aiokafka(bootstrap, source, target, int(batch)))
            else:
                copy_confluent(bootstrap, source, target, int(batch))
        except Exception as error:
            report("failed", type(error).__name__, str(error)[:200].replace("\n", " "))


if __name__ == "__main__":
    main()
