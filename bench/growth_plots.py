"""The pictures of docs/performance.md, from the figures of `bench.growth`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import growth_families as families
from bench import plot


@dataclass(frozen=True)
class Picture:
    """`lines` are (name, family, figure)."""

    file: str
    title: str
    about: str
    x_title: str
    unit: str
    lines: tuple[tuple[str, str, str], ...]


PICTURES: Final = (
    Picture(
        "growth-groups.svg",
        "Requests, as the number of groups grows",
        "CPU time of OffsetCommit, OffsetFetch, Heartbeat and ConsumerGroupHeartbeat with more and more groups.",
        "groups with one member each",
        "request",
        (
            (families.COMMIT, "classic groups", families.COMMIT),
            ("OffsetCommit, ten of the groups", "classic groups", families.COMMIT + families.AGAIN),
            (families.FETCH, "classic groups", families.FETCH),
            (families.HEARTBEAT, "classic groups", families.HEARTBEAT),
            (families.CONSUMER_HEARTBEAT, "consumer groups", families.CONSUMER_HEARTBEAT),
        ),
    ),
    Picture(
        "growth-members.svg",
        "Requests, as the members of a group grow",
        "CPU time of Heartbeat, OffsetCommit and ConsumerGroupHeartbeat in a group with more and more members.",
        "members of the group",
        "request",
        (
            (families.HEARTBEAT, "classic members", families.HEARTBEAT),
            ("OffsetCommit, classic protocol", "classic members", families.COMMIT),
            (families.CONSUMER_HEARTBEAT, "consumer members", families.CONSUMER_HEARTBEAT),
            ("OffsetCommit, consumer protocol", "consumer members", families.COMMIT),
        ),
    ),
    Picture(
        "growth-offsets.svg",
        "Requests, as the stored offsets grow",
        "CPU time of OffsetCommit and OffsetFetch of one partition with more and more offsets, of one group or many.",
        "stored offsets",
        "request",
        (
            ("OffsetCommit, one group", "offsets of a group", families.COMMIT),
            ("OffsetFetch, one group", "offsets of a group", families.FETCH),
            ("OffsetCommit, 100 offsets in each group", "offsets of groups", families.COMMIT),
            ("OffsetFetch, 100 offsets in each group", "offsets of groups", families.FETCH),
        ),
    ),
    Picture(
        "growth-operations.svg",
        "Operations of a whole group, per member",
        "CPU time per member of the join of all, of one more member and of the expiry of all, for both protocols.",
        "members of the group",
        "member",
        tuple(
            (f"{figure.removesuffix(', per member')}, {protocol} protocol", f"{protocol} members", figure)
            for figure in (families.JOIN, families.REBALANCE, families.EXPIRY)
            for protocol in ("classic", "consumer")
        ),
    ),
    Picture(
        "growth-answers.svg",
        "Large answers and the start, per item",
        "CPU time per group of ListGroups, per member of both describe requests, and per offset of OffsetFetch and of"
        " the start.",
        "groups, members or offsets",
        "group, member or offset",
        (
            (families.LIST, "classic groups", families.LIST),
            (families.DESCRIBE, "classic members", families.DESCRIBE),
            (families.CONSUMER_DESCRIBE, "consumer members", families.CONSUMER_DESCRIBE),
            (families.FETCH_ALL, "offsets of a group", families.FETCH_ALL),
            (families.START, "offsets of a group", families.START),
        ),
    ),
)


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the pictures for which there are figures. Returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for picture in PICTURES:
        lines: list[plot.Line] = []
        for name, family, figure in picture.lines:
            costs = results["families"].get(family, {}).get(figure)
            if costs:
                lines.append(plot.Line(name, costs))
        if lines:
            y_title = f"µs of CPU per {picture.unit} ({results['tree']})"
            drawn = plot.draw(plot.Plot(picture.title, picture.about, picture.x_title, y_title, lines))
            path = folder / picture.file
            path.write_text(drawn, "utf-8")
            written.append(path)
    return written
