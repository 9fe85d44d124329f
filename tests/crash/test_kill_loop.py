"""Two rounds of `make crash`, and a loss that it must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill_loop import LIBRARIES, Loop


# `.ci/run` runs the loop itself for longer (`make crash`).
@pytest.mark.nightly
def test_two_kills_under_three_client_libraries(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "data", 1)
    loop.run(2)
    assert loop.problems == []
    assert [client.library for client in loop.clients] == list(LIBRARIES)
    assert all(client.acknowledged()[0] and client.acknowledged()[1] > 0 for client in loop.clients)


def test_a_server_that_lost_its_log_is_noticed(tmp_path: Path) -> None:
    class Forgetting(Loop):
        def check(self, acknowledged: dict[str, tuple[dict[int, str], int]], when: str) -> None:
            # As if it had been told one record more than there is.
            records, committed = acknowledged["kill-aiokafka"]
            self.epochs = [("Stable", 1)]
            super().check({**acknowledged, "kill-aiokafka": ({**records, 10**9: "x"}, committed + 10**6)}, when)

    loop = Forgetting(tmp_path / "data", 1)
    loop.run(1)
    assert any("x lost" in text for text in loop.problems)
    assert any("committed" in text for text in loop.problems)
    assert any("the consumer group was" in text for text in loop.problems)
