"""Options of commands that talk to a cluster, and the loop that runs them.

Exit codes: 0 success; 1 something that was named does not exist, or a part of the work was refused; 2 wrong usage;
3 no response in time, or the cluster refused the request.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kcoord.cli.online.contexts import DEFAULT_BOOTSTRAP, ContextProblem, bootstrap_of
from kcoord.cli.options import output_option

if TYPE_CHECKING:
    import asyncio

    from kcoord.client.admin.admin import Admin

EXIT_PROBLEMS: Final = 1
EXIT_CLUSTER: Final = 3
EXIT_INTERRUPTED: Final = 130
TIMEOUT_S: Final = 30.0
# How much longer the command waits for a connection than the client does, whose error says why there is none.
SPARE_S: Final = 1.0
# A cluster that answers does so sooner. After this time somebody at a terminal wonders what the command is doing.
PATIENCE_S: Final = 2.0
# A day: `sleep` takes no time of any size, and nobody waits longer for a table.
WATCH_S_MAX: Final = 86_400.0
CONTEXT_KEY: Final = "kcoord.context"

__all__ = ["output_option"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class CommandProblem(Exception):
    """A mistake that is reported in one line; the exit code is EXIT_PROBLEMS."""


def _note_context(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    context.meta[CONTEXT_KEY] = value


def _resolve(context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    name = context.meta.get(CONTEXT_KEY)
    if value is not None:
        if name is not None:
            raise click.UsageError("give --bootstrap or --context, not both")
        return value
    if context.resilient_parsing:
        return DEFAULT_BOOTSTRAP
    try:
        return bootstrap_of(name)
    except ContextProblem as error:
        raise click.UsageError(str(error)) from None


def bootstrap_options(command: F) -> F:
    """--bootstrap and --context, as the argument `bootstrap`."""
    bootstrap = click.option(
        "--bootstrap", "--bootstrap-server", "-b", "bootstrap", callback=_resolve, metavar="HOST:PORT",
        help=f"A broker, or several separated by commas (default: the current context, or {DEFAULT_BOOTSTRAP}).",
    )  # fmt: skip
    context = click.option(
        "--context", callback=_note_context, is_eager=True, expose_value=False, metavar="NAME",
        help="A cluster that is named in ~/.config/kcoord/config.toml.",
    )  # fmt: skip
    return bootstrap(context(command))


def cluster_options(command: F) -> F:
    """The same and --timeout, as the arguments `bootstrap` and `timeout`."""
    timeout = click.option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S, show_default=True,
        metavar="SECONDS", help="Time limit of the whole command.",
    )  # fmt: skip
    return bootstrap_options(timeout(command))


def execute_option(command: F) -> F:
    return click.option("--execute", is_flag=True, help="Make the changes. Without it they are only shown.")(command)


def warn(message: str) -> None:
    """Print a remark on standard error."""
    click.secho(f"kcoord: {message}", err=True, fg="yellow")


def complain(message: str) -> None:
    """Print an error on standard error."""
    click.secho(f"kcoord: {message}", err=True, fg="red")


def friendly(command: F) -> F:
    """Report errors as one line on standard error and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except CommandProblem as error:
            complain(str(error))
            sys.exit(EXIT_PROBLEMS)
        except BrokenPipeError:
            # The reader of our output has closed the pipe. Python would write to it again at exit, and report that.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except OSError as error:
            complain(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
            sys.exit(EXIT_PROBLEMS)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except Exception as error:
            from kcoord.client.errors import InvalidConfiguration, KafkaError

            if isinstance(error, InvalidConfiguration):
                raise click.UsageError(str(error)) from None
            if not isinstance(error, KafkaError):
                raise
            complain(str(error))
            sys.exit(EXIT_CLUSTER)

    return run  # type: ignore[return-value]


def online(bootstrap: str, timeout_s: float, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run `work` with an admin client, for `timeout_s` seconds at most. Raises KafkaError."""
    import asyncio

    from kcoord.client.admin.admin import Admin
    from kcoord.client.errors import RequestTimedOut

    async def run() -> T:
        admin = Admin(bootstrap, default_api_timeout=timeout_s, request_timeout=timeout_s)
        note = note_later(bootstrap, timeout_s)
        end_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(end_s + SPARE_S) as limit, admin:
                limit.reschedule(end_s)
                note.cancel()
                return await work(admin)
        except TimeoutError:
            raise RequestTimedOut(f"no result within {timeout_s:g} s (--timeout)") from None
        finally:
            note.cancel()

    return asyncio.run(run())


def note_later(bootstrap: str, timeout_s: float) -> asyncio.TimerHandle:
    """Print after PATIENCE_S that no broker has answered yet. Cancel it when one has."""
    import asyncio

    text = f"no answer from {bootstrap} yet; still trying (--timeout {timeout_s:g})"
    return asyncio.get_running_loop().call_later(PATIENCE_S, warn, text)


def watch_options(command: F) -> F:
    """--watch and --times, as the arguments `watch` and `times`."""
    watch = click.option(
        "--watch", "-w", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
        help="Print again every SECONDS, until Ctrl-C.",
    )  # fmt: skip
    times = click.option("--times", type=click.IntRange(min=1), metavar="N", help="With --watch: print N times.")
    return watch(times(command))


def watching(watch: float | None, times: int | None, show: Callable[[], None]) -> None:
    """Call `show` once, or again and again. On a terminal each time begins with an empty screen."""
    if watch is None:
        if times is not None:
            raise click.UsageError("--times is for --watch only")
        show()
        return
    # Not the range of the option: that lets NaN pass.
    if not watch <= WATCH_S_MAX:
        raise click.UsageError(f"--watch {watch:g}: give at most {WATCH_S_MAX:g} seconds")
    import time

    done = 0
    while True:
        if sys.stdout.isatty():
            click.clear()
        show()
        sys.stdout.flush()
        done += 1
        if done == times:
            return
        time.sleep(watch)
