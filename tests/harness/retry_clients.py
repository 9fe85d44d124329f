"""The clients of tests/harness/retries.py that run in this process: librdkafka, aiokafka and the project's own.

Their backoffs are short, so that a retry does not take long; all else that matters here is as by default. `settings` of a
consumer are in the client's own words, and replace those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar, final

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaException

from kcoord.client import Consumer, Producer
from kcoord.client.errors import BrokerError, KafkaError
from tests.harness.retries import Client, Raised

T = TypeVar("T")

BACKOFF_MS: Final = 20
REQUEST_MS: Final = 1500
# For what may be repeated many times.
API_S: Final = 20.0
THREADS: Final = ThreadPoolExecutor(64, "librdkafka")


# --- librdkafka


LIBRDKAFKA: Final[dict[str, Any]] = {
    # See librdkafka's issue 5511.
    "metadata.recovery.strategy": "none",
    "retry.backoff.ms": BACKOFF_MS,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "socket.timeout.ms": REQUEST_MS,
    "log_level": 0,
}


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(THREADS, work)
    except KafkaException as e:
        raise _librdkafka_error(e.args[0]) from e


def _librdkafka_error(error: confluent_kafka.KafkaError) -> Raised:
    return Raised(error.name(), error.txn_requires_abort(), error.fatal())


@final
class ConfluentConsumer:
    def __init__(self, bootstrap: str, name: str, protocol: str, **settings: Any) -> None:
        self._name = name
        self._settings: dict[str, Any] = {
            **LIBRDKAFKA,
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "coordinator.query.interval.ms": 1000,
        }
        if protocol == "classic":
            self._settings["heartbeat.interval.ms"] = 100
        self._settings.update(settings)
        self._consumer: confluent_kafka.Consumer | None = None

    async def start(self) -> None:
        def work() -> confluent_kafka.Consumer:
            consumer = confluent_kafka.Consumer(self._settings)
            consumer.subscribe([self._name])
            return consumer

        self._consumer = await _in_thread(work)

    async def poll(self, seconds: float) -> Sequence[int]:
        assert self._consumer is not None
        consumer = self._consumer
        message = await _in_thread(lambda: consumer.poll(seconds))
        if message is None:
            return []
        error = message.error()
        if error is not None:
            raise _librdkafka_error(error)
        offset = message.offset()
        assert offset is not None
        return [offset]

    async def commit(self) -> None:
        assert self._consumer is not None
        consumer = self._consumer
        try:
            await _in_thread(lambda: consumer.commit(asynchronous=False))
        except Raised as error:
            # Nothing to commit: it has joined again, and has read nothing yet.
            if error.name != "_NO_OFFSET":
                raise

    async def close(self) -> None:
        if self._consumer is not None:
            await _in_thread(self._consumer.close)


@final
class ConfluentProducer:
    def __init__(self, bootstrap: str, name: str) -> None:
        common = {**LIBRDKAFKA, "bootstrap.servers": bootstrap, "client.id": name}
        self._settings = {**common, "transactional.id": name, "linger.ms": 0}
        self._group_settings = {**common, "group.id": name}
        self._producer: confluent_kafka.Producer | None = None

    async def start(self) -> None:
        self._producer = await _in_thread(lambda: confluent_kafka.Producer(self._settings))

    async def init(self) -> None:
        producer = self._running()
        await _in_thread(lambda: producer.init_transactions(API_S))

    async def begin(self) -> None:
        await _in_thread(self._running().begin_transaction)

    async def send(self, topic: str, value: bytes) -> None:
        producer = self._running()

        def work() -> None:
            producer.produce(topic, value)
            producer.flush(API_S)

        await _in_thread(work)

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        producer = self._running()

        def work() -> None:
            consumer = confluent_kafka.Consumer(self._group_settings)
            positions = [confluent_kafka.TopicPartition(topic, 0, offset)]
            try:
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), API_S)
            finally:
                consumer.close()

        await _in_thread(work)

    async def commit(self) -> None:
        producer = self._running()
        await _in_thread(lambda: producer.commit_transaction(API_S))

    async def abort(self) -> None:
        producer = self._running()
        await _in_thread(lambda: producer.abort_transaction(API_S))

    async def close(self) -> None:
        self._producer = None

    def _running(self) -> confluent_kafka.Producer:
        assert self._producer is not None
        return self._producer


@final
class Confluent:
    def consumer(self, bootstrap: str, name: str, protocol: str) -> ConfluentConsumer:
        return ConfluentConsumer(bootstrap, name, protocol)

    def producer(self, bootstrap: str, name: str) -> ConfluentProducer:
        return ConfluentProducer(bootstrap, name)


# --- aiokafka


@contextmanager
def _aio_errors() -> Iterator[None]:
    try:
        yield
    except AioError as e:
        raise Raised(type(e).__name__) from e


@final
class AiokafkaConsumer:
    def __init__(self, bootstrap: str, name: str, **settings: Any) -> None:
        own = {
            "bootstrap_servers": bootstrap,
            "group_id": name,
            "client_id": name,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "retry_backoff_ms": BACKOFF_MS,
            "heartbeat_interval_ms": 100,
            "request_timeout_ms": REQUEST_MS,
            "fetch_max_wait_ms": 100,
            "rebalance_timeout_ms": 5000,
        }
        self._consumer = aiokafka.AIOKafkaConsumer(name, **{**own, **settings})

    async def start(self) -> None:
        with _aio_errors():
            await self._consumer.start()

    async def poll(self, seconds: float) -> Sequence[int]:
        with _aio_errors():
            found = await self._consumer.getmany(timeout_ms=round(seconds * 1000), max_records=1)
        return [record.offset for records in found.values() for record in records]

    async def commit(self) -> None:
        with _aio_errors():
            await self._consumer.commit()

    async def close(self) -> None:
        with _aio_errors():
            await self._consumer.stop()


@final
class AiokafkaProducer:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, client_id=name, transactional_id=name, retry_backoff_ms=BACKOFF_MS,
            request_timeout_ms=REQUEST_MS,
        )  # fmt: skip

    async def start(self) -> None:
        """It also gets its producer id."""
        with _aio_errors():
            await self._producer.start()

    async def init(self) -> None: ...

    async def begin(self) -> None:
        with _aio_errors():
            await self._producer.begin_transaction()

    async def send(self, topic: str, value: bytes) -> None:
        with _aio_errors():
            await self._producer.send_and_wait(topic, value)

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        with _aio_errors():
            await self._producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): offset}, group)

    async def commit(self) -> None:
        with _aio_errors():
            await self._producer.commit_transaction()

    async def abort(self) -> None:
        try:
            with _aio_errors():
                await self._producer.abort_transaction()
        except AssertionError as e:
            # Its way to refuse, after an error that is fatal.
            raise Raised("AssertionError", is_over=True) from e

    async def close(self) -> None:
        with _aio_errors():
            await self._producer.stop()


@final
class Aiokafka:
    def consumer(self, bootstrap: str, name: str, protocol: str) -> AiokafkaConsumer:
        assert protocol == "classic"
        return AiokafkaConsumer(bootstrap, name)

    def producer(self, bootstrap: str, name: str) -> AiokafkaProducer:
        return AiokafkaProducer(bootstrap, name)


# --- kcoord.client


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as e:
        raise Raised(e.name if isinstance(e, BrokerError) else type(e).__name__) from e


@final
class OwnConsumer:
    def __init__(self, bootstrap: str, name: str, protocol: str, **settings: Any) -> None:
        own: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": name,
            "client_id": name,
            "group_protocol": protocol,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "retry_backoff_ms": BACKOFF_MS,
            "heartbeat_interval_ms": 100,
            "request_timeout_ms": REQUEST_MS,
            "fetch_max_wait_ms": 100,
        }
        self._consumer = Consumer(name, **{**own, **settings})

    async def start(self) -> None:
        with _own_errors():
            await self._consumer.start()

    async def poll(self, seconds: float) -> Sequence[int]:
        with _own_errors():
            return [record.offset for record in await self._consumer.poll(seconds, 1)]

    async def commit(self) -> None:
        with _own_errors():
            await self._consumer.commit()

    async def close(self) -> None:
        with _own_errors():
            await self._consumer.stop()


@final
class OwnProducer:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = Producer(
            bootstrap_servers=bootstrap, client_id=name, transactional_id=name, retry_backoff_ms=BACKOFF_MS,
            request_timeout_ms=REQUEST_MS, linger_ms=0,
        )  # fmt: skip

    async def start(self) -> None:
        with _own_errors():
            await self._producer.start()

    async def init(self) -> None:
        with _own_errors():
            await self._producer.init_transactions()

    async def begin(self) -> None:
        with _own_errors():
            await self._producer.begin_transaction()

    async def send(self, topic: str, value: bytes) -> None:
        with _own_errors():
            await self._producer.send(topic, value)

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        with _own_errors():
            await self._producer.send_offsets_to_transaction({_partition(topic): offset}, group)

    async def commit(self) -> None:
        with _own_errors():
            await self._producer.commit_transaction()

    async def abort(self) -> None:
        with _own_errors():
            await self._producer.abort_transaction()

    async def close(self) -> None:
        with _own_errors():
            await self._producer.stop()


def _partition(topic: str) -> Any:
    from kcoord.client import TopicPartition

    return TopicPartition(topic, 0)


@final
class Own:
    def consumer(self, bootstrap: str, name: str, protocol: str) -> OwnConsumer:
        return OwnConsumer(bootstrap, name, protocol)

    def producer(self, bootstrap: str, name: str) -> OwnProducer:
        return OwnProducer(bootstrap, name)


CLIENTS: Final[dict[str, Client]] = {"librdkafka": Confluent(), "aiokafka": Aiokafka(), "kcoord": Own()}
