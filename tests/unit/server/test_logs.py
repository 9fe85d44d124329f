"""What the server prints."""

from __future__ import annotations

import io
import json

from kcoord.core.outcome import BUG, ERROR, INFO, LIMIT, PEER, WARNING, Fact
from kcoord.server.logs import LINES_PER_TURN_MAX, ServerLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_kept_until_the_renderer_is_loaded() -> None:
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
    log.facts([Fact(INFO, "group_stable", {"group": "g"}), Fact(INFO, "group_stable", {"group": "h"})])
    assert [line["group"] for line in lines(stream) if line["event"] == "group_stable"] == ["g", "h"]


def test_a_line_names_the_party_at_fault() -> None:
    stream = io.StringIO()
    log = ServerLog(stream, "json")
    log.open()
    log.facts(
        [
            Fact(ERROR, "internal_error", {"reason": "a bug"}, BUG),
            Fact(WARNING, "connection_refused", {"reason": "garbage"}, PEER),
            Fact(WARNING, "records_refused", {"reason": "too many"}, LIMIT),
            Fact(INFO, "group_stable", {"group": "g"}),
        ]
    )
    log.error_limited("internal_error", kind=BUG, client="c")
    assert [(line["level"], line["event"], line.get("kind")) for line in lines(stream)] == [
        ("error", "internal_error", "bug"),
        ("warning", "connection_refused", "peer"),
        ("warning", "records_refused", "limit"),
        ("info", "group_stable", None),
        ("error", "internal_error", "bug"),
    ]


def test_one_turn_writes_only_so_many_lines_of_a_kind() -> None:
    """10,000 members may leave with one request; the rest of the turn is not for writing that down."""
    stream = io.StringIO()
    log = ServerLog(stream, "json")
    log.open()
    left = [Fact(INFO, "group_member_left", {"member": number}) for number in range(LINES_PER_TURN_MAX + 7)]
    log.facts([*left, Fact(WARNING, "disk_full", {})])
    found = lines(stream)
    events = [line["event"] for line in found]
    assert events == [*["group_member_left"] * LINES_PER_TURN_MAX, "disk_full", "lines_left_out"]
    assert (found[-1]["of"], found[-1]["lines"]) == ("group_member_left", 7)
    log.facts(left[:1])
    assert lines(stream)[-1]["event"] == "group_member_left"


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
