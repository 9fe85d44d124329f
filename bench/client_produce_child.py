"""One producer of a client library for `bench.client_produce`: client_produce_child CLIENT HOST PORT BYTES SECONDS

Sends records without keys as fast as the library takes them, and waits for all answers at the end. All libraries have
the same settings: acks=all, idempotence, batches of 16 KiB, a linger of 5 ms, and a buffer of 32 MiB if that can be
set. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaProducer

from kcoord.client.producer import Producer

TOPIC: Final = "client-produce"
BATCH_BYTES: Final = 16_384
BUFFER_BYTES: Final = 33_554_432
LINGER_MS: Final = 5
# The clock is read once for so many records.
STRIDE: Final = 100
FLUSH_S: Final = 60.0


async def kcoord(bootstrap: str, value: bytes, seconds: float) -> int:
    sent = 0
    async with Producer(
        bootstrap_servers=bootstrap,
        linger_ms=LINGER_MS,
        batch_bytes_max=BATCH_BYTES,
        buffer_bytes_max=BUFFER_BYTES,
    ) as producer:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(STRIDE):
                last = await producer.send_nowait(TOPIC, value)
            sent += STRIDE
        await producer.flush(FLUSH_S)
        last.result()
    return sent


async def aiokafka(bootstrap: str, value: bytes, seconds: float) -> int:
    sent = 0
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
        acks="all",
        enable_idempotence=True,
    ) as producer:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(STRIDE):
                last = await producer.send(TOPIC, value)
            sent += STRIDE
        await producer.flush()
        await last
    return sent


def kafka_python(bootstrap: str, value: bytes, seconds: float) -> int:
    sent = 0
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        acks="all",
        enable_idempotence=True,
    )
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(STRIDE):
            last = producer.send(TOPIC, value)
        sent += STRIDE
    producer.flush(FLUSH_S)
    last.get(FLUSH_S)
    producer.close()
    return sent


def confluent(bootstrap: str, value: bytes, seconds: float) -> int:
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    sent = 0
    producer = ConfluentProducer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
            "enable.idempotence": True,
        }
    )
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(STRIDE):
            while True:
                try:
                    producer.produce(TOPIC, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        sent += STRIDE
    left = producer.flush(FLUSH_S)
    if left or failures:
        raise RuntimeError(f"{left} records were not delivered; {failures[:1]}")
    return sent


def run_async(client: Callable[..., object]) -> Callable[[str, bytes, float], int]:
    return lambda bootstrap, value, seconds: asyncio.run(client(bootstrap, value, seconds))  # type: ignore[arg-type]


CLIENTS: Final[dict[str, Callable[[str, bytes, float], int]]] = {
    "kcoord": run_async(kcoord),
    "aiokafka": run_async(aiokafka),
    "kafka-python": kafka_python,
    "confluent-kafka": confluent,
}


def main() -> int:
    client, host, port, size, seconds = sys.argv[1:]
    value = b"x" * int(size)
    # The first run connects, and warms up.
    CLIENTS[client](f"{host}:{port}", value, 0.3)
    started, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    sent = CLIENTS[client](f"{host}:{port}", value, float(seconds))
    elapsed = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
    figures = {
        "records_per_s": sent / elapsed,
        "mb_s": sent * len(value) / elapsed / 1e6,
        "cpu_us": cpu_s / sent * 1e6,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
