"""A client of kill_copies.py: copies a topic with transactions, exactly once, for ever.

    python -m tests.crash.copy_client LIBRARY BOOTSTRAP

Each transaction reads some records of SOURCE, writes their copies to TARGET and commits the offsets of the group. Some
transactions are aborted, with records that nobody may read. After an error that the library does not hide, the client
begins again with the same transactional id, from the committed offsets. On standard output: `copied OFFSET`, the offset
that a transaction has committed, when the library says so; `failed ERROR`.
"""

from __future__ import annotations

import asyncio
import sys

ABORTS_EVERY = 5
BATCH = 10
TIMEOUT_S = 30.0
POLL_S = 0.2


def names(library: str) -> tuple[str, str]:
    """Source and target; the group and the transactional id have the name of the target."""
    return f"source-{library}", f"copies-{library}"


def report(*words: object) -> None:
    print(*words, flush=True)


def copy_confluent(bootstrap: str, source: str, target: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    quick = {
        "bootstrap.servers": bootstrap, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": 0,
        "error_cb": lambda error: None,
    }  # fmt: skip
    reader = Consumer({**quick, "group.id": target, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    producer = Producer({**quick, "transactional.id": target, "linger.ms": 0})
    try:
        producer.init_transactions(TIMEOUT_S)
        stored = reader.committed([TopicPartition(source, 0)], TIMEOUT_S)[0].offset
        position = max(stored, 0)
        reader.assign([TopicPartition(source, 0, position)])
        number = 0
        while True:
            messages = [one for one in reader.consume(BATCH, POLL_S) if one.error() is None]
            if not messages:
                continue
            if number % ABORTS_EVERY == 0:
                producer.begin_transaction()
                producer.produce(target, b"aborted", partition=0)
                offsets = [TopicPartition(source, 0, position + 1000)]
                producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT_S)
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
            number += 1
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), partition=0)
            position = (messages[-1].offset() or 0) + 1
            offsets = [TopicPartition(source, 0, position)]
            producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
            report("copied", position)
    finally:
        reader.close()


async def copy_aiokafka(bootstrap: str, source: str, target: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    tp = TopicPartition(source, 0)
    reader = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=target, enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=target, request_timeout_ms=2000)
    try:
        await reader.start()
        await producer.start()
        reader.assign([tp])
        position = await reader.committed(tp) or 0
        reader.seek(tp, position)
        number = 0
        while True:
            messages = (await reader.getmany(tp, timeout_ms=200, max_records=BATCH)).get(tp, [])
            if not messages:
                continue
            if number % ABORTS_EVERY == 0:
                await producer.begin_transaction()
                await producer.send_and_wait(target, b"aborted", partition=0)
                await producer.send_offsets_to_transaction({tp: position + 1000}, target)
                await producer.abort_transaction()
            number += 1
            await producer.begin_transaction()
            sent = [await producer.send(target, message.value, partition=0) for message in messages]
            await asyncio.gather(*sent)
            position = messages[-1].offset + 1
            await producer.send_offsets_to_transaction({tp: position}, target)
            await producer.commit_transaction()
            report("copied", position)
    finally:
        # Without these the next client would be a second one in the same process.
        for one in (producer, reader):
            try:
                await asyncio.wait_for(one.stop(), TIMEOUT_S)
            except Exception as error:
                report("failed", type(error).__name__)


def main() -> None:
    library, bootstrap = sys.argv[1:]
    source, target = names(library)
    while True:
        try:
            if library == "aiokafka":
                asyncio.run(copy_aiokafka(bootstrap, source, target))
            else:
                copy_confluent(bootstrap, source, target)
        except Exception as error:
            report("failed", type(error).__name__, str(error)[:200].replace("\n", " "))


if __name__ == "__main__":
    main()
