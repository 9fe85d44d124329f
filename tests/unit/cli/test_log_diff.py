"""`kcoord log diff`: what appeared, moved and went between two points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcoord.cli.log.past.diff import diff_group
from tests.unit.cli.rig import OFFSETS, START_MS, LogRig, assignment, run, run_json, stopped


def changes(*arguments: str | Path) -> dict[str, Any]:
    return {group["group"]: group for group in run_json("diff", *arguments)["groups"]}


def offsets(group: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(o["topic"], o["partition"], o["change"], o["from"], o["to"], o["by"]) for o in group["offsets"]]


def test_from_nothing_to_the_end(tmp_path: Path) -> None:
    document = run_json("diff", stopped(tmp_path), "0")
    assert document["from"]["logs"][1] == {
        "log": OFFSETS, "offset": 0, "timestamp": None, "timestamp_ms": -1,
    }  # fmt: skip
    assert document["to"]["point"] == "end" and document["to"]["logs"][1]["offset"] == 10
    # The group that came and went in between is in neither state.
    [workers] = document["groups"]
    assert workers["group"] == "workers" and workers["change"] == "appeared"
    assert offsets(workers) == [("orders", 0, "appeared", None, 2, None), ("orders", 1, "appeared", None, 7, None)]


def test_offsets_that_move_and_rewind(tmp_path: Path) -> None:
    stopped(tmp_path)
    assert offsets(changes(tmp_path, "5", "6")["workers"]) == [("orders", 0, "moved", 5, 9, 4)]
    assert offsets(changes(tmp_path, "6", "7")["workers"]) == [("orders", 0, "rewound", 9, 2, -7)]
    assert offsets(changes(tmp_path, "5", "7")["workers"]) == [("orders", 0, "rewound", 5, 2, -3)]
    backwards = offsets(changes(tmp_path, "7", "5")["workers"])
    assert backwards == [("orders", 0, "moved", 2, 5, 3)]
    assert list(changes(tmp_path, "5", "6", "--rewinds")) == []
    assert list(changes(tmp_path, "6", "--rewinds")) == ["workers"]


def test_groups_that_went(tmp_path: Path) -> None:
    found = changes(stopped(tmp_path), f"@{START_MS + 6500}")
    assert list(found) == ["report"]
    assert found["report"]["change"] == "went"
    assert offsets(found["report"]) == [("orders", 0, "went", 10, None, None)]


def test_members_and_generations(tmp_path: Path) -> None:
    stopped(tmp_path)
    state = run_json("state", tmp_path, "--as-of", "3", "-g", "workers")
    member_id = state["groups"][0]["members"][0]["member_id"]
    joined = changes(tmp_path, "2", "3")["workers"]
    assert joined["members_joined"] == [member_id] and joined["members_left"] == []
    assert joined["fields"]["generation"] == {"from": 0, "to": 1}
    assert joined["fields"]["state"] == {"from": "Empty", "to": "Stable"}
    assert joined["fields"]["leader"] == {"from": None, "to": member_id}
    left = changes(tmp_path, "7", "8")["workers"]
    assert left["members_left"] == [member_id] and left["fields"]["generation"] == {"from": 1, "to": 2}
    assert left["offsets"] == []


def test_nothing_changed(tmp_path: Path) -> None:
    result = run("diff", stopped(tmp_path), "end", "end", "--exit-code")
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "0 groups changed"
    assert run("diff", tmp_path, "5", "--exit-code").exit_code == 1
    assert run("diff", tmp_path, "5").exit_code == 0
    assert run("diff", tmp_path, "5", "-g", "nobody", "--exit-code").exit_code == 0


def test_metadata_alone(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.create("orders", 1, 0)
    rig.commit("g", 1, "one", orders_0=4)
    rig.commit("g", 2, "two", orders_0=4)
    rig.commit("g", 3, "two", orders_0=4)
    rig.stop()
    assert offsets(changes(tmp_path, "1", "2")["g"]) == [("orders", 0, "changed", 4, 4, None)]
    assert changes(tmp_path, "2", "3") == {}


def test_the_table(tmp_path: Path) -> None:
    result = run("diff", stopped(tmp_path), "6", "8")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and max(map(len, lines)) <= 80
    assert lines[0] == f"from {OFFSETS} below offset 6 (2025-10-09T08:53:24.000Z)"
    assert lines[1] == f"to   {OFFSETS} below offset 8 (2025-10-09T08:53:26.000Z)"
    assert "workers: changed" in lines and "  generation 1 -> 2" in lines
    assert ["orders", "0", "9", "2", "-7", "REWOUND"] in [line.split() for line in lines]
    assert lines[-1] == "1 group changed"


def test_assignments_are_compared(tmp_path: Path) -> None:
    def group(data: bytes) -> dict[str, Any]:
        member = {"member_id": "m", "assignment": data}
        fields = {"state": "Stable", "protocol_type": "consumer", "protocol": "range", "generation": 3, "leader": "m"}
        return {**fields, "members": [member], "offsets": []}

    found = diff_group("g", group(assignment("t", 0)), group(assignment("t", 0, 1)))
    assert found is not None and found["members_reassigned"] == ["m"] and found["fields"] == {}
    assert diff_group("g", group(b"x"), group(b"x")) is None
