"""What the site of the documentation does beyond mkdocs.yml, as hooks of MkDocs; and how links of Markdown are found.

The pages are written for GitHub. So the site also has the pages of the project's folder (under `project/`), and other
files and folders that pages link to (under `files/`). Links lead to them, and anchors are GitHub's. Nothing that a page
loads may come from another host: the build fails if it does.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
# Code, in which nothing is a link; or the target of a link.
CODE_OR_LINK = re.compile(r"^```.*?^```|(`+)[^`].*?\1|\]\(([^()\s]+)\)", re.MULTILINE | re.DOTALL)
# A link whose text is the name of a page, as in [gaps.md](gaps.md).
NAMED_AFTER_FILE = re.compile(r"\[(?:[\w-]+/)*[\w-]+\.md\]\(([^()\s]+)\)")
OTHER_PLACE = re.compile(r"[a-z][a-z0-9+.-]*:|#|/")
# What a browser loads with the page. A plain link to another host is fine.
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?(?:https?:)?//[^"'\s>]+|"""
                    r"""<link\b(?![^>]*canonical)[^>]*?\bhref=["']?(?:https?:)?//[^"'\s>]+""")  # fmt: skip
MERMAID = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
EDGE = re.compile(r'\["([^"]+)"\] --> \w+\["([^"]+)"\]')
CODE = re.compile(r"(`+)[^`].*?\1")
LIST_ITEM = re.compile(r"(- |\d\. )\S")

log = logging.getLogger("mkdocs.hooks.docs_site")


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading, which is given as text without marks."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def links(text: str) -> Iterator[str]:
    """The targets of a page's links and pictures."""
    for match in CODE_OR_LINK.finditer(text):
        if match[2]:
            yield match[2]


def with_links(text: str, change: Callable[[str], str]) -> str:
    """The page with other targets."""
    return CODE_OR_LINK.sub(lambda match: f"]({change(match[2])})" if match[2] else match[0], text)


def file_of(page: str, target: str) -> str:
    """The file that a link leads to, from the project's folder; empty for other hosts, anchors and absolute paths."""
    if OTHER_PLACE.match(target):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target.partition("#")[0]))


def place_on_site(file: str) -> str:
    """Where the site has a file of the project, or the list of a folder's files."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if (ROOT / file).is_dir():
        return f"files/{file}/README.md"
    return f"project/{file}" if file in PROJECT_PAGES else f"files/{file}"


def page_of(place: str) -> str:
    """The file of the project that is at this place of the site."""
    folder, _, rest = place.partition("/")
    return rest if folder in ("project", "files") else f"docs/{place}"


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, _separator: anchor(text)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the project's folder, and the files and folders outside docs/ that pages link to."""
    from mkdocs.structure.files import File, InclusionLevel

    for name in PROJECT_PAGES:
        files.append(File.generated(config, place_on_site(name), abs_src_path=str(ROOT / name)))
    outside: set[str] = set()
    for page in files.documentation_pages():
        outside |= _linked_outside(page_of(page.src_uri), page.content_string)
    # Pages among them have links, too.
    waiting = list(outside)
    while waiting:
        name = waiting.pop()
        if name.endswith(".md"):
            more = _linked_outside(name, (ROOT / name).read_text("utf-8")) - outside
            outside |= more
            waiting += more
    for folder in sorted(name for name in outside if (ROOT / name).is_dir()):
        names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
        text = f"# {folder}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
        place = place_on_site(folder)
        files.append(File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        outside |= {f"{folder}/{name}" for name in names}
    for name in sorted(name for name in outside if (ROOT / name).is_file()):
        level = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place_on_site(name), abs_src_path=str(ROOT / name), inclusion=level))
    return files


def _linked_outside(page: str, text: str) -> set[str]:
    """The files and folders that a page links to, and that have no other place on the site."""
    named = {file_of(page, target) for target in links(text)} - {""}
    return {name for name in named if place_on_site(name).startswith("files/") and (ROOT / name).exists()}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page_of(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def moved(target: str) -> str:
        file = file_of(source, target)
        if not file:
            return target
        return posixpath.relpath(place_on_site(file), here) + "".join(target.partition("#")[1:])

    def titled(link: re.Match[str]) -> str:
        return f"[{title_of(file_of(source, link[1]))}]({link[1]})"

    text = NAMED_AFTER_FILE.sub(titled, MERMAID.sub(as_table, markdown))
    return "\n".join(for_python_markdown(with_links(text, moved)))


def title_of(page: str) -> str:
    """The title of a page, which the site shows in place of its file's name."""
    return (ROOT / page).read_text("utf-8").partition("# ")[2].partition("\n")[0]


def as_table(flowchart: re.Match[str]) -> str:
    """A flowchart of packages as a table: drawing it would need a script from another host."""
    rows: dict[str, list[str]] = {}
    for source, target in EDGE.findall(flowchart[1]):
        rows.setdefault(source, []).append(f"`{target}`")
    return "\n".join(
        ["| package | imports |", "|---|---|", *(f"| `{a}` | {', '.join(b)} |" for a, b in rows.items()), ""]
    )


def for_python_markdown(markdown: str) -> Iterator[str]:
    r"""The lines, changed where Python-Markdown differs from GitHub.

    It wants contents of a list item indented by four, and a blank line after an item of several paragraphs. It shows
    the backslash of `a\|b` in code within a table.
    """
    shift = 0
    was_blank = paragraphs = fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.startswith("```")
        if fenced:
            yield line
            continue
        if item := LIST_ITEM.match(line):
            shift = 4 - len(item[1])
            if paragraphs and not was_blank:
                yield ""
            paragraphs = False
        elif line.startswith(" "):
            line = " " * shift + line
            paragraphs = paragraphs or was_blank
        elif line:
            shift = 0
            paragraphs = False
        was_blank = not line
        yield CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line


def on_post_page(output: str, page: Any, **_: Any) -> str:
    for loaded in LOADED.findall(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, loaded)
    return output
