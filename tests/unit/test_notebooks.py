"""Notebooks are what their sources say, with outputs of a run without errors; and the tool that makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.notebook import Cell, cells_of, main

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def test_notebooks_are_their_sources_and_were_executed() -> None:
    sources = sorted(NOTEBOOKS.glob("*.py"))
    assert sources and [one.stem for one in sources] == sorted(one.stem for one in NOTEBOOKS.glob("*.ipynb"))
    for source in sources:
        found = json.loads(source.with_suffix(".ipynb").read_text("utf-8"))
        cells = [Cell(cell["cell_type"] == "code", "".join(cell["source"])) for cell in found["cells"]]
        assert cells == cells_of(source.read_text("utf-8")), f"python -m tools.notebook {source}"
        assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
        code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        assert all(output["output_type"] != "error" for cell in code for output in cell["outputs"])
        assert any("text/html" in output.get("data", {}) for cell in code for output in cell["outputs"])


def test_a_file_in_cells_becomes_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "one.py"
    source.write_text("# %% [markdown]\n# # Title\n#\n# Words\n\n# %%\na = 6\nprint('hello')\n\n# %%\na * 7\n")
    main(source)
    words, first, second = json.loads((tmp_path / "one.ipynb").read_text())["cells"]
    assert (words["cell_type"], "".join(words["source"])) == ("markdown", "# Title\n\nWords")
    assert first["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["hello\n"]}]
    assert second["outputs"][0]["data"] == {"text/plain": ["42"]} and second["execution_count"] == 2


def test_nothing_is_written_if_a_cell_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text("# %%\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        main(tmp_path / "one.py")
    assert not (tmp_path / "one.ipynb").exists()


def test_what_is_in_no_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="begin with"):
        cells_of("import os\n# %%\n")
    with pytest.raises(ValueError, match="comments"):
        cells_of("# %% [markdown]\nwords\n")
