"""Assignors by name: ours, those of installed packages, and what is wrong with those that cannot be used."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.uniform import UniformAssignor
from kcoord.server.assembly import open_assembly
from kcoord.server.assignors import load_assignors
from kcoord.server.failures import EXIT_CONFIG, classify
from kcoord.server.settings.load import ConfigError, load
from tests.unit.core.assignors.groups import Group, Topics, assignment

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "assignors.md"

Installer = Callable[[str, dict[str, str], str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Puts a package with one module and entry points on the path, as an installer would leave it."""

    def installed(package: str, points: dict[str, str], code: str) -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[kcoord.assignors]", *lines, ""]))
        (tmp_path / f"{package}_code.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    return installed


def test_built_in() -> None:
    loaded = load_assignors("range, uniform")
    assert list(loaded) == ["range", "uniform"]
    assert isinstance(loaded["range"], RangeAssignor) and isinstance(loaded["uniform"], UniformAssignor)


def test_names_in_a_brokers_file() -> None:
    place = "org.apache.kafka.coordinator.group.assignor"
    assert list(load_assignors(f"{place}.RangeAssignor,{place}.UniformAssignor")) == ["range", "uniform"]
    with pytest.raises(ConfigError, match="'range' is listed twice"):
        load_assignors(f"range,{place}.RangeAssignor")


def test_the_example_of_the_documentation(install: Installer) -> None:
    text = DOCUMENT.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    project = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert code is not None and project is not None
    points = tomllib.loads(project[1])["project"]["entry-points"]["kcoord.assignors"]
    assert points == {"exclusive": "exclusive:Exclusive"}
    install("exclusive", {"exclusive": "exclusive_code:Exclusive"}, code[1])
    loaded = load_assignors("uniform,exclusive")
    assert list(loaded) == ["uniform", "exclusive"]
    group = Group(loaded["exclusive"], Topics({1: 3, 2: 2}))
    group.join("b", [1, 2])
    group.compute()
    group.join("a", [1])
    assert group.compute() == {"a": {}}
    assert group.targets["b"] == assignment({1: [0, 1, 2], 2: [0, 1]})
    group.leave("b")
    assert group.compute() == {"a": assignment({1: [0, 1, 2]})}


def test_an_unknown_assignor_name(install: Installer) -> None:
    install("other", {"other": "other_code:Other"}, "raise RuntimeError('nobody asked for this')")
    with pytest.raises(ConfigError, match="unknown assignor 'mine'; available are uniform, range, other"):
        load_assignors("uniform,mine")


def test_a_name_that_two_packages_offer(install: Installer) -> None:
    install("one", {"mine": "one_code:Mine"}, "")
    install("two", {"mine": "two_code:Mine"}, "")
    with pytest.raises(ConfigError, match="more than once, as one_code:Mine of one, two_code:Mine of two"):
        load_assignors("mine")


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("", "AttributeError"),
        ("def make(): raise ValueError('no')", "mine_code:make of mine.* failed with ValueError: no"),
        ("def make(): return 1", "returns int, which is not a subclass"),
        (
            "from kcoord.core.assignors.spec import GroupSpec\nmake = lambda: GroupSpec({}, True)",
            "returns GroupSpec",
        ),
        (
            "from kcoord.core.assignors.range_assignor import RangeAssignor as make",
            "with the name 'range', so members could not select it",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_used(
    code: str, complaint: str, install: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mine_code", raising=False)
    install("mine", {"mine": "mine_code:make"}, code)
    with pytest.raises(ConfigError, match=complaint):
        load_assignors("mine")


def test_the_engine_gets_them() -> None:
    assembly = open_assembly(load(profile="test", assignments=["group.consumer.assignors=range,uniform"]))
    assert list(assembly.engine.core.targets.assignors) == ["range", "uniform"]
    assembly.close()


def test_a_server_does_not_start_without_them() -> None:
    config = load(profile="test", assignments=["group.consumer.assignors=mine"])
    with pytest.raises(ConfigError) as caught:
        open_assembly(config)
    assert classify(caught.value).code == EXIT_CONFIG
