"""A recorded conversation with one server, for histories that both servers are told.

Beside what `Session` replaces, ids of producers become `<producer 1>`, `<producer 2>` in the order of their appearance,
so a server that answers with another producer's id differs. Names begin with the run's prefix, which becomes `<run>`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness.consumer_session import classic_assignment
from tests.harness.session import KcoordCodec, Pending, Session

PRODUCER_KEYS = ("producerId", "v3AndBelowProducerId", "producerIdFilters")
# A server that does not become ready in this time is one that differs.
WAIT_S = 20.0
POLL_S = 0.002
# A request that is not answered in this time waits for another client. A broker's first rebalance is the slowest.
ANSWER_S = 0.06
# How often the coordinator is asked for something else before those that wait are looked at, and the pause after each.
ROUNDS = 2
QUIET_S = 0.006
PUBLISHED_S = 0.03
# Lists that a broker makes from hash sets.
SETS = ("topicPartitions", "subscribedTopicNames")
MEMBER_ID = re.compile(r"\b(script|one|two)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class Talk(Session):
    """`step` is the step of the sequence that the next requests belong to."""

    def __init__(self, host: str, port: int, prefix: str, patience: float = 1.0) -> None:
        super().__init__(host, port, KcoordCodec())
        self.prefix = prefix
        self.step = ""
        self.patience = patience
        self.symbol(prefix, "run")
        self._producers: dict[int, str] = {}
        self._numbers: list[int] = []
        self._at = -1
        self._changes = 0
        # Requests whose answer has not come yet, by connection.
        self._waiting: dict[str, Pending] = {}

    def ask(self, api: str, version: int, request: dict[str, Any], on: str = "a") -> Any:
        """The answer; an empty one when the connection was closed, which the record shows."""
        return self.call(self.step, api, version, request, on) or {}

    # ---- requests that may wait for others

    def post(self, api: str, version: int, request: dict[str, Any], on: str) -> Any:
        """Sends a request that may have to wait for other clients; its answer, or None if it does."""
        if "closed" in (sent := self.send(self.step, api, version, request, on)).record:
            return {}
        self._waiting[on] = sent
        end = time.monotonic() + ANSWER_S * self.patience
        while not self.connection(on).is_readable() and time.monotonic() < end:
            time.sleep(POLL_S)
        return self.take(on)

    def is_waiting(self, on: str) -> bool:
        return on in self._waiting

    def waiting(self) -> list[str]:
        return list(self._waiting)

    def take(self, on: str) -> Any:
        """The answer on a connection, if it is there."""
        if not self.connection(on).is_readable():
            return None
        return self._waiting.pop(on).answer() or {}

    def quiet(self) -> None:
        """Until the coordinator of groups has done what was sent: its log takes one write after the other."""
        part = {"partitionIndex": 0, "committedOffset": 1, "committedMetadata": ""}
        request = {
            "groupId": f"{self.prefix}-quiet", "generationIdOrMemberEpoch": -1, "memberId": "",
            "topics": [{"name": f"{self.prefix}-t", "partitions": [part]}],
        }  # fmt: skip
        for _ in range(ROUNDS):
            with self.unrecorded():
                self.call("", "OffsetCommit", 7, request, on="wait")
            time.sleep(QUIET_S * self.patience)

    def published(self) -> None:
        """Until the broker has applied what its controller decided: it learns of one change after the other."""
        topic, self._changes = f"{self.prefix}-t", self._changes + 1
        value = str(10_000_000_000_000 + self._changes)
        config = {"name": "flush.ms", "configOperation": 0, "value": value}
        with self.unrecorded():
            altered = {"resourceType": 2, "resourceName": topic, "configs": [config]}
            self.call("", "IncrementalAlterConfigs", 1, {"resources": [altered]}, on="wait")
        asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": ["flush.ms"]}

        def done(answer: Any) -> bool:
            return bool(answer["results"][0]["configs"] and answer["results"][0]["configs"][0]["value"] == value)

        if not self.until("DescribeConfigs", 4, {"resources": [asked]}, done):
            self.note("a change is never published")
        # Logs and the coordinator of groups follow a moment later.
        time.sleep(PUBLISHED_S * self.patience)

    def finish(self, on: str, record: dict[str, Any], deadline_s: float) -> Any:
        # The member's symbol is the number of its request, whenever the answer comes.
        self._members = next((number for number, one in enumerate(self._steps) if one is record), 0)
        return super().finish(on, record, deadline_s)

    @contextmanager
    def at(self, number: int, step: str) -> Iterator[None]:
        """What is asked in here is recorded as part of this step."""
        self.step, self._at = step, number
        before = len(self._steps)
        yield
        self._numbers[before:] = [number] * (len(self._steps) - before)

    def numbers(self) -> list[int]:
        """For each recorded request the number of its step."""
        return self._numbers

    def until(self, api: str, version: int, request: dict[str, Any], done: Any) -> bool:
        """Asks, unrecorded, until `done` says yes to an answer; False if it never does."""
        end = time.monotonic() + WAIT_S * self.patience
        while time.monotonic() < end:
            with self.unrecorded():
                answer = self.call("", api, version, request, on="wait")
            if answer is not None and done(answer):
                return True
            time.sleep(POLL_S)
        return False

    def note(self, text: str) -> None:
        """Records what a wait ended with, so that servers that never become ready differ."""
        self._steps.append({"step": self.step, "api": "wait", "version": 0, "request": {}, "response": text})

    def _normal_number(self, key: str, value: int) -> int | str:
        if key in PRODUCER_KEYS and value >= 0:
            return self._producers.setdefault(value, f"<producer {len(self._producers) + 1}>")
        return super()._normal_number(key, value)

    def symbol(self, value: str, name: str) -> None:
        super().symbol(value, name.replace(self.prefix, "<run>"))

    def _learn(self, api: str, request: Any, response: Any) -> None:
        super()._learn(api, request, response)
        if api == "ConsumerGroupHeartbeat" and response["memberId"] and not request["memberId"]:
            self.symbol(response["memberId"], f"member-{self._members + 1}")

    def _normal(self, key: str, value: Any) -> Any:
        made = super()._normal(key, value)
        if isinstance(made, list) and key == "partitions" and all(isinstance(one, int) for one in made):
            return sorted(made)
        return sorted(made, key=str) if isinstance(made, list) and key in SETS else made

    def _normal_text(self, key: str, value: str) -> Any:
        if key in ("assignment", "memberAssignment") and value:
            # A broker lists the topics of an assignment in the order of a hash map.
            return classic_assignment(value)
        # The ids of members whose JoinGroup was never answered.
        return MEMBER_ID.sub(r"<\1 member>", super()._normal_text(key, value))
