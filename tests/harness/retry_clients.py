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

from kcoord.client import Consumer, Producer, TopicPartition
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


# --- aiokafka, and kcoord.client, which has its methods


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except AioError as e:
        raise Raised(type(e).__name__) from e
    except KafkaError as e:
        raise Raised(e.name if isinstance(e, BrokerError) else type(e).__name__) from e


class AsyncConsumer:
    def __init__(self, kind: Any, bootstrap: str, name: str, settings: dict[str, Any]) -> None:
        common: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "group_id": name,
            "client_id": name,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "retry_backoff_ms": BACKOFF_MS,
            "heartbeat_interval_ms": 100,
            "request_timeout_ms": REQUEST_MS,
            "fetch_max_wait_ms": 100,
        }
        self._consumer = kind(name, **{**common, **settings})

    async def start(self) -> None:
        with _errors():
            await self._consumer.start()

    async def commit(self) -> None:
        with _errors():
            await self._consumer.commit()

    async def close(self) -> None:
        with _errors():
            await self._consumer.stop()


class AsyncProducer:
    def __init__(self, kind: Any, partition: Any, bootstrap: str, name: str, **settings: Any) -> None:
        """`partition` is the library's class of a topic and a partition."""
        self._partition = partition
        self._producer = kind(
            bootstrap_servers=bootstrap, client_id=name, transactional_id=name, retry_backoff_ms=BACKOFF_MS,
            request_timeout_ms=REQUEST_MS, **settings,
        )  # fmt: skip

    async def start(self) -> None:
        """That of aiokafka also gets its producer id."""
        with _errors():
            await self._producer.start()

    async def begin(self) -> None:
        with _errors():
            await self._producer.begin_transaction()

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        with _errors():
            await self._producer.send_offsets_to_transaction({self._partition(topic, 0): offset}, group)

    async def commit(self) -> None:
        with _errors():
            await self._producer.commit_transaction()

    async def abort(self) -> None:
        with _errors():
            await self._producer.abort_transaction()

    async def close(self) -> None:
        with _errors():
            await self._producer.stop()


@final
class AiokafkaConsumer(AsyncConsumer):
    def __init__(self, bootstrap: str, name: str, **settings: Any) -> None:
        super().__init__(aiokafka.AIOKafkaConsumer, bootstrap, name, {"rebalance_timeout_ms": 5000, **settings})

    async def poll(self, seconds: float) -> Sequence[int]:
        with _errors():
            found = await self._consumer.getmany(timeout_ms=round(seconds * 1000), max_records=1)
        return [record.offset for records in found.values() for record in records]


@final
class AiokafkaProducer(AsyncProducer):
    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(aiokafka.AIOKafkaProducer, aiokafka.TopicPartition, bootstrap, name)

    async def init(self) -> None: ...

    async def send(self, topic: str, value: bytes) -> None:
        with _errors():
            await self._producer.send_and_wait(topic, value)

    async def abort(self) -> None:
        try:
            await super().abort()
        except AssertionError as e:
            # Its way to refuse, after an error that is fatal.
            raise Raised("AssertionError", is_over=True) from e


@final
class Aiokafka:
    def consumer(self, bootstrap: str, name: str, protocol: str) -> AiokafkaConsumer:
        assert protocol == "classic"
        return AiokafkaConsumer(bootstrap, name)

    def producer(self, bootstrap: str, name: str) -> AiokafkaProducer:
        return AiokafkaProducer(bootstrap, name)


@final
class OwnConsumer(AsyncConsumer):
    def __init__(self, bootstrap: str, name: str, protocol: str, **settings: Any) -> None:
        super().__init__(Consumer, bootstrap, name, {"group_protocol": protocol, **settings})

    async def poll(self, seconds: float) -> Sequence[int]:
        with _errors():
            return [record.offset for record in await self._consumer.poll(seconds, 1)]


@final
class OwnProducer(AsyncProducer):
    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(Producer, TopicPartition, bootstrap, name, linger_ms=0)

    async def init(self) -> None:
        with _errors():
            await self._producer.init_transactions()

    async def send(self, topic: str, value: bytes) -> None:
        with _errors():
            await self._producer.send(topic, value)


@final
class Own:
    def consumer(self, bootstrap: str, name: str, protocol: str) -> OwnConsumer:
        return OwnConsumer(bootstrap, name, protocol)

    def producer(self, bootstrap: str, name: str) -> OwnProducer:
        return OwnProducer(bootstrap, name)


CLIENTS: Final[dict[str, Client]] = {"librdkafka": Confluent(), "aiokafka": Aiokafka(), "kcoord": Own()}
