"""Runs workloads against one cluster, or against several with interleaved rounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from kcoord.cli.bench.groups import GroupRound, GroupWorkload
from kcoord.cli.bench.load import added
from kcoord.cli.bench.newcomers import GROUPS as NEWCOMER_GROUPS
from kcoord.cli.bench.newcomers import newcomer_plan
from kcoord.cli.bench.options import GROUPS, NEWCOMERS, Options
from kcoord.cli.bench.results import Document, median, percentile, spread
from kcoord.cli.bench.steady import (
    Prepared,
    prepare_commits,
    prepare_consumer_heartbeats,
    prepare_fetch,
    prepare_heartbeats,
    prepare_offset_fetch,
    prepare_produce,
)
from kcoord.cli.bench.target import Target
from kcoord.cli.bench.transactions import prepare_transactions
from kcoord.cli.bench.workers import Round, WorkerFailed, Workers
from kcoord.client.errors import KafkaError
from kcoord.client.load.histogram import Histogram

PREPARE: Final[dict[str, Callable[[Target, Options], Awaitable[Prepared]]]] = {
    "commit-1": partial(prepare_commits, count=1),
    "commit-5": partial(prepare_commits, count=5),
    "commit-100": partial(prepare_commits, count=100),
    "offset-fetch": prepare_offset_fetch,
    "heartbeat": prepare_heartbeats,
    "consumer-heartbeat": prepare_consumer_heartbeats,
    "produce": prepare_produce,
    "fetch": prepare_fetch,
    "transactions": prepare_transactions,
    # The load beside newcomers.
    **{name: partial(prepare_commits, count=5, groups=f"beside-{name}") for name in NEWCOMERS},
}
# The share of the warm-up before each further round.
WARM_UP_AGAIN: Final = 0.25


class Run(Protocol):
    """One workload on one cluster."""

    async def open(self) -> None:
        """Prepare it. Raises KafkaError or WorkerFailed."""

    async def round(self) -> None:
        """Measure one round. Raises KafkaError or WorkerFailed."""

    async def close(self) -> None:
        """End its connections."""

    def document(self) -> Document:
        """What was measured."""


@dataclass(slots=True)
class SteadyRun:
    name: str
    target: Target
    options: Options
    workers: Workers
    prepared: Prepared | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def load(self) -> str:
        return f"{self.name} {self.target.prefix}"

    async def open(self) -> None:
        prepared = await PREPARE[self.name](self.target, self.options)
        await self.workers.open(self.load, prepared)
        self.prepared = prepared

    @property
    def warm_up_s(self) -> float:
        """Before the next round."""
        return self.options.warm_up_s * (WARM_UP_AGAIN if self.rounds else 1)

    async def round(self) -> None:
        self.rounds.append(await self.workers.round(self.load, self.warm_up_s, self.options.seconds))

    async def close(self) -> None:
        if self.prepared is not None:
            await self.workers.close(self.load)

    def document(self) -> Document:
        everything = Histogram()
        for one in self.rounds:
            everything.add_all(one.histogram.pairs())
        rates = [one.per_second for one in self.rounds]
        return {
            "versions": self.prepared.versions if self.prepared else {},
            "connections": self.options.connections,
            "in_flight": self.prepared.in_flight if self.prepared else self.options.in_flight,
            "per_second": round(median(rates), 1),
            "spread": round(spread(rates), 4),
            "p50_ms": round(everything.percentile(0.5), 4),
            "p99_ms": round(everything.percentile(0.99), 4),
            "p999_ms": round(everything.percentile(0.999), 4),
            "megabytes_per_second": round(median([one.megabytes_per_second for one in self.rounds]), 2),
            "generator_cores": round(median([one.generator_cores for one in self.rounds]), 3),
            "errors": added(one.errors for one in self.rounds),
            "rounds": [_steady_round(one) for one in self.rounds],
        }


def _steady_round(one: Round) -> Document:
    return {
        "per_second": round(one.per_second, 1), "p50_ms": round(one.p50_ms, 4), "p99_ms": round(one.p99_ms, 4),
        "p999_ms": round(one.p999_ms, 4), "answered": one.answered, "errors": one.errors,
    }  # fmt: skip


@dataclass(slots=True)
class GroupRun:
    workload: GroupWorkload
    rounds: list[GroupRound] = field(default_factory=list)

    async def open(self) -> None:
        await self.workload.open()

    async def round(self) -> None:
        self.rounds.append(await self.workload.round())

    async def close(self) -> None:
        await self.workload.close()

    def document(self) -> Document:
        heartbeats = Histogram()
        for one in self.rounds:
            heartbeats.add_all(one.heartbeats.pairs())
        seconds = [one.seconds for one in self.rounds]
        steps = [step for one in self.rounds for step in one.steps]
        return {
            "members": self.workload.options.members,
            "seconds": round(median(seconds), 4),
            "spread": round(spread(seconds), 4),
            "step_p50_s": round(percentile(steps, 0.5), 4),
            "step_max_s": round(max(steps, default=0.0), 4),
            "heartbeats": heartbeats.total,
            "heartbeat_p99_ms": round(heartbeats.percentile(0.99), 4),
            "generator_cores": round(median([one.generator_cores for one in self.rounds]), 3),
            "errors": added(one.errors for one in self.rounds),
            "rounds": [
                {
                    "seconds": round(one.seconds, 4), "step_p50_s": round(percentile(one.steps, 0.5), 4),
                    "steps": [round(step, 4) for step in one.steps], "errors": one.errors,
                }
                for one in self.rounds
            ],
        }  # fmt: skip


@dataclass(slots=True)
class NewcomerRun:
    """A steady load, and beside it clients that come one after the other, from a process of their own."""

    name: str
    protocol: str
    busy: SteadyRun
    own: Workers = field(default_factory=lambda: Workers(1))
    rounds: list[Round] = field(default_factory=list)

    async def open(self) -> None:
        target = self.busy.target
        await self.busy.open()
        await self.own.start()
        topic = await target.topic("newcomers", 1)
        groups = [target.group(f"{self.name}-{number}") for number in range(NEWCOMER_GROUPS)]
        target.crowds.update(groups)
        plan = newcomer_plan(target.bootstrap, self.protocol, topic.name, groups)
        await self.own.open(self.name, Prepared("newcomers", [plan], {}, 1))

    async def round(self) -> None:
        here = self.own.round(self.name, self.busy.warm_up_s, self.busy.options.seconds)
        # Both are waited for, also if one fails: their answers would be those to the next commands.
        busy, own = await asyncio.gather(self.busy.round(), here, return_exceptions=True)
        for one in (busy, own):
            if isinstance(one, BaseException):
                raise one
        assert isinstance(own, Round)
        self.rounds.append(own)

    async def close(self) -> None:
        await self.own.end()
        await self.busy.close()

    def document(self) -> Document:
        everything = Histogram()
        for one in self.rounds:
            everything.add_all(one.histogram.pairs())
        busy = self.busy.document()
        return {
            **busy,
            "newcomers": everything.total,
            "in_p50_ms": round(everything.percentile(0.5), 4),
            "in_p99_ms": round(everything.percentile(0.99), 4),
            "in_max_ms": round(everything.percentile(1.0), 4),
            "errors": added([busy["errors"], *(one.errors for one in self.rounds)]),
            "rounds": [
                {
                    **load, "newcomers": one.answered, "in_p50_ms": round(one.p50_ms, 4),
                    "in_p99_ms": round(one.p99_ms, 4), "errors": added([load["errors"], one.errors]),
                }
                for load, one in zip(busy["rounds"], self.rounds, strict=False)
            ],
        }  # fmt: skip


@dataclass(slots=True)
class Results:
    """One list of documents for each cluster, in the order of the workloads. An interrupted run has fewer."""

    workloads: list[list[Document]]
    left_over: list[str] = field(default_factory=list)


async def measure(
    clusters: list[str], names: list[str], options: Options, results: Results, say: Callable[[str], None]
) -> None:
    """Measure workloads, and add what was measured to `results`. Removes what it created, also when it is cancelled.

    Raises KafkaError if a cluster cannot be reached. A workload that fails is noted with its reason.
    """
    targets: list[Target] = []
    try:
        async with contextlib.AsyncExitStack() as stack:
            for address in clusters:
                target = Target(address, options.timeout_s, options.replication_factor)
                targets.append(await stack.enter_async_context(target))
            workers = await stack.enter_async_context(Workers(options.processes))
            for name in names:
                say(name)
                await _workload(name, targets, options, workers, results)
            say("removing topics and groups")
    finally:
        results.left_over += [text for target in targets for text in target.left_over]


def _run(name: str, target: Target, options: Options, workers: Workers) -> Run:
    if name in GROUPS:
        action, _, protocol = name.partition("-")
        return GroupRun(GroupWorkload(target, options, workers, action, protocol))
    if name in NEWCOMERS:
        return NewcomerRun(name, name.partition("-")[2], SteadyRun(name, target, options, workers))
    return SteadyRun(name, target, options, workers)


async def _workload(name: str, targets: list[Target], options: Options, workers: Workers, results: Results) -> None:
    """Measure one workload on all clusters, in interleaved rounds. If it fails on one, the others go on."""
    runs = [_run(name, target, options, workers) for target in targets]
    reasons: dict[int, str] = {}

    async def attempt(at: int, step: Callable[[], Awaitable[None]]) -> None:
        if at in reasons:
            return
        try:
            await step()
        except (KafkaError, WorkerFailed, OSError) as error:
            reasons[at] = str(error) or type(error).__name__

    try:
        for at, run in enumerate(runs):
            await attempt(at, run.open)
        for _ in range(options.rounds):
            for at, run in enumerate(runs):
                await attempt(at, run.round)
    finally:
        for run in runs:
            with contextlib.suppress(KafkaError, WorkerFailed):
                await run.close()
    for at, run in enumerate(runs):
        row: dict[str, Any] = {"workload": name, "skipped": reasons.get(at), **run.document()}
        results.workloads[at].append(row)
