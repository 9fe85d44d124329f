"""The page's templates: Jinja2 with autoescape, so that names from logs are only ever text.

Three things hold for every template:

- Whatever an expression prints is escaped, and made visible and short by `text.visible`, unless it is Markup, which
  only macros and plots return, or went through the filter `prose`, which allows for longer text.
- A name that is not defined is an error, and so is None: it never becomes a word of the page.
- A line break in a template is a space between words, and nothing next to a tag. Indentation is not part of the page.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Final, final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.words import EXPLAINED, TITLES

FOLDER: Final = Path(__file__).with_name("templates")
# Characters of a sentence or a list of the page's own; names in it have been cut before.
PROSE_MAX: Final = 2000


TAG_BEGINS: Final = ("<", "{%", "{#")
TAG_ENDS: Final = (">", "%}", "#}")


@final
class Prose(str):
    """Visible text that may be longer than a name."""

    __slots__ = ()


def prose(value: object) -> Prose:
    return Prose(text.visible(value, PROSE_MAX))


def _printed(value: Any) -> Any:
    if value is None:
        raise TypeError("a template prints None")
    return value if isinstance(value, (Markup, Prose)) else text.visible(value)


class _OneLine(Extension):
    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        whole = ""
        for line in filter(None, map(str.strip, source.splitlines())):
            is_word = whole and not whole.endswith(TAG_ENDS) and not line.startswith(TAG_BEGINS)
            whole += (" " if is_word else "") + line
        return whole


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        extensions=[_OneLine],
    )
    found.globals.update(titles=TITLES, explained=EXPLAINED)
    found.filters.update(prose=prose, count=text.count, duration=text.duration, when=text.when, fitted=text.fitted)
    return found


ENVIRONMENT: Final = _environment()
# Light and dark. The six colours of lines and bars are Okabe and Ito's, which people with any kind of colour vision can
# distinguish, made darker or lighter where needed; lines differ in their dashes, too.
STYLE: Final = Markup((FOLDER / "style.css").read_text(encoding="utf-8"))
# All there is of script. It hides rows, and changes nothing else; without it the table shows all.
SCRIPT: Final = Markup((FOLDER / "filter.js").read_text(encoding="utf-8"))
SCRIPT_HASH: Final = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# Should a name ever be taken for HTML, it can run and load nothing: the page's own script is allowed by its hash.
POLICY: Final = Markup(
    f"default-src 'none'; style-src 'unsafe-inline'; script-src '{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'"
)


def render(template: str, **values: Any) -> Markup:
    return Markup(ENVIRONMENT.get_template(template).render(**values))
