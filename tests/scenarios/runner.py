"""Drives a real Core with scripted events under a virtual clock and says what it did.

Commands, besides the requests of `requests.py` and `consumer_requests.py`:

    config name=value ...         settings of the core, before anything else
    topic NAME [partitions=N]     a new topic
    grow NAME partitions=N        more partitions for it
    advance 10s                   time passes, and timers fire
    job KEY [fail=REASON]         the job that waits under this key ends, with its result or without
    jobs                          the keys of the jobs that wait, in order
    disconnect client=NAME        a connection ends
    waiting                       requests that were not answered yet
    refuse                        the next records are more than a batch may hold: none of them is stored
    restart                       a new core from the log; jobs and waiting requests are gone

Jobs wait until a command ends them, in any order: the core is told what their `run` returns then.

After every event a second core, fed only by replay of what went through the bytes of the log, must have the same
hard state as the live one, and every member the timers it must have. `restart` goes on with a core made from those
records alone.
"""

from __future__ import annotations

import heapq

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.dispatch import handle_request
from kcoord.core.outcome import (
    TIMER_OFFSET_EXPIRY,
    Disconnected,
    Event,
    Job,
    JobDone,
    LogId,
    Now,
    Outcome,
    Reply,
    Request,
    Timer,
    TimerFired,
)
from kcoord.core.refusals import error_response
from kcoord.log.serde import decode_metadata_record, decode_record, encode_metadata_record, encode_record
from kcoord.protocol import apis, errors
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter
from tests.harness.core_invariants import core_problems
from tests.scenarios.actor import Actor
from tests.scenarios.printing import START_WALL_MS, Printer, duration, milliseconds
from tests.scenarios.requests import REQUESTS
from tests.scenarios.script import Command, parse_command
from tests.scenarios.timer_check import timer_problems


class Waiting:
    """A request that was not answered yet."""

    def __init__(self, actor: Actor, api_key: int, version: int, body: Message) -> None:
        self.actor = actor
        self.api_key = api_key
        self.version = version
        self.body = body


class Scenario:
    def __init__(self) -> None:
        self.config = CoreConfig()
        self.config.cluster_id = "scenario"
        self.mono_ms = 0
        self.printer = Printer()
        self.actors: dict[str, Actor] = {}
        self.waiting: dict[int, Waiting] = {}
        self.requests = 0
        self.replies: dict[int, Message] = {}
        # What every log holds, as bytes: (key, value) by log name.
        self.logs: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
        # The timestamp of each of them.
        self.times: dict[str, list[int]] = {}
        self.timers: list[tuple[int, int, Timer]] = []
        self.armed = 0
        # Jobs that wait for a command to end them, by key.
        self.jobs: dict[str, Job] = {}
        self.lines: list[str] = []
        # Whether the next records are refused, and requests whose connections were closed for that.
        self.refuses = False
        self.closed: set[int] = set()
        # The request that is handled now, 0 for none.
        self.current_id = 0
        self._core: Core | None = None
        self._shadow: Core | None = None

    # --- commands --------------------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Run one command and return what happened, one line each."""
        command = parse_command(line)
        self.lines = []
        if command.name == "config":
            self._configure(command)
        elif command.name == "topic":
            self._create_topic(command)
        elif command.name == "grow":
            self._grow_topic(command)
        elif command.name == "advance":
            self.advance(milliseconds(command.words[0]))
        elif command.name == "restart":
            self._restart()
        elif command.name == "disconnect":
            actor = self._actor(command.text("client"))
            self._apply(self.core.handle(Disconnected(actor.connection_id), self._now()))
            self.waiting = {k: w for k, w in self.waiting.items() if w.actor is not actor}
        elif command.name == "waiting":
            names = [f"{w.actor.name}: {apis.APIS[w.api_key].name}" for w in self.waiting.values()]
            self.lines.extend(f"waiting {name}" for name in names)
        elif command.name == "refuse":
            self.refuses = True
        elif command.name == "job":
            self._end_job(command)
        elif command.name == "jobs":
            self.lines.extend(f"job {key}" for key in self.jobs)
        elif command.name in REQUESTS:
            self._request(command)
            self.advance(0)
        else:
            raise ValueError(f"no such command: {command.name}")
        command.done()
        return self.lines or ["ok"]

    def _configure(self, command: Command) -> None:
        """Settings of the core, before anything else."""
        for name in list(command.options):
            text = command.text(name)
            current = getattr(self.config, name)
            value: object = text
            if isinstance(current, bool):
                value = text == "true"
            elif isinstance(current, int):
                value = int(text) if text.lstrip("-").isdigit() else milliseconds(text)
            setattr(self.config, name, value)

    def _create_topic(self, command: Command) -> None:
        """Puts a topic into the metadata log, as CreateTopics does."""
        core = self.core
        name = command.words[0]
        topic_id = (1000 + len(self.logs.get("__cluster_metadata-0", []))).to_bytes(16, "big")
        self.printer.add_topic(name, topic_id)
        outcome = Outcome()
        outcome.add(core.metadata_log, None, TopicRecord(name=name, topic_id=topic_id))
        for index in range(command.number("partitions", 1)):
            record = PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
            outcome.add(core.metadata_log, None, record)
        self._quietly(outcome)

    def _grow_topic(self, command: Command) -> None:
        """More partitions for a topic, as CreatePartitions makes them."""
        topic = self.core.topics.get(command.words[0])
        assert topic is not None, command.words[0]
        outcome = Outcome()
        end = command.number("partitions", topic.partition_count + 1)
        self.core.topics.add_partition_records(outcome, topic.topic_id, topic.partition_count, end)
        self._quietly(outcome)

    def _end_job(self, command: Command) -> None:
        job = self.jobs.pop(command.words[0], None)
        if job is None:
            raise ValueError(f"no job waits under {command.words[0]}, only {', '.join(self.jobs) or 'none'}")
        error = command.optional("fail")
        result = job.run() if error is None else None
        self._apply(self.core.handle(JobDone(job, result, error), self._now()))

    def _request(self, command: Command) -> None:
        api_key, build = REQUESTS[command.name]
        actor = self._actor(command.text("client", "cli"))
        version = command.number("version", apis.APIS[api_key].max_version)
        body = build(command, actor, version, self.printer, self.actors)
        client_id = command.text("client_id", actor.name)
        command.done()
        self.send(actor, api_key, version, body, client_id)

    def send(self, actor: Actor, api_key: int, version: int, body: Message, client_id: str) -> int:
        """Hand a request to the core; its id, under which `replies` holds the answer once there is one."""
        self.requests += 1
        request = Request(
            self.requests,
            actor.connection_id,
            api_key,
            version,
            client_id,
            "/127.0.0.1",
            body,
            self.requests.to_bytes(16, "big"),
            "localhost",
            9092,
        )
        core = self.core
        self.waiting[request.request_id] = Waiting(actor, api_key, version, body)
        self.current_id = request.request_id
        self._apply(handle_request(core, request, self._now()))
        self.current_id = 0
        return request.request_id

    def advance(self, by_ms: int) -> None:
        """Move time on and fire what falls due, in order; 0 fires what is due already."""
        end_ms = self.mono_ms + by_ms
        _ = self.core
        while self.timers and self.timers[0][0] <= end_ms:
            deadline_ms, _, timer = heapq.heappop(self.timers)
            self.mono_ms = max(self.mono_ms, deadline_ms)
            outcome = self.core.handle(TimerFired(timer), self._now())
            is_loud = bool(outcome.records or outcome.replies or outcome.facts or outcome.follow_ups or outcome.jobs)
            if is_loud and by_ms:
                self.lines.append(f"at +{duration(by_ms - (end_ms - self.mono_ms))}:")
            self._apply(outcome, with_timers=is_loud)
        self.mono_ms = end_ms

    def _restart(self) -> None:
        """A new core from the records so far; who waited for an answer waits no longer."""
        self.waiting.clear()
        self.timers = []
        self.jobs = {}
        before = self.core.digest()
        self._core = None
        self._shadow = None
        after = self.core.digest()
        if before != after:
            self.lines.append("DIGEST differs after the restart")

    # --- the engine's part -----------------------------------------------------------------------------------

    @property
    def core(self) -> Core:
        if self._core is None:
            self._core = Core(self.config)
            self._load(self._core)
        return self._core

    def _load(self, core: Core) -> None:
        self._replay_log(core, core.metadata_log)
        self._quietly(core.loaded_topics(b"\x01" * 16))
        for log_id in core.offsets_logs():
            self._replay_log(core, log_id)
        self._apply(core.loaded(self._now()))
        assert not self.jobs, f"loading led to jobs: {self.jobs}"

    def _replay_log(self, core: Core, log_id: LogId) -> None:
        for offset, (key, value) in enumerate(self.logs.get(str(log_id), [])):
            replay_bytes(core, log_id, offset, key, value, self.times[str(log_id)][offset])

    def _quietly(self, outcome: Outcome) -> None:
        """Topics are the stage, not the play; what groups do when they change is shown."""
        kept = list(self.lines)
        self._apply_one(outcome)
        self.lines = kept
        for event in [*outcome.follow_ups, *outcome.continuations, *(outcome.once_durable or [])]:
            self._follow(event)

    def _now(self) -> Now:
        return Now(self.mono_ms, START_WALL_MS + self.mono_ms)

    def _actor(self, name: str) -> Actor:
        if name not in self.actors:
            self.actors[name] = Actor(name, len(self.actors) + 1)
        return self.actors[name]

    def _apply(self, outcome: Outcome, with_timers: bool = True) -> None:
        self._apply_one(outcome, with_timers)
        for event in [*outcome.follow_ups, *outcome.continuations, *(outcome.once_durable or [])]:
            self._follow(event)

    def _apply_one(self, outcome: Outcome, with_timers: bool = True) -> None:
        core = self._core
        assert core is not None
        if outcome.records and self.refuses:
            self.refuses = False
            self._refuse(core, outcome)
        if outcome.records:
            assert outcome.log is not None
            self._append(core, outcome.log, outcome)
            core.settle(outcome, self._now())
            changes = core.topics.take_changes()
            if changes is not None:
                outcome.follow_ups.insert(0, changes)
        for reply in outcome.replies:
            self._answer(reply)
        for timer in outcome.timers:
            self.armed += 1
            heapq.heappush(self.timers, (timer.deadline_ms, self.armed, timer))
            if with_timers and timer.kind != TIMER_OFFSET_EXPIRY:
                self.lines.append(self.printer.timer(timer, self.mono_ms))
        for job in outcome.jobs:
            if job.key not in self.jobs:
                self.jobs[job.key] = job
                self.lines.append(f"job {job.key} within {duration(job.deadline_ms)}")
        self.lines += [self.printer.fact(fact) for fact in outcome.facts]
        self._compare(core)
        self._check_timers(core)

    def _check_timers(self, core: Core) -> None:
        armed = [entry[2] for entry in self.timers]
        self.lines += [f"TIMERS: {problem}" for problem in timer_problems(core.groups, armed)]
        self.lines += [f"INVARIANT: {problem}" for problem in core_problems(core)]

    def _refuse(self, core: Core, outcome: Outcome) -> None:
        """As the engine does: its request gets an error, others that it would answer are closed."""
        left = core.refused(outcome, self._now())
        for reply in outcome.replies:
            if reply.request_id != self.current_id and self.waiting.pop(reply.request_id, None) is not None:
                self.closed.add(reply.request_id)
        outcome.records = []
        outcome.follow_ups.clear()
        outcome.once_durable = None
        outcome.continuations.clear()
        outcome.jobs.clear()
        outcome.replies = [reply for reply in left.replies if reply.request_id != self.current_id]
        outcome.timers.extend(left.timers)
        outcome.facts[:] = left.facts
        current = self.waiting.get(self.current_id)
        if current is not None:
            code = errors.UNKNOWN_SERVER_ERROR
            outcome.reply(self.current_id, error_response(current.api_key, current.version, current.body, code))

    def _follow(self, event: Event) -> None:
        self._apply(self.core.handle(event, self._now()))

    def _append(self, core: Core, log_id: LogId, outcome: Outcome) -> None:
        log = self.logs.setdefault(str(log_id), [])
        times = self.times.setdefault(str(log_id), [])
        wall_ms = self._now().wall_ms
        encoded: list[tuple[bytes | None, bytes | None]] = []
        for record in outcome.records:
            if record.key is None:
                assert record.value is not None
                encoded.append((None, encode_metadata_record(record.value)))
            else:
                encoded.append(encode_record(record.key, record.value))
        for record, (key, value) in zip(outcome.records, encoded, strict=True):
            place = str(log_id) if record.key is None else f"{log_id}@{len(log)}"
            self.lines.append(self.printer.record(place, record.key, record.value, record.cause))
            core.replay(log_id, len(log), record.key, record.value, wall_ms, outcome.made)
            if self._shadow is not None:
                replay_bytes(self._shadow, log_id, len(log), key, value, wall_ms)
            log.append((key, value))
            times.append(wall_ms)

    def _compare(self, core: Core) -> None:
        """The core that only replays must agree with the one that handles."""
        if self._shadow is None:
            self._shadow = Core(self.config)
            for log_id in [core.metadata_log, *core.offsets_logs()]:
                self._replay_log(self._shadow, log_id)
        if self._shadow.digest() != core.digest():
            self.lines.append("DIGEST of the replaying core differs")

    def digest_after_compaction(self) -> str:
        """The hard state of a core that sees the last record of each key only, as compaction leaves them."""
        core = Core(self.config)
        self._replay_log(core, core.metadata_log)
        for log_id in core.offsets_logs():
            log = self.logs.get(str(log_id), [])
            last = {key: offset for offset, (key, _) in enumerate(log)}
            for offset, (key, value) in enumerate(log):
                if last[key] == offset:
                    replay_bytes(core, log_id, offset, key, value, self.times[str(log_id)][offset])
        return core.digest()

    def _answer(self, reply: Reply) -> None:
        waiting = self.waiting.pop(reply.request_id, None)
        if waiting is None or reply.response is None:
            return
        response: Message = reply.response
        # What cannot be encoded cannot be answered.
        apis.encode_response(BytesWriter(), waiting.api_key, response, waiting.version)
        actor = waiting.actor
        self.replies[reply.request_id] = response
        self.lines.append(self.printer.reply(actor.name, response))
        actor.learn(response)


def replay_bytes(core: Core, log_id: LogId, offset: int, key: bytes | None, value: bytes | None, time_ms: int) -> None:
    if key is None:
        assert value is not None
        core.replay(log_id, offset, None, decode_metadata_record(value))
    else:
        typed_key, typed_value = decode_record(key, value)
        core.replay(log_id, offset, typed_key, typed_value, time_ms)
