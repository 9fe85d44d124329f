"""Executes a Python file in cells (`# %%`, `# %% [markdown]`) and writes it as a Jupyter notebook with its outputs.

    python -m tools.notebook docs/notebooks/groups.py

Edit and review the file; the notebook next to it (nbformat 4.5) is generated from it, with real outputs. Cells run in
the file's directory. If one fails, nothing is written.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MARK: Final = "# %%"
MARKDOWN: Final = "# %% [markdown]"


@dataclass(frozen=True)
class Cell:
    is_code: bool
    source: str


def cells_of(text: str) -> list[Cell]:
    """Split a file into cells. Raises ValueError for text before the first cell, and for markdown outside comments."""
    before, *parts = f"\n{text}".split(f"\n{MARK}")
    if before.strip():
        raise ValueError(f"the file must begin with {MARK}")
    cells: list[Cell] = []
    for part in parts:
        first, _, body = part.partition("\n")
        is_code = first.strip() != MARKDOWN.removeprefix(MARK).strip()
        lines = body.strip("\n").split("\n")
        if not is_code:
            if any(line and not line.startswith("#") for line in lines):
                raise ValueError("markdown must be written as comments")
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        cells.append(Cell(is_code, "\n".join(lines)))
    return cells


def run(cell: Cell, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The output of a code cell, and the value of its last line if that is an expression."""
    tree = ast.parse(cell.source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines_of(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines_of(repr(value))}
        as_html = getattr(value, "_repr_html_", None)
        if as_html is not None:
            data["text/html"] = lines_of(as_html())
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebook_of(cells: list[Cell]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    documents: list[dict[str, Any]] = []
    number = 0
    for place, cell in enumerate(cells):
        document: dict[str, Any] = {"id": f"cell-{place}", "metadata": {}, "source": lines_of(cell.source)}
        if cell.is_code:
            number += 1
            outputs = run(cell, names, number)
            document |= {"cell_type": "code", "execution_count": number, "outputs": outputs}
        else:
            document["cell_type"] = "markdown"
        documents.append(document)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": documents, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main(path: Path) -> None:
    cells = cells_of(path.read_text("utf-8"))
    target = path.resolve().with_suffix(".ipynb")
    os.chdir(path.resolve().parent)
    text = json.dumps(notebook_of(cells), indent=1, sort_keys=True, ensure_ascii=False)
    target.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
