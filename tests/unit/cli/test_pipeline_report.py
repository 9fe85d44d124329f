"""`kcoord pipeline report` up to where Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kcoord.cli.main import main
from tests.unit.cli.rig import stopped


def refused(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["pipeline", "report", *map(str, arguments)], catch_exceptions=False)
    assert not result.stdout
    return result.exit_code, result.stderr


def test_a_page_needs_a_file_to_be_in(tmp_path: Path) -> None:
    data = stopped(tmp_path / "data")
    assert refused(data)[0] == 2 and "--to FILE is required" in refused(data)[1]
    (tmp_path / "there.html").write_text("mine")
    for output, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "there.html", "exists; --overwrite replaces it"),
        (tmp_path / "none" / "groups.html", "none does not exist"),
        ("s3://bucket/groups.html", "--to must be a local file"),
    ):
        code, stderr = refused(data, "--to", output)
        assert code == 2 and message in stderr and len(stderr.splitlines()) == 1, output
    assert (tmp_path / "there.html").read_text() == "mine"


@pytest.mark.parametrize("option", [("--format", "delta"), ("--buckets", "3"), ("--limit", "5")])
def test_options_of_tables_are_not_a_page_s(tmp_path: Path, option: tuple[str, str]) -> None:
    code, stderr = refused(stopped(tmp_path / "data"), "--to", tmp_path / "groups.html", *option)
    assert code == 2 and "a page has no --format, --buckets or --limit" in stderr
