"""Writes tests/golden/messages.jsonl.gz: bytes of every message in every version, made by Kafka's Java codec.

    python -m tests.golden.make_golden

Each line is an array [message, version, style, json, hex]: the content in the JSON form of Kafka's JsonConverters as
Java reads it from the bytes, and the body's bytes in hex. The styles are those of schema_json.STYLES and what
schema_json.nullable_samples shows; the seed is fixed. kcoord's own encoder has no part in this.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from tests.harness import schema_json
from tests.interop.oracle import Oracle, OracleError

GOLDEN = Path(__file__).resolve().parent / "messages.jsonl.gz"
SEED = "golden 1"
RANDOM_PER_VERSION = 3


def lines(oracle: Oracle) -> list[str]:
    """One line per message, version and style."""
    cases = []
    for name, schema in sorted(schema_json.kafkas().items()):
        for version in schema.versions:
            rng = random.Random(f"{SEED} {name} {version}")
            for style in schema_json.STYLES:
                for _ in range(RANDOM_PER_VERSION if style == "random" else 1):
                    cases.append((name, version, style, schema_json.random_message(name, version, rng, style)))
            for shown, value in schema_json.nullable_samples(name, version):
                cases.append((name, version, shown, value))
    bodies = oracle.encode_many([(name, version, value) for name, version, _, value in cases])
    for body in bodies:
        if isinstance(body, OracleError):
            raise body
    pairs = [(case, body) for case, body in zip(cases, bodies, strict=True) if isinstance(body, bytes)]
    read_back = oracle.decode_many([(case[0], case[1], body) for case, body in pairs])
    made = [
        json.dumps([case[0], case[1], case[2], content, body.hex()], ensure_ascii=False, separators=(",", ":"))
        for (case, body), content in zip(pairs, read_back, strict=True)
    ]
    return list(dict.fromkeys(made))


def main() -> None:
    with Oracle() as oracle:
        made = lines(oracle)
    text = "".join(f"{line}\n" for line in made).encode()
    with GOLDEN.open("wb") as target, gzip.GzipFile("", "wb", 9, target, mtime=0) as packed:
        packed.write(text)
    print(f"{len(made)} messages, {len(text)} bytes, {GOLDEN.stat().st_size} packed")


if __name__ == "__main__":
    main()
