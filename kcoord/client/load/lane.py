"""One connection of the load generator: builds its requests, and counts and checks the answers. No I/O.

The generator must cost less than the server, or it would measure itself. So a request is written from prepared parts,
between which only the correlation id and a growing number (an offset) change. An answer is compared with an earlier one
that was decoded and found right. Only an answer that differs from it is decoded. Compiled where kcoord is.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.client.load.histogram import Histogram
from kcoord.wire.primitives import BytesWriter, read_i32_be, write_i32_be, write_i64_be

ANSWER_BYTES_MIN: Final = 8
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
CORRELATION_ID_MAX: Final = 0x3FFFFFFF
# After so many different answers without an error, no other becomes the one to compare with.
PATTERNS_MAX: Final = 100


class WrongAnswer(Exception):
    """The bytes of a connection are no answers to its requests. The connection cannot be used any more."""


@final
class Pattern:
    """What answers look like: `wants[i]` begins at byte `starts[i]`, and the whole frame has `size` bytes.

    The bytes between them, and those after the last one, may be any.
    """

    def __init__(self, size: int, starts: list[int], wants: list[bytes]) -> None:
        self.size = size
        self.starts = starts
        self.wants = wants
        self.head_bytes = starts[-1] + len(wants[-1]) if starts else size

    def fits(self, data: bytes, at: int) -> bool:
        """Whether the answer at a position of `data` has this pattern. Its first `head_bytes` must be there."""
        for number, want in enumerate(self.wants):
            if not data.startswith(want, at + self.starts[number]):
                return False
        return True


class Judge:
    """Looks at a whole answer, length prefix included. This one accepts all answers, and compares none."""

    def errors(self, frame: bytes) -> list[str]:
        """The names of what is wrong with it."""
        return []

    def pattern(self, frame: bytes) -> Pattern | None:
        """The pattern of answers like this one, None to look at each of them."""
        return None


@final
class Lane:
    """`parts` is a request, cut into pieces: the correlation id follows the first one, and a 64-bit number each
    further one except the last. The number grows by one with each request.
    """

    def __init__(self, parts: list[bytes], number: int, in_flight: int, judge: Judge) -> None:
        self.parts = parts
        self.number = number
        self.in_flight = in_flight
        self.judge = judge
        self.pattern: Pattern | None = None
        self.patterns = 0
        # When the request of each slot was sent, in nanoseconds. Answers come in the order of the requests.
        self.sent_ns: list[int] = [0] * in_flight
        self.next_id = 0
        self.due_id = 0
        self.next_slot = 0
        self.due_slot = 0
        self.waiting = 0
        self.stopping = True
        # The beginning of an answer, and how much of an answer that is known to be right is still to come.
        self.pending = b""
        self.rest = 0
        self.histogram = Histogram()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.errors: dict[str, int] = {}

    def reset(self) -> None:
        """Forget what was counted."""
        self.histogram = Histogram()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.errors = {}

    def begin(self, now_ns: int) -> bytes:
        """The bytes of the first requests."""
        self.stopping = False
        return self.requests(self.in_flight - self.waiting, now_ns)

    def requests(self, count: int, now_ns: int) -> bytes:
        """The next `count` requests."""
        writer = BytesWriter()
        parts = self.parts
        last = len(parts)
        for _ in range(count):
            writer.write(parts[0])
            write_i32_be(writer, self.next_id)
            writer.write(parts[1])
            for at in range(2, last):
                write_i64_be(writer, self.number)
                writer.write(parts[at])
            self.number += 1
            self.sent_ns[self.next_slot] = now_ns
            self.next_id = 0 if self.next_id >= CORRELATION_ID_MAX else self.next_id + 1
            self.next_slot = 0 if self.next_slot + 1 >= self.in_flight else self.next_slot + 1
        self.waiting += count
        self.sent_bytes += len(writer)
        return writer.getvalue()

    def received(self, data: bytes, now_ns: int) -> bytes:
        """Count the answers in what was received. Returns the bytes of the next requests.

        Raises WrongAnswer.
        """
        self.received_bytes += len(data)
        if self.pending:
            data = self.pending + data
            self.pending = b""
        answered = 0
        at = 0
        end = len(data)
        while at < end:
            if self.rest:
                taken = min(self.rest, end - at)
                at += taken
                self.rest -= taken
                if self.rest:
                    break
                self.histogram.add(now_ns - self.answered())
                answered += 1
                continue
            if end - at < ANSWER_BYTES_MIN:
                break
            size: int = read_i32_be(data, at) + 4
            if size < ANSWER_BYTES_MIN or size > ANSWER_BYTES_MAX:
                raise WrongAnswer(f"an answer of {size} bytes")
            if read_i32_be(data, at + 4) != self.due_id or not self.waiting:
                raise WrongAnswer("an answer to another request")
            pattern = self.pattern
            if pattern is not None and pattern.size == size:
                if end - at < pattern.head_bytes:
                    break
                if pattern.fits(data, at):
                    self.rest = size
                    continue
            if end - at < size:
                break
            self.look_at(data[at : at + size], now_ns)
            at += size
            answered += 1
        if at < end:
            self.pending = data[at:]
        if not answered or self.stopping:
            return b""
        return self.requests(answered, now_ns)

    def answered(self) -> int:
        """Take the oldest request off the list. Returns when it was sent."""
        sent = self.sent_ns[self.due_slot]
        self.due_slot = 0 if self.due_slot + 1 >= self.in_flight else self.due_slot + 1
        self.due_id = 0 if self.due_id >= CORRELATION_ID_MAX else self.due_id + 1
        self.waiting -= 1
        return sent

    def look_at(self, frame: bytes, now_ns: int) -> None:
        """Decode an answer that is not like the others."""
        sent = self.answered()
        errors = self.judge.errors(frame)
        if errors:
            for name in errors:
                self.errors[name] = self.errors.get(name, 0) + 1
            return
        self.histogram.add(now_ns - sent)
        if self.patterns < PATTERNS_MAX:
            self.patterns += 1
            self.pattern = self.judge.pattern(frame)
