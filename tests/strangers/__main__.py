"""`make strangers`: polite clients at work beside strangers that misbehave, and the promises to the polite ones.

    python -m tests.strangers [--seconds N] [--seed S] [--action NAME]... [--output json]
        [--kill-every S] [--keep FOLDER] [--set NAME=VALUE]...

The first broken promise ends the run, with exit code 1 and the seed. This tests the tree that is imported: `make
strangers` puts the compiled one first if there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.strangers.ledger import percentiles
from tests.strangers.rogues import ACTIONS
from tests.strangers.search import KILL_EVERY_S, Search

# So many newcomers are listed one by one.
SLOWEST = 20


def figures(search: Search) -> dict[str, Any]:
    """What happened in a run."""
    ledger = search.ledger
    p50, p99, most = percentiles([one.seconds * 1000 for one in ledger.newcomers if not one.error])
    return {
        "seed": search.seed,
        "newcomers": len(ledger.newcomers),
        "newcomers_not_in": sum(1 for one in ledger.newcomers if one.error),
        "newcomers_p50_ms": round(p50, 1),
        "newcomers_p99_ms": round(p99, 1),
        "newcomers_max_ms": round(most, 1),
        "slowest_newcomers": [
            one._asdict() | {"during": ledger.during(one.began, one.began + one.seconds)}
            for one in sorted(ledger.newcomers, key=lambda one: -one.seconds)[:SLOWEST]
        ],
        "commits": ledger.counts["commits"],
        "rebalances_of_polite_groups": ledger.counts["rebalances of polite groups"],
        "membership_changes": ledger.changes,
        "errors_of_polite_clients": ledger.counts["errors of polite clients"],
        "memory_mb": {"start": round(search.start_mb), "most": round(search.most_mb), "end": round(search.end_mb)},
        "stop_s": round(search.stop_s, 1),
        "actions": dict(sorted(ledger.actions.items())),
        "made": {name[8:]: count for name, count in sorted(ledger.counts.items()) if name.startswith("made by ")},
        "log": {name[5:]: count for name, count in sorted(ledger.counts.items()) if name.startswith("log: ")},
        "violations": ledger.violations,
    }


def table(found: dict[str, Any]) -> str:
    memory = found["memory_mb"]
    lines = [
        f"newcomers      {found['newcomers']} came, {found['newcomers_not_in']} were not let in during a kill; "
        f"p50 {found['newcomers_p50_ms']} ms, p99 {found['newcomers_p99_ms']} ms, max {found['newcomers_max_ms']} ms",
        f"polite groups  {found['commits']} commits, {found['rebalances_of_polite_groups']} rebalances, "
        f"{len(found['membership_changes'])} changes of members, {found['errors_of_polite_clients']} errors",
        f"memory         {memory['start']} MB at the start, at most {memory['most']} MB, {memory['end']} MB at the end",
        "strangers      " + ", ".join(f"{name} {count}" for name, count in found["actions"].items()),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description=str(__doc__).splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long the strangers misbehave")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--action", choices=ACTIONS, action="append", help="only this; may be repeated")
    parser.add_argument("--kill-every", type=float, default=KILL_EVERY_S, help="seconds between kills, on average")
    parser.add_argument("--keep", type=Path, help="a new folder for the server's data and its log")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, a setting of the server")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if options.keep is not None:
            options.keep.mkdir(parents=True)
        search = Search(
            options.keep or Path(folder), options.seed, options.seconds, options.action, options.set, options.kill_every
        )
        violations = search.run()
    found = figures(search)
    if options.output == "json":
        print(json.dumps(found, indent=2))
        return 1 if violations else 0
    print(table(found))
    for text in violations:
        print(f"BROKEN: {text}")
    print(f"{len(violations)} broken promises, {time.monotonic() - began:.0f} s (seed {options.seed})")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
