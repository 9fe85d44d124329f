"""Whatever a broker does: each partition's records keep their order, and none is written twice."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.client.errors import KafkaError
from kcoord.client.producer import Producer, RecordMetadata
from kcoord.protocol import errors
from tests.unit.client.produce_broker import HANG_UP, WRITE_AND_HANG_UP, ProduceBroker

DEADLINE_S = 30.0
REFUSED = [
    0,
    0,
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.NOT_ENOUGH_REPLICAS,
    errors.CORRUPT_MESSAGE,
    errors.TOPIC_AUTHORIZATION_FAILED,
]
# A broker that forgets a producer after its answer was lost may write twice, and none refuses as too large what it has
# written: so a script has one or the other.
LOST = [HANG_UP, WRITE_AND_HANG_UP]
OTHERS = [errors.MESSAGE_TOO_LARGE, errors.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.UNKNOWN_PRODUCER_ID]
SCRIPTS = st.one_of(
    st.lists(st.sampled_from(REFUSED + LOST), max_size=12),
    st.lists(st.sampled_from(REFUSED + OTHERS), max_size=12),
)
# The records of each call without a pause, and after how many turns of the loop the next ones follow.
BURSTS = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 12)), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(SCRIPTS, BURSTS, st.integers(1, 5))
def test_order_and_no_duplicates(script: list[int], bursts: list[tuple[int, int]], in_flight: int) -> None:
    asyncio.run(_run(script, bursts, in_flight))


async def _run(script: list[int], bursts: list[tuple[int, int]], in_flight: int) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        ProduceBroker.run(2) as broker,
        Producer(
            bootstrap_servers=broker.bootstrap,
            batch_bytes_max=250,
            linger_ms=0,
            retry_backoff_ms=1,
            retry_backoff_max_ms=2,
            max_in_flight=in_flight,
        ) as producer,
    ):
        broker.script.extend(script)
        sent: list[asyncio.Future[RecordMetadata]] = []
        for count, turns in bursts:
            for _ in range(count):
                sent.append(await producer.send_nowait("t", b"%05d" % len(sent), partition=len(sent) % 2))
            for _ in range(turns):
                await asyncio.sleep(0)
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert producer._sender is not None
        assert producer._sender.buffer.used == 0
    logs = [[int(value) for value in log] for log in broker.logs]
    for log in logs:
        assert log == sorted(set(log))
    has_lost = not set(LOST).isdisjoint(script)
    for number, result in enumerate(results):
        log = logs[number % 2]
        if isinstance(result, RecordMetadata):
            assert log[result.offset] == number if result.offset >= 0 else number in log
        else:
            assert isinstance(result, KafkaError)
            # A record fails although it was written only if its answer was lost.
            assert has_lost or number not in log
    if set(script) <= {0, errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_ENOUGH_REPLICAS, *LOST}:
        assert not any(isinstance(result, BaseException) for result in results)
    numbers = {(one.producer_id, one.producer_epoch) for one in broker.headers}
    assert all(producer_id >= 0 for producer_id, _ in numbers)
