"""Members of four libraries and both protocols come and go under load, in any order, and the server may be killed.

    python -m tests.e2e.rolling_loop [--seconds N] [--seed S] [--kills]

What test_migration.py does once and in order, for as long as one likes.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaException

from tests.e2e import rolling
from tests.e2e.process import ServerProcess
from tests.e2e.test_confluent_consumer_protocol import ARGUMENTS
from tests.harness.ports import own_port

KINDS = ("aiokafka", "kafka-python", "confluent", "consumer", "kcoord-classic", "kcoord-consumer")
MEMBERS_MAX = 4
# A member that goes while its connection is down cannot say so and is missed after this.
SESSION = ("--set", "group.consumer.session.timeout.ms=6000")
STEPS_PER_KILL = 6
AIOKAFKA_ENDS = "RebalanceInProgressError"
WORK_S = 0.2


class RollingLoop(rolling.Rolling):
    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(bootstrap)
        self.rng = random.Random(seed)
        self.work_s = WORK_S
        self.steps = 0
        self.types: dict[str, int] = {}
        self.restarted = 0

    def forget_failed(self) -> None:
        """aiokafka ends with an exception when its group is converted while it waits to join: docs/gaps.md."""
        for one in list(self.members):
            if AIOKAFKA_ENDS in repr(one.failure):
                self.members.remove(one)
                self.restarted += 1
                self.members.append(self.begin("aiokafka", self.bootstrap, rolling.GROUP, rolling.TOPIC, self.notes))

    def step(self) -> None:
        self.steps += 1
        count = len(self.members)
        if count < 2 or (count < MEMBERS_MAX and self.rng.random() < 0.4):
            self.start(self.rng.choice(KINDS))
        elif self.rng.random() < 0.5:
            self.forget_failed()
            self.replace(self.rng.choice(KINDS))
        else:
            self.forget_failed()
            self.members.pop(self.rng.randrange(count)).stop()
            if self.rng.random() < 0.5:
                self.wait_settled()
        try:
            kind = self.type_of_group()
        except (KafkaException, TimeoutError):
            kind = "not known"  # the server has just come back
        self.types[kind] = self.types.get(kind, 0) + 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="let members of both protocols come and go under load")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", action="store_true", help="kill -9 the server every few steps")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        server = ServerProcess(data, *ARGUMENTS, *SESSION, listen=f"127.0.0.1:{own_port()}")
        try:
            loop = RollingLoop(server.bootstrap, options.seed)
            loop.create_topic()
            load = rolling.Load(server.bootstrap)
            ends_at = time.monotonic() + options.seconds
            while time.monotonic() < ends_at:
                loop.step()
                if options.kills and loop.steps % STEPS_PER_KILL == 0:
                    server.kill()
                    server.__exit__(None)
                    server = ServerProcess(data, *ARGUMENTS, *SESSION, listen=loop.bootstrap)
            loop.wait_settled()
            loop.check(load)
        finally:
            server.kill()
            server.__exit__(None)
    kinds = ", ".join(f"{kind.lower()} {count}" for kind, count in sorted(loop.types.items()))
    print(
        f"{loop.steps} steps ({kinds}), {len(load.acknowledged)} messages, {len(loop.notes.intervals)} intervals, "
        f"{loop.restarted} members started again (seed {options.seed}): nothing lost, nothing with two owners"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
