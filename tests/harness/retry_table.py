"""The tables of docs/client-retries.md: which cases there are, and what the page says of each client.

The page is what the tests expect. `python -m tests.harness.retry_table` runs all cases and writes the tables anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kcoord.testing.fixture import KcoordServer
from tests.harness.retries import (
    ACCIDENTS,
    ANSWER_LOST,
    CLASSIC,
    CONSUMER,
    CUT_AFTER,
    CUT_BEFORE,
    FIRST,
    NATURAL,
    SETTINGS,
    TRANSACTION,
    Case,
    Client,
    run,
)

PAGE: Final = Path(__file__).parents[2] / "docs" / "client-retries.md"
TITLES: Final = {CLASSIC: "## Classic groups", CONSUMER: "## Consumer groups (KIP-848)", TRANSACTION: "## Transactions"}
COLUMNS: Final = {"librdkafka": "librdkafka", "aiokafka": "aiokafka", "kcoord": "kcoord.client", "java": "Java"}
NONE: Final = "-"
# Cases that run at a time.
PARALLEL: Final = 32

COORDINATOR: Final = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
# A broker answers Heartbeat while the coordinator loads.
LOADED: Final = ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
FIND: Final = ("COORDINATOR_NOT_AVAILABLE", CUT_BEFORE)
MEMBER: Final = ("REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
IN_TRANSACTION: Final = (*COORDINATOR, "CONCURRENT_TRANSACTIONS")
MISSING: Final = "UNKNOWN_TOPIC_OR_PARTITION"

FAULTS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    CLASSIC: {
        "FindCoordinator": FIND,
        "JoinGroup": (*COORDINATOR, NATURAL, "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", CUT_BEFORE),
        "SyncGroup": (*COORDINATOR, *MEMBER, CUT_BEFORE),
        "Heartbeat": (*LOADED, *MEMBER, CUT_BEFORE),
        "OffsetFetch": (*COORDINATOR, "UNSTABLE_OFFSET_COMMIT", CUT_BEFORE),
        "OffsetCommit": (*COORDINATOR, MISSING, *MEMBER, *ACCIDENTS),
        "LeaveGroup": (*COORDINATOR, "UNKNOWN_MEMBER_ID", CUT_BEFORE),
    },
    CONSUMER: {
        "FindCoordinator": FIND,
        f"ConsumerGroupHeartbeat{FIRST}": (*COORDINATOR, CUT_BEFORE),
        "ConsumerGroupHeartbeat": (*COORDINATOR, "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", CUT_BEFORE),
        "OffsetFetch": (*COORDINATOR, "UNSTABLE_OFFSET_COMMIT", "UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH", CUT_BEFORE),
        "OffsetCommit": (*COORDINATOR, MISSING, "UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH", *ACCIDENTS),
    },
    TRANSACTION: {
        "FindCoordinator": FIND,
        "InitProducerId": (*IN_TRANSACTION, CUT_BEFORE, CUT_AFTER),
        "AddPartitionsToTxn": (*IN_TRANSACTION, MISSING, CUT_BEFORE, CUT_AFTER),
        "AddOffsetsToTxn": (*IN_TRANSACTION, CUT_BEFORE, CUT_AFTER),
        "TxnOffsetCommit": (*COORDINATOR, MISSING, "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", *ACCIDENTS),
        "EndTxn": (*IN_TRANSACTION, CUT_BEFORE, CUT_AFTER, ANSWER_LOST),
    },
}
# Clients that know transaction version 2 send these to older brokers only.
OLDER_APIS: Final = ("AddPartitionsToTxn", "AddOffsetsToTxn")
OLDER_RELEASE: Final = "3.9"


def cases(client: str) -> list[Case]:
    """Those that a broker can put this client into."""
    every = [
        Case(client, protocol, api, fault)
        for protocol, apis in FAULTS.items()
        for api, faults in apis.items()
        for fault in faults
    ]
    return [case for case in every if _is_possible(case)]


def _is_possible(case: Case) -> bool:
    if case.client == "aiokafka":
        # It has no KIP-848, and its OffsetFetch does not ask for stable offsets.
        return case.protocol != CONSUMER and case.fault != "UNSTABLE_OFFSET_COMMIT"
    if case.protocol == CONSUMER and case.api == "OffsetFetch":
        # Only Java's client names the member there.
        return case.client == "java" or case.fault not in ("UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH")
    return True


def sample(clients: Iterable[str]) -> list[Case]:
    """One case for each thing that the page says of a client and an API, and every ambiguous commit: a few seconds."""
    said = read_page()
    chosen: dict[tuple[str, ...], Case] = {}
    for case in (case for client in clients for case in cases(client)):
        if _is_slow(case):
            continue
        different = case.fault if case.api == "OffsetCommit" and case.fault in ACCIDENTS else ""
        chosen.setdefault((case.client, case.protocol, case.api, said.get(case, ""), different), case)
    return list(chosen.values())


def _is_slow(case: Case) -> bool:
    """librdkafka waits for seconds that no setting changes."""
    return case.client == "librdkafka" and case.api == "JoinGroup" and case.fault not in (NATURAL, *ACCIDENTS)


async def run_all(wanted: Iterable[Case], clients: Mapping[str, Client]) -> dict[Case, str]:
    """What the clients do. A case that fails has the failure's text."""
    # aiokafka leaves futures with exceptions behind, and the event loop would log them.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    found: dict[Case, str] = {}
    limit = asyncio.Semaphore(PARALLEL)

    async def one(case: Case, server: KcoordServer) -> None:
        async with limit:
            try:
                found[case] = await run(server, clients[case.client], case)
            except AssertionError as e:
                found[case] = str(e)

    with KcoordServer(SETTINGS) as newest, KcoordServer(SETTINGS) as older:
        older.offer(OLDER_RELEASE)
        async with asyncio.TaskGroup() as tasks:
            for case in wanted:
                tasks.create_task(one(case, older if case.api in OLDER_APIS else newest))
    return found


# --- the page


def read_page() -> dict[Case, str]:
    """What the page says of each case."""
    said: dict[Case, str] = {}
    protocol = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            protocol = next((name for name, title in TITLES.items() if line == title), "")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not protocol or not line.startswith("| `"):
            continue
        for fault in cells[1].split(", "):
            for client, text in zip(COLUMNS, cells[2:], strict=True):
                if text != NONE:
                    said[Case(client, protocol, cells[0].replace("`", ""), fault.replace("`", ""))] = text
    return said


def differences(found: Mapping[Case, str]) -> str:
    """A line for each case in which a client does not do what the page says."""
    said = read_page()
    lines = [f"{case}: {text!r}, not {said.get(case)!r}" for case, text in found.items() if text != said.get(case)]
    return "\n".join(lines)


def table(protocol: str, found: Mapping[Case, str]) -> str:
    """A row for all errors of an API after which every client does the same."""
    lines = ["| request | error | " + " | ".join(COLUMNS.values()) + " |", "|---|---|" + "---|" * len(COLUMNS)]
    for api, faults in FAULTS[protocol].items():
        rows: dict[tuple[str, ...], list[str]] = {}
        for fault in faults:
            cells = tuple(found.get(Case(client, protocol, api, fault), NONE) for client in COLUMNS)
            rows.setdefault(cells, []).append(fault if fault in ACCIDENTS else f"`{fault}`")
        suffix = FIRST if api.endswith(FIRST) else ""
        name = f"`{api.removesuffix(FIRST)}`{suffix}"
        lines += [f"| {name} | {', '.join(same)} | {' | '.join(cells)} |" for cells, same in rows.items()]
    return "\n".join(lines)


def write_page(found: Mapping[Case, str]) -> None:
    """Replace the table of each section; all other text stays."""
    lines = PAGE.read_text().splitlines()
    for protocol, title in TITLES.items():
        start = next(number for number in range(lines.index(title), len(lines)) if lines[number].startswith("| "))
        end = next((number for number in range(start, len(lines)) if not lines[number].startswith("|")), len(lines))
        lines[start:end] = table(protocol, found).splitlines()
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> None:
    # Imported here: the tests of the other clients do not need Java.
    from tests.harness.retry_clients import CLIENTS
    from tests.interop.java_steps import Java, JavaSteps

    logging.disable()  # librdkafka and aiokafka log the errors
    with JavaSteps() as steps:
        clients = {**CLIENTS, "java": Java(steps)}
        found = asyncio.run(run_all([case for client in COLUMNS for case in cases(client)], clients))
    write_page(found)


if __name__ == "__main__":
    main()
