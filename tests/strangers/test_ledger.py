"""Each promise broken once: the ledger must say so. And what looks broken after a kill, and is not."""

from __future__ import annotations

import time

import pytest

from tests.strangers.ledger import KILL, PAUSE, Ledger, Span, percentiles
from tests.strangers.newcomers import Newcomer

GROUP = "polite-group"


def settled() -> Ledger:
    ledger = Ledger()
    ledger.asked(GROUP, 0, 5)
    ledger.acknowledged(GROUP, 0, 5)
    ledger.members(GROUP, frozenset({"a", "b"}), 100.0)
    ledger.is_settled = True
    return ledger


def with_interruption(kind: str, began: float, ended: float) -> Ledger:
    ledger = settled()
    ledger.interruptions.append(Span(kind, began, ended))
    return ledger


def test_what_was_committed_and_more_may_be_stored() -> None:
    ledger = settled()
    ledger.asked(GROUP, 0, 9)
    for found in (5, 9):
        ledger.stored(GROUP, 0, 5, found)
    ledger.check_invented()
    assert ledger.violations == []


def test_an_older_offset_is_noticed() -> None:
    ledger = settled()
    ledger.stored(GROUP, 0, ledger.promised(GROUP)[0], 4)
    assert ledger.violations == ["polite-group-0: offset 5 was committed, and 4 is stored"]


def test_an_offset_that_nobody_committed_is_noticed_at_the_end() -> None:
    ledger = settled()
    ledger.stored(GROUP, 0, 5, 6)
    assert ledger.violations == []
    ledger.check_invented()
    assert ledger.violations == ["polite-group-0: offset 6 was stored, and nobody committed more than 5"]


def test_a_lost_membership_is_noticed() -> None:
    ledger = settled()
    ledger.members(GROUP, frozenset({"b", "c"}), 200.0)
    assert ledger.violations == ["polite-group: members ['a'] lost their membership, and ['b', 'c'] are there"]


@pytest.mark.parametrize(("group", "violations"), [("polite-kcoord-classic", 1), ("polite-confluent-classic", 0)])
def test_librdkafka_may_take_longer_after_a_kill(group: str, violations: int) -> None:
    ledger = with_interruption(KILL, 10.0, 12.0)
    ledger.members(group, frozenset({"a"}), 11.0)
    ledger.members(group, frozenset({"b"}), 60.0)
    assert len(ledger.violations) == violations


@pytest.mark.parametrize(("kind", "violations"), [(KILL, 0), (PAUSE, 1)])
def test_only_a_kill_excuses_a_lost_membership_and_an_error(kind: str, violations: int) -> None:
    ledger = with_interruption(kind, 180.0, 181.0)
    ledger.members(GROUP, frozenset({"b", "c"}), 200.0)
    assert len(ledger.violations) == violations
    ledger.failed(GROUP, "UnknownMember", 182.0, 183.0)
    assert len(ledger.violations) == 2 * violations


def test_a_kill_excuses_nothing_for_ever() -> None:
    ledger = with_interruption(KILL, 10.0, 11.0)
    ledger.members(GROUP, frozenset({"b", "c"}), 200.0)
    assert len(ledger.violations) == 1


def test_while_groups_form_members_and_errors_may_come_and_go() -> None:
    ledger = settled()
    ledger.is_settled = False
    ledger.members(GROUP, frozenset({"c"}), 101.0)
    ledger.failed(GROUP, "RebalanceInProgress", 100.0, 101.0)
    assert ledger.violations == []


def test_a_library_may_give_up_early_but_no_answer_for_long_is_noticed() -> None:
    ledger = settled()
    ledger.failed(GROUP, "KafkaError{code=_TIMED_OUT}", 100.0, 104.0)
    assert ledger.violations == []
    assert ledger.counts["errors of polite clients"] == 1
    ledger.failed(GROUP, "KafkaError{code=_TIMED_OUT}", 100.0, 130.0)
    ledger.failed(GROUP, "KafkaError{code=_TRANSPORT}", 100.0, 104.0)
    assert len(ledger.violations) == 2


def test_newcomers_that_are_not_let_in_are_noticed_unless_the_server_was_down() -> None:
    refused = Newcomer(7, 100.0, 0.1, "connect", "ConnectionRefusedError", False)
    ledger = settled()
    ledger.newcomer(refused)
    assert ledger.violations == ["newcomer 7 after 0.1 s at connect: ConnectionRefusedError"]
    for began, ended, is_excused in ((99.0, 100.05, True), (98.0, 98.5, False), (99.0, float("inf"), True)):
        ledger = with_interruption(KILL, began, ended)
        ledger.newcomer(refused)
        assert (ledger.violations == []) is is_excused, (began, ended)


def test_an_interruption_counts_while_it_lasts() -> None:
    ledger = settled()
    with ledger.interruption(KILL):
        now = time.monotonic()
        assert ledger.is_excused(now, now)
    assert not ledger.is_excused(now + 1000.0, now + 1000.0)
    assert ledger.actions == {KILL: 1}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"event": "internal_error"}', {"event": "internal_error"}),
        ('{"event": "connection_aborted"}', {"event": "connection_aborted", "kind": "bug"}),
        ("Traceback (most recent call last):", None),
    ],
)
def test_bugs_in_the_servers_log_are_noticed(text: str, fields: dict[str, object] | None) -> None:
    ledger = settled()
    ledger.line(text, fields)
    assert len(ledger.violations) == 1
    assert text in ledger.violations[0]


def test_other_lines_are_counted() -> None:
    ledger = settled()
    ledger.line("", {"event": "connection_refused", "kind": "peer"})
    ledger.line("", {"event": "group_rebalanced", "group": GROUP})
    ledger.line("", {"event": "group_rebalanced", "group": "strange-1"})
    assert ledger.violations == []
    assert ledger.counts["log: connection_refused"] == 1
    assert ledger.counts["rebalances of polite groups"] == 1


def test_what_went_on_meanwhile() -> None:
    ledger = with_interruption(PAUSE, 10.0, 12.0)
    ledger.action_began("noise", 0)
    ledger.action_spans[0] = Span("noise", 11.0)
    assert ledger.during(9.0, 9.5) == []
    assert ledger.during(11.5, 13.0) == ["noise", "pause"]
    ledger.action_ended("noise", 0, 4)
    assert ledger.action_spans[0].ended < float("inf")
    assert ledger.counts["made by noise"] == 4


def test_percentiles() -> None:
    assert percentiles([]) == (0.0, 0.0, 0.0)
    assert percentiles([3.0]) == (3.0, 3.0, 3.0)
    assert percentiles([float(number) for number in range(200)]) == (100.0, 198.0, 199.0)
