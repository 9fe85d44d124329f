"""Kafka's Java codec as a Python object: JSON (in the form of Kafka's JsonConverters) to bytes and back.

One Java process serves any number of calls; batches are pipelined, so thousands of messages take about a second.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from tests.harness import java


class OracleError(Exception):
    """Kafka's codec refused the message; the text is the Java exception."""


class Oracle:
    """Context manager around the Java process, by default the codec's. Not for use from several threads."""

    def __init__(self, main_class: str = "Oracle") -> None:
        self._process = subprocess.Popen(
            java.command(main_class), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def raw(self, lines: Sequence[str]) -> list[str | OracleError]:
        """Answers of the Java side, in order; a refusal stands in the list as an `OracleError`."""
        feeder = threading.Thread(target=self._feed, args=(lines,))
        feeder.start()
        answers: list[str | OracleError] = []
        assert self._process.stdout is not None
        for line in lines:
            reply = self._process.stdout.readline()
            if not reply:
                raise OracleError(f"the Java process ended at {line[:200]!r}")
            status, _, text = reply.rstrip("\n").partition("\t")
            answers.append(text if status == "ok" else OracleError(f"{text} (for {line[:300]!r})"))
        feeder.join()
        return answers

    def _feed(self, lines: Iterable[str]) -> None:
        assert self._process.stdin is not None
        for line in lines:
            self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _one(self, line: str) -> str:
        answer = self.raw([line])[0]
        if isinstance(answer, OracleError):
            raise answer
        return answer

    def ask(self, word: str, question: Any) -> Any:
        """The answer to a question, both as JSON, of an oracle that is asked so."""
        return json.loads(self._one(f"{word}\t{json.dumps(question)}"))

    def encode(self, name: str, version: int, value: Any) -> bytes:
        """Bytes of the message `name`, body only."""
        return bytes.fromhex(self._one(f"encode\t{name}\t{version}\t{json.dumps(value)}"))

    def decode(self, name: str, version: int, body: bytes) -> Any:
        """JSON of the message `name`, body only; left-over bytes are an error."""
        return json.loads(self._one(f"decode\t{name}\t{version}\t{body.hex()}"))

    def encode_many(self, items: Iterable[tuple[str, int, Any]]) -> list[bytes | OracleError]:
        answers = self.raw([f"encode\t{name}\t{version}\t{json.dumps(value)}" for name, version, value in items])
        return [a if isinstance(a, OracleError) else bytes.fromhex(a) for a in answers]

    def decode_many(self, items: Iterable[tuple[str, int, bytes]]) -> list[Any]:
        answers = self.raw([f"decode\t{name}\t{version}\t{body.hex()}" for name, version, body in items])
        return [a if isinstance(a, OracleError) else json.loads(a) for a in answers]

    def apis(self) -> list[dict[str, Any]]:
        """Keys, version ranges and header versions of every API of the jar."""
        listing: list[dict[str, Any]] = json.loads(self._one("apis"))
        return listing
