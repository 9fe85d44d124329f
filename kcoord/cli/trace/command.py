"""The options of `kcoord trace`."""

from __future__ import annotations

import click

from kcoord.cli.online.run import CommandProblem, bootstrap_options, friendly, output_option, warn
from kcoord.cli.options import limit_option

LISTEN = "127.0.0.1:19092"


@click.command()
@bootstrap_options
@click.option("--listen", "-l", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Where clients connect.")
@click.option("--api", "apis", multiple=True, metavar="NAME", help="Only this API: JoinGroup, ...; repeatable.")
@click.option("--client-id", "client_ids", multiple=True, metavar="ID", help="Only this client; repeatable.")
@click.option("--errors-only", is_flag=True, help="Only responses with an error, and frames that cannot be decoded.")
@click.option("--full", is_flag=True, help="Print all fields in full, and the bytes of records.")
@limit_option("End after N lines; 0: no limit.")
@output_option
@friendly
def trace(
    bootstrap: str, listen: str, apis: tuple[str, ...], client_ids: tuple[str, ...], errors_only: bool, full: bool,
    limit: int | None, output: str,
) -> None:  # fmt: skip
    """Decode and print the requests and responses between clients and a cluster, until Ctrl-C.

    Clients connect to --listen instead of to the cluster. Each broker gets a listener of its own on one of the next
    ports. Responses name this listener instead of the broker, so that clients stay. Nothing else is changed. Frames
    that cannot be decoded, such as TLS, are passed on.

    \b
    Examples:
      kcoord trace
      kcoord trace -b kafka-1:9092 --client-id billing --api JoinGroup --api SyncGroup
      kcoord trace --errors-only -o json | jq .errors
    """
    import asyncio

    from kcoord.cli.trace.printer import Printer
    from kcoord.cli.trace.proxy import Proxy
    from kcoord.client.cluster import parse_bootstrap
    from kcoord.client.connection import reason_of
    from kcoord.server.settings.listeners import format_address, split_address

    try:
        _, host, port = split_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    brokers = parse_bootstrap(bootstrap)
    wanted = frozenset(known_api(name) for name in apis)

    async def run() -> None:
        printer = Printer(output, wanted, frozenset(client_ids), errors_only, full, limit or 0)
        proxy = Proxy(host, port, brokers, printer)
        try:
            await proxy.start()
        except OSError as error:
            raise CommandProblem(f"cannot listen on {listen}: {reason_of(error)}") from None
        address = format_address(host or "0.0.0.0", proxy.port)
        warn(f"{address} is in front of {bootstrap}; clients connect with bootstrap.servers={address}")
        await proxy.serve()

    asyncio.run(run())


def known_api(given: str) -> str:
    """The name of an API in any case of letters. Raises BadParameter."""
    from kcoord.protocol.apis import APIS

    names = {api.name.lower(): api.name for api in APIS.values()}
    if given.lower() not in names:
        from kcoord.cli.online.suggestions import suggestion

        raise click.BadParameter(f"{given!r} is not an API{suggestion(given, names.values())}", param_hint="--api")
    return names[given.lower()]
