"""Options of the commands that measure, and the loop that runs them. Quick to import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kcoord.cli.bench.options import SETS, Options, default_processes
from kcoord.cli.online.run import EXIT_INTERRUPTED, CommandProblem
from kcoord.cli.online.suggestions import suggestion

if TYPE_CHECKING:
    from kcoord.cli.bench.measure import Results

F = TypeVar("F", bound=Callable[..., Any])
DEFAULTS: Final = Options()
EXIT_TERMINATED: Final = 143
EVERYTHING: Final = "all"

_COUNT: Final = click.IntRange(min=1)
_NOT_NEGATIVE: Final = click.FloatRange(min=0)
_POSITIVE: Final = click.FloatRange(min=0, min_open=True)


def _option(
    name: str, kind: click.IntRange | click.FloatRange, default: Any, metavar: str, text: str
) -> Callable[[F], F]:
    return click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=text)


def measuring_options(command: F) -> F:
    """Everything that `options_of` needs."""
    for option in reversed(
        [
            _option("--connections", _COUNT, DEFAULTS.connections, "N", "Connections of a steady workload."),
            _option("--in-flight", _COUNT, DEFAULTS.in_flight, "D", "Requests in flight on each connection."),
            _option("--rounds", _COUNT, DEFAULTS.rounds, "N", "Rounds of each workload."),
            _option("--seconds", _POSITIVE, DEFAULTS.seconds, "SECONDS", "Duration of a round of a steady workload."),
            _option("--warm-up", _NOT_NEGATIVE, DEFAULTS.warm_up_s, "SECONDS", "Load before the rounds, not measured."),
            _option("--members", _COUNT, DEFAULTS.members, "N", "Members of the group in a group workload."),
            click.option(
                "--restarts", type=_COUNT, metavar="N", help="How many members restart in a round (default: all)."
            ),
            _option("--heartbeat", _POSITIVE, DEFAULTS.heartbeat_s, "SECONDS", "Pause between a member's heartbeats."),
            _option("--record-bytes", _COUNT, DEFAULTS.record_bytes, "BYTES", "The size of a record's value."),
            _option("--batch-records", _COUNT, DEFAULTS.batch_records, "N", "Records in a batch that is produced."),
            _option("--fetch-bytes", _COUNT, DEFAULTS.fetch_bytes, "BYTES", "The most that a Fetch may return."),
            click.option(
                "--processes", type=_COUNT, metavar="N",
                help="Processes of the load generator (default: half of the cores, at most 4).",
            ),
            click.option(
                "--replication-factor", type=_COUNT, metavar="N", help="Of the topics (default: the broker's)."
            ),
            _option("--timeout", _POSITIVE, DEFAULTS.timeout_s, "SECONDS", "Time limit of a preparation or rebalance."),
            click.option("--save", metavar="FILE", default="", help="Write the results as JSON, also for `compare`."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def options_of(given: dict[str, Any]) -> Options:
    """The options from the arguments of `measuring_options`."""
    return Options(
        given["connections"], given["in_flight"], given["rounds"], given["seconds"], given["warm_up"],
        given["processes"] or default_processes(), given["members"], given["heartbeat"], given["record_bytes"],
        given["batch_records"], given["fetch_bytes"], given["replication_factor"] or -1, given["timeout"],
        given["restarts"] or 0,
    )  # fmt: skip


def workloads_of(given: tuple[str, ...]) -> list[str]:
    """The workloads that were named, each once, in the order of `all`. Raises UsageError."""
    chosen: set[str] = set()
    for name in given or (EVERYTHING,):
        if name in SETS:
            chosen.update(SETS[name])
        elif name in SETS[EVERYTHING]:
            chosen.add(name)
        else:
            known = [*SETS[EVERYTHING], *SETS]
            raise click.UsageError(f"unknown workload {name!r}; there are {', '.join(known)}{suggestion(name, known)}")
    return [name for name in SETS[EVERYTHING] if name in chosen]


def run_measuring(clusters: list[str], names: list[str], options: Options) -> tuple[Results, int]:
    """Measure until done or interrupted. Returns the results, and the exit code of an interruption or 0.

    Raises KafkaError.
    """
    import asyncio

    from kcoord.cli.bench.measure import Results, measure
    from kcoord.cli.bench.worker import new_event_loop

    _check_open_files(names, options)
    results = Results([[] for _ in clusters])
    code = 0
    terminated: list[int] = []

    async def work() -> None:
        _cancel_on_sigterm(terminated)
        await measure(clusters, names, options, results, _progress(names))

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(work())
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except asyncio.CancelledError:
        code = EXIT_TERMINATED if terminated else EXIT_INTERRUPTED
    finally:
        for text in results.left_over:
            click.secho(f"kcoord: not removed: {text}", err=True, fg="yellow")
    return results, code


def _check_open_files(names: list[str], options: Options) -> None:
    """Allow as many connections as the workloads need. Raises CommandProblem if the system does not."""
    import resource

    needed = max(options.connections, options.members * 2 if set(names) & set(SETS["groups"]) else 0) + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise CommandProblem(f"{needed} open files are needed, and the limit is {hard}: raise it with `ulimit -n`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _cancel_on_sigterm(terminated: list[int]) -> None:
    """SIGTERM cancels the running task, as Ctrl-C does, so that it removes what it created."""
    import asyncio
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        return
    task = asyncio.current_task()

    def cancel() -> None:
        terminated.append(signal.SIGTERM)
        if task is not None:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel)


def _progress(names: list[str]) -> Callable[[str], None]:
    """Prints on a terminal what is measured now."""
    numbers = {name: number for number, name in enumerate(names, 1)}

    def say(text: str) -> None:
        if sys.stderr.isatty():
            number = f"{numbers[text]}/{len(names)} " if text in numbers else ""
            click.echo(f"\r\x1b[K{number}{text} ...", err=True, nl=False)
            if not number:
                click.echo("\r\x1b[K", err=True, nl=False)

    return say
