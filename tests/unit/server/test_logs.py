"""What the server prints."""

from __future__ import annotations

import io
import json

import pytest

from kcoord.core.outcome import BUG, DEBUG, ERROR, INFO, LIMIT, PEER, WARNING, Fact
from kcoord.server.logs import (
    INFO_PER_SECOND_MAX,
    LINES_PER_TURN_MAX,
    TRACEBACK_MAX,
    WARNINGS_PER_SECOND_MAX,
    ServerLog,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_kept_until_the_log_is_opened() -> None:
    stream = io.StringIO()
    log = ServerLog(stream)
    log.info("first", number=1)
    assert stream.getvalue() == ""
    log.open()
    log.warning("second", text="a b")
    first, second = lines(stream)
    assert (first["event"], first["number"], first["level"]) == ("first", 1, "info")
    assert (second["event"], second["text"], second["level"]) == ("second", "a b", "warning")
    assert str(first["timestamp"]).endswith("Z")


def test_a_terminal_gets_lines_for_people() -> None:
    stream = Terminal()
    log = ServerLog(stream)
    log.info("started", port=1)
    log.open()
    assert "started" in stream.getvalue()
    assert "{" not in stream.getvalue()


def test_levels() -> None:
    stream = io.StringIO()
    log = ServerLog(stream, "json", "warning")
    log.open()
    log.info("left out")
    log.error("kept")
    assert [line["event"] for line in lines(stream)] == ["kept"]


def test_what_peers_choose_cannot_write_to_the_terminal() -> None:
    stream = Terminal()
    log = ServerLog(stream, "console")
    log.open()
    log.info("joined", client_id="\x1b[2Jevil\r\nfake line", raw=b"\xff", many=["\x07"] * 2, big="x" * 5000)
    printed = stream.getvalue()
    assert "\x1b[2J" not in printed and "\x07" not in printed and "\r" not in printed
    assert printed.count("\n") == 1
    assert "x" * 1001 not in printed


def test_a_line_that_peers_cause_comes_once_a_second() -> None:
    stream = io.StringIO()
    log = ServerLog(stream, "json")
    log.open()
    for _ in range(100):
        log.facts([Fact(WARNING, "connection_refused", {"reason": "garbage"})])
    assert 1 <= len(lines(stream)) <= 2
    log.facts([Fact(INFO, "group_rebalanced", {"group": "g"}), Fact(INFO, "group_rebalanced", {"group": "h"})])
    assert [line["group"] for line in lines(stream) if line["event"] == "group_rebalanced"] == ["g", "h"]


def test_a_line_names_the_party_at_fault() -> None:
    stream = io.StringIO()
    log = ServerLog(stream, "json")
    log.open()
    log.facts(
        [
            Fact(ERROR, "internal_error", {"reason": "a bug"}, BUG),
            Fact(WARNING, "connection_refused", {"reason": "garbage"}, PEER),
            Fact(WARNING, "records_refused", {"reason": "too many"}, LIMIT),
            Fact(INFO, "group_rebalanced", {"group": "g"}),
        ]
    )
    log.error_limited("internal_error", kind=BUG, client="c")
    assert [(line["level"], line["event"], line.get("kind")) for line in lines(stream)] == [
        ("error", "internal_error", "bug"),
        ("warning", "connection_refused", "peer"),
        ("warning", "records_refused", "limit"),
        ("info", "group_rebalanced", None),
        ("error", "internal_error", "bug"),
    ]


def at_second(monkeypatch: pytest.MonkeyPatch, second: float) -> None:
    monkeypatch.setattr("kcoord.server.logs.time.monotonic", lambda: second)


def test_one_second_writes_only_so_many_lines_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of groups may rebalance at once. They are counted, with why."""
    stream = io.StringIO()
    log = ServerLog(stream, "json")
    log.open()
    at_second(monkeypatch, 5.0)
    for turn in range(3):
        causes = ["member_left"] * INFO_PER_SECOND_MAX + ["session_timeout"] * 2
        log.facts([Fact(INFO, "group_rebalanced", {"group": turn, "cause": cause}) for cause in causes])
    log.facts([Fact(WARNING, "disk_full", {})])
    assert [line["event"] for line in lines(stream)] == [*["group_rebalanced"] * INFO_PER_SECOND_MAX, "disk_full"]
    at_second(monkeypatch, 6.0)
    log.note_left_out()
    log.note_left_out()
    log.facts([Fact(INFO, "group_rebalanced", {"group": 7, "cause": "member_left"})])
    left_out, again = lines(stream)[-2:]
    del left_out["timestamp"]
    assert left_out == {
        "level": "info", "event": "lines_left_out", "of": "group_rebalanced", "lines": 2 * INFO_PER_SECOND_MAX + 6,
        "member_left": 2 * INFO_PER_SECOND_MAX, "session_timeout": 6,
    }  # fmt: skip
    assert again["group"] == 7


def test_lines_that_are_left_out_at_the_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ServerLog(None)
    at_second(monkeypatch, 5.0)
    log.facts([Fact(INFO, "group_rebalanced", {})] * (INFO_PER_SECOND_MAX + 1))
    log.note_left_out()
    assert len(log.recent) == INFO_PER_SECOND_MAX
    log.note_left_out(is_end=True)
    assert (log.recent[-1]["event"], log.recent[-1]["lines"]) == ("lines_left_out", 1)


def test_more_warnings_than_other_lines_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ServerLog(None, level="warning")
    at_second(monkeypatch, 5.0)
    log.facts([Fact(WARNING, "log_damaged", {})] * (WARNINGS_PER_SECOND_MAX + 3))
    log.note_left_out(is_end=True)
    assert len(log.recent) == WARNINGS_PER_SECOND_MAX + 1
    assert log.recent[-1]["lines"] == 3 and log.recent[-1]["level"] == "warning"


def test_debug_lines_are_limited_by_turn() -> None:
    log = ServerLog(None, level="debug")
    for _ in range(2):
        log.recent.clear()
        log.facts([Fact(DEBUG, "request", {})] * (LINES_PER_TURN_MAX + 7))
        assert len(log.recent) == LINES_PER_TURN_MAX + 1
        assert (log.recent[-1]["of"], log.recent[-1]["lines"]) == ("request", 7)
    quiet = ServerLog(None)
    quiet.facts([Fact(DEBUG, "request", {})] * (LINES_PER_TURN_MAX + 7))
    assert not quiet.recent


def test_lines_on_a_terminal_are_short_and_have_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    log = ServerLog(stream)
    log.open()
    fields: dict[str, object] = {
        "group": "billing", "members": 3, "reason": 'a "bad" one', "empty": "", "many": ["a", "b c"], "is": True,
        "no": None,
    }  # fmt: skip
    log.facts([Fact(INFO, "group_rebalanced", fields)])
    line = stream.getvalue()
    assert line[12:] == (
        'Z info group_rebalanced group=billing members=3 reason="a \'bad\' one" empty="" many=a,"b c" is=yes no=none\n'
    )


def test_a_traceback_has_its_lines_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    trace = "Traceback:\n" + '  File "a.py"\n    call()\n' * 1000 + "ValueError: \x1b[2Jevil\n"
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        log = ServerLog(stream)
        log.open()
        log.error("internal_error", kind=BUG, traceback=trace)
    printed = terminal.getvalue().splitlines()
    assert printed[0].endswith("Z error internal_error kind=bug")
    assert printed[-2:] == ["        call()", "    ValueError: \\x1b[2Jevil"]
    (line,) = lines(file)
    assert str(line["traceback"]).endswith("    call()\nValueError: \\x1b[2Jevil")
    assert len(str(line["traceback"])) < TRACEBACK_MAX + 100


def test_colors_mark_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    log = ServerLog(stream)
    log.open()
    log.warning("disk_full")
    assert "\x1b[33;1mwarning\x1b[0m" in stream.getvalue()


def test_recent_lines_are_kept_without_a_stream() -> None:
    log = ServerLog(None)
    log.info("seen")
    log.open()
    assert [line["event"] for line in log.recent] == ["seen"]


def test_a_closed_stream_does_not_stop_the_server() -> None:
    stream = io.StringIO()
    log = ServerLog(stream, "json")
    log.open()
    stream.close()
    log.info("said to nobody")
    log.info("and again")
