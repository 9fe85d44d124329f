"""Writes tests/golden/broker/*.json: what a real Kafka 4.3 broker answers to the scripts of tests/harness.

    python -m tests.golden.make_broker_answers [SCRIPT ...]

One file per script. It is an object with "script" (the function in tests/harness/broker_scripts_*.py), "broker" and
"steps", a list in the order of sending:

    step        what is tried, in words
    api         name of the API, with "version", "request" and "response" in the JSON form of Kafka's JsonConverters:
                fields named as in schemas/ with the first letter in lower case, bytes and records in base64, uuids in
                unpadded URL-safe base64, tagged fields only where they differ from their default
    closed      true instead of a response: the broker closed the connection
    silent      true instead of a response: no answer, connection open (Produce with acks=0)
    api_key     instead of "api", for requests that no schema describes; bodies are "request_hex" and "response_hex"
                (the response header after the correlation id is part of response_hex)

What differs from run to run stands there as a symbol: <id of TOPIC>, <member-1>, <host>, <port>, <cluster id>,
<producer id>, <session id>, <now>.

Bytes are made and read by Kafka's Java codec, never by kcoord's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.harness import broker_scripts
from tests.harness.real_broker import RealBroker
from tests.harness.session import Session
from tests.interop.oracle import Oracle

ANSWERS = Path(__file__).resolve().parent / "broker"


def compact(steps: list[dict[str, Any]]) -> str:
    """A list with one step per line, so that differences read well."""
    lines = ",\n".join("  " + json.dumps(step, ensure_ascii=False) for step in steps)
    return f"[\n{lines}\n ]"


def write(script: str, steps: list[dict[str, Any]]) -> None:
    head = f'{{"script": "{script}", "broker": "Apache Kafka 4.3.1",\n "steps": '
    (ANSWERS / f"{script}.json").write_text(f"{head}{compact(steps)}}}\n", encoding="utf-8")


def main(only: list[str]) -> None:
    ANSWERS.mkdir(exist_ok=True)
    with Oracle() as oracle, RealBroker() as broker:
        for script in only or broker_scripts.SCRIPTS:
            steps = broker_scripts.run(script, Session("127.0.0.1", broker.port, oracle))
            write(script, steps)
            print(f"{script}: {len(steps)} steps", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
