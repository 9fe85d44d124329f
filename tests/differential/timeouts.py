"""Random histories of transactions that are left open until their coordinator aborts them.

The timeouts are short, but longer than what happens between two steps `expire`, each of which waits until no
transaction is open. Then come requests with the producer's old epoch, and with that of the abort, which it never got.
"""

from __future__ import annotations

import random
import struct

from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.differential.transactions import Transactions, one_step
from tests.harness import schema_json
from tests.harness.session import KcoordCodec

# Of each producer: if they are about to end together, the order of their markers is a broker's choice.
TIMEOUTS_MS = (800, 1300)
# What happens between two timeouts: at most this many steps, of some milliseconds each.
STEPS_MAX = 9
# What a client may get at last (Kafka keeps one epoch more, to fence the client), and how the epochs are used up.
CLIENT_EPOCH_MAX = 32766
INIT_PRODUCER_ID = 22
IN_FLIGHT = 100
# In an answer: tags, throttle time, error code and producer id come before.
EPOCH_AT = 1 + 4 + 2 + 8
IDS = {"now": 55, "ahead": 28, "before": 12, "stranger": 3, "none": 2}
INIT_IDS = {"now": 40, "ahead": 20, "none": 25, "before": 15}


def sequence(rng: random.Random) -> list[Step]:
    client = weighted(rng, {2: 45, 1: 40, 0: 15})
    steps = [Step("init", {"who": who, "version": 4, "ids": "none"}) for who in (0, 1)]
    for _ in range(rng.choice((1, 2, 2))):
        for ids, least in (({"now": 1}, 2), (IDS, 1)):
            count = rng.randint(least, STEPS_MAX)
            steps += [with_ids(rng, one_step(rng, client or rng.choice((1, 2))), ids) for _ in range(count)]
            steps.append(Step("expire"))
    return steps


def with_ids(rng: random.Random, step: Step, ids: dict[str, int]) -> Step:
    if "ids" not in step.args:
        return step
    return Step(step.action, {**step.args, "ids": weighted(rng, INIT_IDS if step.action == "init" else ids)})


class Timeouts(Transactions):
    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self.timeouts_ms = [int(timeout_ms * talk.patience) for timeout_ms in TIMEOUTS_MS]

    def expire(self) -> None:
        """Waits until every transaction that is open has timed out, and looks at what that left."""
        for who, producer in enumerate(self.producers):
            request = {"transactionalIds": [producer.transactional_id]}
            if not self.talk.until("DescribeTransactions", 0, request, is_over):
                self.talk.note("the transaction never times out")
            self.settle(who)
            self.describe(who)
        self.look(1)


def is_over(answer: dict[str, list[dict[str, str]]]) -> bool:
    return answer["transactionStates"][0]["transactionState"] != "Ongoing"


class Exhausted(Timeouts):
    """Producer ids whose epochs are about to end, at which a producer gets another id."""

    def use_up(self, who: int, left: int) -> None:
        """InitProducerId until the epoch has so many successors that a client may get."""
        producer = self.producers[who]
        request = {"transactionalId": producer.transactional_id, "transactionTimeoutMs": self.timeouts_ms[who]}
        full = schema_json.fill("InitProducerIdRequest", 4, request)
        body = KcoordCodec().encode("InitProducerIdRequest", 4, full)
        connection = self.talk.connection("epochs")
        epoch = producer.known[-1][1] if producer.known else CLIENT_EPOCH_MAX
        while (missing := CLIENT_EPOCH_MAX - left - 1 - epoch) > 0:
            chunk = min(missing, IN_FLIGHT)
            for _ in range(chunk):
                connection.send(INIT_PRODUCER_ID, 4, body, True)
            answers = [connection.receive()[1] for _ in range(chunk)]
            # Some are refused if a broker is busy.
            epoch = max([epoch, *(struct.unpack_from(">h", answer, EPOCH_AT)[0] for answer in answers)])
        self.init(who, 4, "none")


def last_epochs(rng: random.Random) -> list[Step]:
    steps = sequence(rng)
    return [*steps[:2], *(Step("use_up", {"who": who, "left": rng.randint(0, 4)}) for who in (0, 1)), *steps[2:]]


KIND = Kind("timeouts", sequence, Timeouts)
EXHAUSTED = Kind("exhausted", last_epochs, Exhausted)
