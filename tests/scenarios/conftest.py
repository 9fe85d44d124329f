"""The flag that writes new expectations into the scenario files."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        default=False,
        help="scenarios: replace the expectations in the files by what happens now",
    )
