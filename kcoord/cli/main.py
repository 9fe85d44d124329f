"""The `kcoord` command. Commands import their modules when they run, so that `kcoord serve` starts quickly."""

from __future__ import annotations

import gc

# What is imported is no garbage, and looking for some takes 5 to 10 ms, here and in `serve`.
COLLECTS = gc.isenabled()
gc.disable()

import os
import sys
from typing import TYPE_CHECKING, Final

import click

from kcoord import __version__
from kcoord.cli.lazy import LazyGroup
from kcoord.cli.settings_options import EXIT_CONFIG, load_settings, settings_options

if COLLECTS:
    # Otherwise the first collection would go through all of it at once.
    gc.freeze()
    gc.enable()

if TYPE_CHECKING:
    from kcoord.testing.state.seed import Seed

HEALTH_TIMEOUT_S: Final = 3.0
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
ADDRESS: Final = "[NAME://]HOST:PORT"

output_option = click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)


@click.group(
    cls=LazyGroup,
    lazy={
        "bench": ("kcoord.cli.bench:bench", "Measure kcoord or a Kafka cluster."),
        "configs": ("kcoord.cli.configs:configs", "Print and change configs of topics, brokers and groups."),
        "consume": ("kcoord.cli.consume:consume", "Print the records of topics."),
        "groups": ("kcoord.cli.groups:groups", "List, describe, reset and delete groups."),
        "log": ("kcoord.cli.log:log", "Inspect and repair a data directory."),
        "pipeline": ("kcoord.cli.pipeline:pipeline", "Turn whole logs into tables and reports, with Spark."),
        "produce": ("kcoord.cli.produce:produce", "Write lines or JSON as records to a topic."),
        "topics": ("kcoord.cli.topics:topics", "List, describe, create, change and delete topics."),
        "trace": ("kcoord.cli.trace.command:trace", "Decode the requests of clients and the responses."),
        "transactions": ("kcoord.cli.transactions:transactions", "List, describe and abort transactions."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="kcoord", message="%(prog)s %(version)s")
def main() -> None:
    """A small Kafka-compatible broker, and tools for Kafka clusters and their logs."""


@main.command(short_help="Run the server.")
@click.option("--listen", "-l", multiple=True, metavar=ADDRESS, help="Address to listen on; repeatable. Port 0 is any.")
@click.option("--advertise", multiple=True, metavar=ADDRESS, help="Address to advertise to clients, per listener.")
@click.option("--data", "-d", default=None, metavar="DIR", help="The data directory (default: data).")
@settings_options
@click.option("--profile", default="", metavar="NAME", help="A set of predefined settings: test.")
@click.option("--control", default="", metavar="HOST:PORT", help="An HTTP listener for tests (docs/testing.md).")
@click.option("--exit-with-parent", is_flag=True, help="Stop when the parent process ends.")
@click.option("--seed", default="", metavar="FILE", help="YAML or JSON: initial topics, records and offsets.")
def serve(
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    data: str | None,
    config_file: str,
    assignments: tuple[str, ...],
    profile: str,
    control: str,
    exit_with_parent: bool,
    seed: str,
) -> None:
    """Run the server until SIGTERM. Prints `kcoord ready HOST:PORT` once it accepts connections.

    With --control it first prints `kcoord control URL TOKEN`.

    --seed creates topics with records and commits offsets of groups before the server accepts connections. It leaves
    existing topics alone, and groups that have offsets. docs/testing.md has an example.
    """
    # Until the server has started.
    gc.disable()
    from kcoord.server.logs import ServerLog
    from kcoord.server.settings.listeners import format_address

    # Before anything that takes time: the parent may end at any moment.
    parent = os.getppid()
    if control:
        assignments = (*assignments, f"control.listen={control}")
    config = load_settings(
        config_file=config_file, environ=os.environ, assignments=assignments, listen=listen,
        advertise=advertise, data=data, profile=profile,
    )  # fmt: skip
    from kcoord.server.main import run

    def say(text: str) -> None:
        try:
            print(text, flush=True)
        except OSError:
            pass  # standard output is closed; clients can still connect

    def announce(host: str, port: int) -> None:
        say(f"kcoord ready {format_address(host, port)}")

    first = _load_seed(seed) if seed else None
    is_orphan = (lambda: os.getppid() != parent) if exit_with_parent else None
    log = ServerLog(sys.stderr, config.server.logging_format, config.server.logging_level)
    if config.server.control_listen:
        from kcoord.testing.standalone import run as run_with_controls

        def announce_control(url: str, token: str) -> None:
            say(f"kcoord control {url} {token}")

        gc.enable()
        sys.exit(run_with_controls(config, log, announce, announce_control, is_orphan, first))
    prepare = None
    if first is not None:
        from kcoord.testing.state.seeding import Sower

        prepare = Sower(first)
    sys.exit(run(config, log, announce, is_orphan, prepare))


def _load_seed(path: str) -> Seed:
    """Read a seed; exits if it has a mistake."""
    from kcoord.testing.state.seed import SeedError, load_seed

    try:
        return load_seed(path)
    except SeedError as error:
        click.echo(f"kcoord: {error}", err=True)
        sys.exit(EXIT_CONFIG)


@main.command(short_help="Check whether a server responds.")
@click.option("--bootstrap", "-b", default="", metavar="HOST:PORT", help="Default: where `kcoord serve` listens.")
@click.option(
    "--timeout", default=HEALTH_TIMEOUT_S, show_default=True, metavar="SECONDS", help="How long to wait for an answer."
)
@output_option
def health(bootstrap: str, timeout: float, output: str) -> None:
    """Check whether a server responds. The exit code is 0 if it does, otherwise 1.

    Without --bootstrap it asks the first listener of the same KCOORD_* variables that a server reads.
    """
    from kcoord.server.probe import Probe, ProbeError

    bootstrap = bootstrap or _own_address()
    error = ""
    count = 0
    try:
        with Probe(bootstrap, timeout_s=timeout) as probe:
            count = probe.ping()
    except (ProbeError, ValueError) as problem:
        error = str(problem)
    if output == "json":
        import json

        click.echo(json.dumps({"bootstrap": bootstrap, "healthy": not error, "apis": count, "error": error or None}))
    elif error:
        click.echo(f"kcoord: {bootstrap} is not healthy: {error}", err=True)
    else:
        click.echo(f"{bootstrap} is healthy and serves {count} APIs")
    sys.exit(1 if error else 0)


def _own_address() -> str:
    """Where a server with this environment can be reached from here."""
    if not any(name.startswith("KCOORD_") for name in os.environ):
        return DEFAULT_BOOTSTRAP
    from kcoord.server.settings.listeners import format_address

    listener = load_settings(environ=os.environ).listeners[0]
    if not listener.port:
        click.echo("kcoord: the port of the server is not known (KCOORD_LISTEN): give it with --bootstrap", err=True)
        sys.exit(1)
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)
    return format_address(host, listener.port)


@main.command(short_help="Print the version.")
@output_option
def version(output: str) -> None:
    """Print the version, and whether the hot modules are native code."""
    from kcoord.wire.native import is_compiled

    code = "compiled" if is_compiled() else "interpreted"
    python = sys.version.split()[0]
    if output == "json":
        import json

        click.echo(json.dumps({"kcoord": __version__, "code": code, "python": python}))
    else:
        click.echo(f"kcoord {__version__} ({code}, Python {python})")


@main.command(short_help="Print a script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    \b
    Examples:
      kcoord completion bash > ~/.local/share/bash-completion/completions/kcoord
      kcoord completion fish > ~/.config/fish/completions/kcoord.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "kcoord", "_KCOORD_COMPLETE").source())


@main.command(short_help="List the settings of the server.")
@click.option(
    "--output", "-o", type=click.Choice(["table", "json", "csv", "markdown"]), default="table", show_default=True,
    help="How the settings are printed.",
)  # fmt: skip
def config(output: str) -> None:
    """List every setting with its default. `markdown` prints docs/configuration.md."""
    from kcoord.cli import settings_listing

    click.echo(getattr(settings_listing, f"as_{output}")(), nl=output != "markdown")


if __name__ == "__main__":
    main()
