"""`make bench-growth` and `make profile`: small engines, made-up figures as pictures, shares of a flame graph."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench import flame, growth, growth_families, growth_plots, plot

SVG = "{http://www.w3.org/2000/svg}"
SIZES = ("2", "5")
PICTURE_BYTES_MAX = 30_000


def made_up(tree: str = "compiled") -> growth.Results:
    """Figures of every line of every picture."""
    families: dict[str, growth.Figures] = {}
    for picture in growth_plots.PICTURES:
        for number, (_, family, figure) in enumerate(picture.lines, 1):
            sizes = growth_families.FAMILIES[family].sizes
            families.setdefault(family, {})[figure] = {size: number * (1 + place) for place, size in enumerate(sizes)}
    return {"tree": tree, "families": families}


def test_every_family_gives_figures_of_small_engines(tmp_path: Path) -> None:
    # A process of its own: it collects garbage again and again, and a test run has a lot of it.
    words = ["--sizes", *SIZES, "--engines", "1", "--rounds", "1", "--requests", "40", "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench.growth", *words, "--plots", "plots"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    families = json.loads(done.stdout)["families"]
    assert list(families) == list(growth_families.FAMILIES)
    for figures in families.values():
        assert figures
        for costs in figures.values():
            assert tuple(costs) == SIZES and min(costs.values()) > 0
    # Nothing that a picture shows is missing.
    for picture in growth_plots.PICTURES:
        assert all(figure in families[family] for _, family, figure in picture.lines)
    assert len(list((tmp_path / "plots").glob("*.svg"))) == len(growth_plots.PICTURES)
    assert "consumer members: 5 members, 1 of 1" in done.stderr


def test_earlier_figures_are_shown_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "figures.json"
    saved.write_text(json.dumps(made_up()), "utf-8")
    for folder in ("a", "b"):
        assert growth.main(["--read", str(saved), "--plots", str(tmp_path / folder)]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "classic members: members" in shown and "10,000" in shown
    for picture in growth_plots.PICTURES:
        drawn = (tmp_path / "a" / picture.file).read_bytes()
        assert drawn == (tmp_path / "b" / picture.file).read_bytes()
        assert len(drawn) < PICTURE_BYTES_MAX
        lines = ET.fromstring(drawn).findall(f"{SVG}polyline")
        assert len(lines) == len(picture.lines)


def test_growth_is_that_between_the_last_two_sizes() -> None:
    assert growth.growth({1: 50.0, 10: 3.0, 100: 3.0}) == 0
    assert growth.growth({10: 1.0, 100: 10.0}) == pytest.approx(1.0)
    assert growth.growth({7: 1.0}) == 0
    # n log n is not steep, and quadratic operations are.
    assert not growth.is_steep({100: 2.0, 1_000: 3.0})
    assert growth.is_steep({100: 2.0, 1_000: 20.0})


def test_points_are_where_their_values_belong() -> None:
    drawn = plot.draw(plot.Plot("A", "about a", "x", "y", [plot.Line("one < two", {1: 0.1, 100: 10.0})]))
    root = ET.fromstring(drawn)
    points = root.findall(f"{SVG}polyline")[0].get("points", "").split()
    assert [point.split(",")[0] for point in points] == [f"{plot.LEFT:.1f}", f"{plot.WIDTH - plot.RIGHT:.1f}"]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "one < two" in texts and {"1", "10", "100", "0.1"} <= set(texts)


# As py-spy draws: a server that imports for 30 of 150 samples, and then works, and a thread that waits.
FLAMES = [
    ("all", 0, 0, 150),
    ("serve (kcoord/cli/main.py)", 1, 0, 130),
    ("_load (&lt;frozen importlib._bootstrap&gt;)", 2, 0, 30),
    ("run (kcoord/server/main.py)", 2, 30, 100),
    ("again (a.py)", 3, 30, 60),
    ("again (a.py)", 4, 30, 50),
    ("write (libc.so.6)", 5, 30, 20),
    ("write (libc.so.6)", 3, 90, 25),
    ("Thread.run (threading.py)", 1, 130, 20),
    ("PyThread_acquire_lock_timed (libpython.so)", 2, 130, 20),
    ("0x7f01 (libc.so.6)", 3, 130, 20),
]


def test_shares_of_a_flame_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [
        f'<g><title>{name} ({count:,} samples, {count / 1.5:.2f}%)</title><rect x="1%" y="{36 + 16 * depth}" '
        f'width="1%" height="15" fill="rgb(1,2,3)" fg:x="{begin}" fg:w="{count}"/><text x="1%" y="9"></text></g>'
        for name, depth, begin, count in FLAMES
    ]
    picture = tmp_path / "flames.svg"
    picture.write_text("<svg>" + "".join(frames) + "</svg>", "utf-8")
    found, samples = flame.shares(flame.read_frames(picture))
    assert samples == 100
    assert {name: (share.own, share.total) for name, share in found.items()} == {
        "all": (0, 100),
        "serve (kcoord/cli/main.py)": (0, 100),
        "run (kcoord/server/main.py)": (15, 100),
        "again (a.py)": (40, 60),
        "write (libc.so.6)": (45, 45),
    }
    flame.print_shares(found, samples)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in shown[2:5]] == ["write", "again", "run"]


def test_a_picture_without_frames_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.svg").write_text("<svg></svg>", "utf-8")
    with pytest.raises(RuntimeError, match=r"empty\.svg has no frames"):
        flame.read_frames(tmp_path / "empty.svg")
