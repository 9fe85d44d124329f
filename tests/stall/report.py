"""What was measured, beside the limits: a table or JSON."""

from __future__ import annotations

from typing import Any, Final

from kcoord.wire.native import is_compiled
from tests.stall.crowd import Held
from tests.stall.rig import Cost
from tests.stall.server_rig import Visit

# CPU of one turn of the event loop, native code. Whoever waits, waits for a few of them.
TURN_MS_MAX: Final = 50.0
# The same for interpreted code, which takes about five times as long.
INTERPRETED_TURN_MS_MAX: Final = 300.0
# Between a ping and its answer: some turns, the time that a job keeps the interpreter's lock, and other processes.
PING_MS_MAX: Final = 250.0
# The most characters of a name in a line.
NAME_CHARS: Final = 60
OK: Final = "ok"


def turn_ms_max() -> float:
    return TURN_MS_MAX if is_compiled() else INTERPRETED_TURN_MS_MAX


class Row:
    """One frame or scenario. None: it was not measured that way. `burst`: many copies of the frame at once."""

    def __init__(
        self,
        name: str,
        frame_bytes: int,
        cost: Cost | None = None,
        visit: Visit | None = None,
        held: Held | None = None,
        burst: Cost | None = None,
    ) -> None:
        self.name = name
        self.bytes = frame_bytes
        self.cost = cost
        self.visit = visit
        self.held = held
        self.burst = burst

    def problems(self) -> list[str]:
        """What is beyond its limit."""
        found = []
        cost, visit, held = self.cost, self.visit, self.held
        if cost is not None:
            if cost.error:
                found.append(cost.error.strip().splitlines()[-1])
            elif cost.longest_ms > turn_ms_max():
                found.append(f"turn > {turn_ms_max():.0f} ms")
            if cost.close_reason.startswith("internal error"):
                found.append(cost.close_reason)
        burst = self.burst
        if burst is not None and (burst.error or burst.longest_ms > turn_ms_max()):
            found.append(f"many at once: {burst.error or f'turn > {turn_ms_max():.0f} ms'}")
        ping_ms = visit.ping_ms if visit is not None else held.ping_ms if held is not None else 0.0
        if ping_ms > PING_MS_MAX:
            found.append(f"ping > {PING_MS_MAX:.0f} ms")
        outcome = visit.outcome if visit is not None else held.outcome if held is not None else ""
        if outcome and ("no answer" in outcome or "ended" in outcome or "ping" in outcome or "bound" in outcome):
            found.append(outcome)
        if held is not None and held.grown_mb > held.bound_mb:
            found.append(f"memory > {held.bound_mb:.0f} MB")
        return found

    def as_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name, "bytes": self.bytes, "problems": self.problems()}
        if self.cost is not None:
            out["engine"] = _cost_as_dict(self.cost)
        if self.burst is not None:
            out["burst"] = _cost_as_dict(self.burst)
        if self.visit is not None:
            out["server"] = dict(vars(self.visit))
        if self.held is not None:
            out["crowd"] = dict(vars(self.held))
        return out

    def line(self) -> str:
        cost, visit, held = self.cost, self.visit, self.held
        cells = [f"{self.name[:NAME_CHARS]:<{NAME_CHARS}}", f"{_size(self.bytes):>6}"]
        cells.append(_cells([cost.cpu_ms, cost.longest_ms] if cost is not None else None, 2))
        cells.append(_cells([self.burst.longest_ms] if self.burst is not None else None, 1))
        cells.append(_cells([cost.job_ms] if cost is not None else None, 1))
        cells.append(f"{_size(cost.answer_bytes) if cost is not None else '':>6}")
        ping = visit.ping_ms if visit is not None else held.ping_ms if held is not None else None
        cells.append(_cells([ping] if ping is not None else None, 1))
        verdict = self.problems() or [OK if cost is None or not cost.jobs_ms else "ok, job"]
        if held is not None:
            verdict.insert(0, f"{held.grown_mb:,.0f} of {held.bound_mb:,.0f} MB")
        return " ".join(cells) + "  " + "; ".join(verdict)


def _cost_as_dict(cost: Cost) -> dict[str, Any]:
    return {
        "cpu_ms": round(cost.cpu_ms, 2),
        "longest_turn_ms": round(cost.longest_ms, 2),
        "turns": len(cost.turns_ms),
        "job_ms": round(cost.job_ms, 2),
        "job_step_ms": round(cost.step_ms, 2),
        "answer_bytes": cost.answer_bytes,
        "memory_mb": round(cost.memory_mb, 1),
        "close_reason": cost.close_reason,
        "error": cost.error,
    }


def _cells(values: list[float] | None, count: int) -> str:
    if values is None:
        return " ".join([" " * 7] * count)
    return " ".join(f"{value:>7,.0f}" if value >= 10 else f"{value:>7.1f}" for value in values)


def _size(count: int) -> str:
    for unit in ("", "k", "M", "G"):
        if count < 1000 or unit == "G":
            return f"{count:.0f}{unit}" if unit == "" or count >= 10 else f"{count:.1f}{unit}"
        count /= 1000  # type: ignore[assignment]
    return str(count)


def header() -> str:
    tree = "native" if is_compiled() else "interpreted"
    limits = f"{tree} code; at most {turn_ms_max():.0f} ms of CPU in one turn, {PING_MS_MAX:.0f} ms for a ping"
    times = " ".join(f"{name:>7}" for name in ("CPU ms", "turn ms", "burst", "jobs ms"))
    return f"{limits}\n{'frame':<{NAME_CHARS}} {'bytes':>6} {times} {'answer':>6} {'ping ms':>7}"
