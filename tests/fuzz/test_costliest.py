"""The search for the costliest frames: what it makes, keeps and reports."""

from __future__ import annotations

import json

import pytest

from tests.fuzz import costliest
from tests.fuzz.costliest import Found, Inventor, Recipe, Search, problem_of, report
from tests.stall.rig import Cost
from tests.stall.shapes import requests

SCALE = 0.002


@pytest.fixture(scope="module")
def search() -> Search:
    return Search(1, SCALE)


def test_a_seed_makes_the_same_frames() -> None:
    def recipes(seed: int) -> list[str]:
        inventor = Inventor(seed)
        first = [inventor.new() for _ in range(50)]
        return [recipe.text() for recipe in first + [inventor.change(recipe) for recipe in first]]

    assert recipes(1) == recipes(1) != recipes(2)


def test_a_recipe_that_was_printed_makes_the_frame_again(search: Search) -> None:
    inventor = Inventor(3)
    made = 0
    for _ in range(100):
        recipe = inventor.new()
        recipe.share = 1e-3
        try:
            frame = recipe.build(search.world)
        except OverflowError:
            continue
        assert Recipe.parse(recipe.text()).build(search.world) == frame
        made += 1
    assert made > 50


def test_every_api_is_tried() -> None:
    inventor = Inventor(1)
    assert {inventor.new().api_key for _ in range(1_000)} == set(requests())


def test_the_costliest_of_each_api_are_kept(search: Search) -> None:
    for _ in range(25):
        search.step()
    assert search.number == 25 and search.costly
    for kept in search.costly.values():
        assert len(kept) <= costliest.KEPT
        assert [found.per_byte for found in kept] == sorted((found.per_byte for found in kept), reverse=True)


def test_what_exceeds_the_limit_is_reported_with_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    cost = Cost()
    cost.turns_ms = [costliest.INTERPRETED_TURN_MS_MAX + 1]
    found = Found(Inventor(1).new(), 100, cost)
    assert problem_of(found).startswith("a turn takes more than")
    assert report([found]) == 1
    printed = capsys.readouterr().err
    recipe = printed.split("--recipe '")[1].rstrip().removesuffix("'")
    assert json.loads(recipe) == json.loads(found.recipe.text())
    cost.turns_ms = [1.0]
    assert report([found]) == 0
    cost.error = "Traceback\nKeyError: 'x'"
    assert problem_of(found) == "KeyError: 'x'"
