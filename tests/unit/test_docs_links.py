"""The links of all Markdown files: each leads to a file and an anchor, on GitHub and on the site (`make docs`)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.unit.test_house_rules import tracked_files
from tools.docs_site import PROJECT_PAGES, anchor, file_of, links, page_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in tracked_files() if path.suffix == ".md")
OF_THE_SITE = [page for page in PAGES if page.startswith("docs/") or page in PROJECT_PAGES]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
# What a heading has beside its text: marks of code and of strong text, and the targets of links.
MARKS = re.compile(r"`|\*\*|\]\([^)]*\)|\[")


def anchors(text: str) -> set[str]:
    """The anchors of a page. The second heading with the same text gets `-1`, the third `-2`."""
    found: Counter[str] = Counter()
    names = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = anchor(MARKS.sub("", heading))
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


@cache
def anchors_of(page: str) -> set[str]:
    return anchors((ROOT / page).read_text("utf-8"))


def problem(page: str, target: str) -> str:
    """What is wrong with a link of a page; empty if nothing is."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return "" if target.startswith(("https:", "http:", "mailto:")) else "another scheme"
    if target.startswith("/"):
        return "an absolute path"
    file = file_of(page, target) or page
    if file.startswith(".."):
        return "outside the project"
    if not (ROOT / file).exists():
        return "no such file"
    if (ROOT / file).is_dir() and file.startswith("docs"):
        return "a folder of pages, which the site cannot show"
    wanted = target.partition("#")[2]
    if wanted and wanted not in (anchors_of(file) if file.endswith(".md") else set()):
        return f"no such anchor in {file}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    wrong = [(target, problem(page, target)) for target in links((ROOT / page).read_text("utf-8"))]
    assert [one for one in wrong if one[1]] == []


def test_links_are_found() -> None:
    text = "[a](b.md#c) `[no](link)` and ``[no](link)``, [`code`](d.md)\n\n```\n[no](link)\n```\n\n![picture](e.svg)"
    assert list(links(text)) == ["b.md#c", "d.md", "e.svg"]
    assert len([target for page in PAGES for target in links((ROOT / page).read_text("utf-8"))]) > 100


def test_anchors_are_those_of_github() -> None:
    text = "# A `b_c`: d, **e**!\n## [Link](x.md) & more - so\n```\n# no\n```\n### Twice\n### Twice\n"
    assert anchors(text) == {"a-b_c-d-e", "link--more---so", "twice", "twice-1"}


def test_problems_are_found() -> None:
    wrong = "none.md", "gaps.md#none", "/README.md", "../../x.md", "file:x", "notebooks", "notebooks/groups.py#x"
    assert all(problem("docs/README.md", target) for target in wrong)
    right = (
        "gaps.md",
        "gaps.md#not-verified",
        "../README.md",
        "https://kafka.apache.org",
        "#documentation",
        "../LICENSE",
    )
    assert not any(problem("docs/README.md", target) for target in right)


def entries(part: object) -> list[str]:
    """The pages of the navigation or of a part of it."""
    if isinstance(part, str):
        return [part]
    return [page for one in (part.values() if isinstance(part, dict) else list(part)) for page in entries(one)]  # type: ignore[call-overload]


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    assert sorted(page_of(entry) for entry in entries(navigation)) == sorted(OF_THE_SITE)


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {file_of("docs/README.md", target) for target in links(index.read_text("utf-8"))}
    assert set(OF_THE_SITE) - listed == {"docs/README.md"}


def test_the_site_watches_the_pages_of_the_project() -> None:
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["watch"] == list(PROJECT_PAGES)


PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


def test_pictures_have_words_for_those_who_do_not_see_them() -> None:
    texts = {page: (ROOT / page).read_text("utf-8") for page in OF_THE_SITE}
    shown = {
        file_of(page, target): alt
        for page, text in texts.items()
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)
    }
    assert {file for file in shown if file.endswith(".svg")} == {f"docs/pictures/{path.name}" for path in PICTURES}
    assert all(len(alt) > 60 for alt in shown.values())


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_whole_and_legible_on_every_background(path: Path) -> None:
    tag = "{http://www.w3.org/2000/svg}"
    root = ET.parse(path).getroot()
    assert root.tag == f"{tag}svg"
    assert all(root.findtext(f"{tag}{name}") for name in ("title", "desc"))
    panel = root.find(f"{tag}rect")
    assert panel is not None and panel.get("fill") == "#ffffff"
    # Nothing comes from another file, and no label leaves the picture.
    assert "href" not in path.read_text("utf-8") and "url(http" not in path.read_text("utf-8")
    width = float(root.get("width", "0"))
    assert all(0 < float(text.get("x", "0")) < width for text in root.iter(f"{tag}text"))
