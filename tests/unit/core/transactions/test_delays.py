"""Every order of delayed messages of a client on version 1: its transactions end as it decided."""

from __future__ import annotations

import itertools

from kcoord.protocol import errors
from tests.unit.core.transactions.transaction_rig import Rig

# The requests of three transactions: partitions to add, or the end.
SCRIPT: list[int | bool] = [0, 1, True, 1, False, 0, 2, True]
WANTED = [(0, True), (1, True), (1, False), (0, True), (2, True)]
# An end takes fewer commits than this.
RETRIES_MAX = 10


def deliver(rig: Rig, producer: tuple[int, int], step: int | bool, connection: int) -> int:
    """The error of one request. A request that ends a transaction is retried until that is over."""
    for _ in range(RETRIES_MAX):
        if isinstance(step, bool):
            error = rig.end(producer, step, connection=connection)[0]
        else:
            error = rig.add(producer, ("t", step), connection=connection)
        if error != errors.CONCURRENT_TRANSACTIONS:
            break
        rig.commit()
    return error


def run(lost: tuple[int, ...], arrivals: tuple[int, ...]) -> None:
    """The requests at positions `lost` do not arrive in time. The client reconnects and sends them again; the first
    copies come before the requests at positions `arrivals`, on their old connections.
    """
    rig = Rig({"t": 3})
    producer = rig.begin()
    connection = 10
    late: list[tuple[int, int | bool, int]] = []
    for position, step in enumerate(SCRIPT):
        for arrival, copy, old_connection in late:
            if arrival == position:
                deliver(rig, producer, copy, old_connection)
        if position in lost:
            late.append((arrivals[lost.index(position)], step, connection))
            connection += 1
        assert deliver(rig, producer, step, connection) == errors.NONE, (lost, arrivals, position)
    for arrival, copy, old_connection in late:
        if arrival == len(SCRIPT):
            deliver(rig, producer, copy, old_connection)
    rig.settle()
    ends = [(partition, is_commit) for _, partition, _, _, is_commit in rig.markers()]
    assert ends == WANTED, (lost, arrivals)


def test_no_delay_changes_how_a_transaction_ends() -> None:
    positions = range(len(SCRIPT))
    runs = 0
    for lost in itertools.chain([()], ((one,) for one in positions), itertools.combinations(positions, 2)):
        for arrivals in itertools.product(*(range(position + 1, len(SCRIPT) + 1) for position in lost)):
            run(lost, arrivals)
            runs += 1
    assert runs == 1 + 36 + sum((8 - a) * (8 - b) for a, b in itertools.combinations(range(8), 2))


def test_a_client_that_loses_every_connection_is_served() -> None:
    run(tuple(range(len(SCRIPT))), (len(SCRIPT),) * len(SCRIPT))
