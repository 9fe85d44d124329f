"""A sample of the search through transactions, and bugs that it finds. They replace functions: interpreted."""

from __future__ import annotations

import pytest

from tests.explore.test_explorer import run

# Those that the first walks find.
QUICK = (
    "no_check_of_writes",
    "open_transactions_are_read",
    "ends_are_not_continued",
)


def test_walks_break_no_promise() -> None:
    ran = run("-P", "-m", "tests.explore.transactions", "--walks", "50", "--jobs", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "50 walks" in ran.stdout
    assert "0 violations" in ran.stdout


@pytest.mark.parametrize("name", QUICK)
def test_a_seeded_bug_is_found(name: str) -> None:
    ran = run("-P", "-m", "tests.explore.transaction_mutations", name)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert name in ran.stdout
