"""Reads TOPIC as a member of GROUP and commits after every batch; stops after COUNT records (0: never).

BOOTSTRAP, TOPIC, GROUP and COUNT come from the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal

from aiokafka import AIOKafkaConsumer


async def main() -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    topic = os.environ.get("TOPIC", "orders")
    count = int(os.environ.get("COUNT", "0"))
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=os.environ.get("BOOTSTRAP", "127.0.0.1:9092"),
        group_id=os.environ.get("GROUP", "billing"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    seen = 0
    async with consumer:
        while not stop.is_set() and (not count or seen < count):
            batches = await consumer.getmany(timeout_ms=500)
            for records in batches.values():
                for record in records:
                    text = (record.value or b"").decode()
                    print(f"{record.topic}-{record.partition} offset {record.offset}: {text}", flush=True)
                seen += len(records)
            if batches:
                await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main())
