"""Sends one record each INTERVAL seconds, COUNT of them (0: until stopped).

BOOTSTRAP, TOPIC, INTERVAL and COUNT come from the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal

from aiokafka import AIOKafkaProducer


async def main() -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    topic = os.environ.get("TOPIC", "orders")
    interval = float(os.environ.get("INTERVAL", "1"))
    count = int(os.environ.get("COUNT", "0"))
    bootstrap = os.environ.get("BOOTSTRAP", "127.0.0.1:9092")
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        number = 0
        while not stop.is_set() and (not count or number < count):
            key = f"customer-{number % 7}".encode()
            sent = await producer.send_and_wait(topic, f"order {number}".encode(), key=key)
            print(f"sent order {number} to {topic}-{sent.partition} at offset {sent.offset}", flush=True)
            number += 1
            try:
                await asyncio.wait_for(stop.wait(), interval)
            except TimeoutError:
                continue


if __name__ == "__main__":
    asyncio.run(main())
