"""The report's page: well formed whatever the names, honest about what there is not, and the same each time."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from jinja2 import UndefinedError

from kcoord.spark.jobs.report.data import Bar, GroupSummary, LagPeak, LagSeries, Lane, Owner, Report, step_ms
from kcoord.spark.jobs.report.glance import state_of
from kcoord.spark.jobs.report.page import FAMILIES, page
from kcoord.spark.jobs.report.pieces import anchor
from kcoord.spark.jobs.report.render import ENVIRONMENT, SCRIPT
from kcoord.spark.jobs.report.text import fitted, visible
from kcoord.spark.jobs.report.words import EXPLAINED, TITLES, WORDS
from tests.unit.spark.report_rig import BEGIN_MS, HOSTILE, full_report

VOID = ("meta", "br", "hr", "img", "link", "input")
# All that a page is made of. Anything else came out of a name.
TAGS = set(
    "html head meta title style body h1 h2 h3 p nav a strong dl dt dd div section figure figcaption ul li table "
    "caption thead tbody tr th td svg g text line rect circle polyline code form label input select option button "
    "output script br".split()
)
ATTRIBUTES = set(
    "lang charset http-equiv content name class id href scope aria-label aria-hidden role viewbox x y x1 x2 y1 y2 cx "
    "cy r rx width height points transform text-anchor hidden type value data-state data-lag data-rebalances".split()
)


class Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.attributes: dict[str, bool] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            self.attributes[name] = True
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(text: str) -> Parser:
    """The page, after everything that must be true of any."""
    text.encode("utf-8")
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    # The one script is the page's own, and nothing runs but that.
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert parser.tags.get("script", 0) == len(scripts) <= 1 and all(one == SCRIPT for one in scripts)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert {*parser.tags} <= TAGS, {*parser.tags} - TAGS
    assert {*parser.attributes} <= ATTRIBUTES, {*parser.attributes} - ATTRIBUTES
    assert len(set(parser.ids)) == len(parser.ids)
    assert all(link[0] == "#" and link[1:] in parser.ids for link in parser.links)
    assert not re.search(r"https?:|@import|url\(", re.sub(r"<body>.*</body>", "", text, flags=re.DOTALL))
    for plot in plots(text):
        inside(plot)
    return parser


def plots(text: str) -> list[ET.Element]:
    """SVG in HTML may be sloppy; ours is XML."""
    return [ET.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def inside(plot: ET.Element) -> None:
    """All that is drawn is within the picture, and no number is a NaN."""
    _, _, width, height = map(float, plot.attrib["viewBox"].split())
    for one in plot.iter():
        for x in ("x", "x1", "x2", "cx"):
            assert 0 <= float(one.get(x, "0")) <= width, one.attrib
        for y in ("y", "y1", "y2", "cy"):
            assert 0 <= float(one.get(y, "0")) <= height, one.attrib
        assert float(one.get("width", "0")) >= 0 and float(one.get("height", "0")) >= 0
        assert float(one.get("x", "0")) + float(one.get("width", "0")) <= width + 1
        for pair in one.get("points", "").split():
            px, py = map(float, pair.split(","))
            assert 0 <= px <= width and 0 <= py <= height


def test_a_page_with_everything() -> None:
    report = full_report(("billing", "audit", "search"))
    text = page(report)
    parser = parsed(text)
    assert text == page(report) and text.startswith("<!DOCTYPE html>\n") and "default-src 'none'" in text
    content = " ".join(parser.words)
    for name, title in TITLES.items():
        assert name in parser.ids and title in content and f"#{name}" in parser.links
    charts = [one for one in plots(text) if one.get("class") == "plot"]
    titles = [one.findtext("text[@class='title']") for one in charts]
    assert titles == [
        "Lag over time, in records",
        "Age of the first message not read, over time",
        "Rebalances over time",
        "Commits over time",
    ]
    units = [[unit.text for unit in one.findall("text[@class='unit']")] for one in charts]
    assert [sorted(map(str, one)) for one in units] == [
        ["Lag (records)", "Time (UTC), 2025-10-09"],
        ["Lag (min)", "Time (UTC), 2025-10-09"],
        ["Group", "In all", "Time (UTC), 2025-10-09"],
        ["Commits in 1 min", "Time (UTC), 2025-10-09"],
    ]
    # A line is parted where lag is not known.
    lines = charts[0].findall("g")
    assert [len(line.findall("polyline")) for line in lines] == [2, 2, 2]
    # The first one has the highest peak, and is drawn above the others.
    assert [line.attrib["class"] for line in lines] == ["line c3", "line c2", "line c1"]
    bars = [one for one in charts[2].findall("rect") if "bar" in one.attrib["class"]]
    assert len(bars) == 18 and len([bar for bar in bars if "open" in bar.attrib["class"]]) == 3
    # The third group's first bar begins two minutes in.
    assert bars[12].findtext("title") == (
        "log-0-search: search; 1 rebalance; 2025-10-09 08:55:20 for 700 ms; member_joined, search; epoch 0 to 1; "
        "members 3 to 4; partitions moved: 0"
    )
    assert "123,456" in content and "2 commits have timestamps later" in content


def test_names_are_only_ever_words() -> None:
    text = page(full_report(HOSTILE))
    parser = parsed(text)
    assert parser.tags["script"] == 1 and "img" not in parser.tags
    # It is there to be read, letter by letter.
    content = " ".join(parser.words)
    assert (
        "</title><script>alert(1)</script>" in content and "\\u202egnp.exe\\u2066\\x00\\x1b[31m\\ud800\\n\\t" in content
    )
    assert not re.search("[\u202e\u2066\x00\x1b\ud800]", text)
    assert "&lt;b&gt; &#x3c;" in content
    # Long ones are cut, so that nobody's name makes the page a large one.
    assert len(text) < 200_000


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_a_template_are_fit_for_text_and_attributes(name: str) -> None:
    template = ENVIRONMENT.from_string("<a b=\"{{ name }}\" c='{{ name }}'>{{ name }}</a>")
    one = ET.fromstring(template.render(name=name))
    assert one.get("b") == one.get("c") == (one.text or "") == visible(name)
    assert len(visible(name, 26)) <= 26


def test_a_template_prints_neither_none_nor_what_is_not_there() -> None:
    with pytest.raises(TypeError):
        ENVIRONMENT.from_string("{{ name }}").render(name=None)
    with pytest.raises(UndefinedError):
        ENVIRONMENT.from_string("{{ name }}").render()


def test_nothing_at_all() -> None:
    parser = parsed(page(Report("data", BEGIN_MS)))
    content = " ".join(parser.words)
    assert "There are no commits and no rebalances" in content and "svg" not in parser.tags


def test_empty_sections_have_a_note() -> None:
    parser = parsed(page(Report("data", BEGIN_MS, BEGIN_MS, BEGIN_MS, logs=1)))
    content = " ".join(parser.words)
    for what in (
        "No commits",
        "none has lag",
        "No rebalances",
        "Nothing moved",
        "No storm",
        "No offset went back",
    ):
        assert what in content


def test_one_point_is_seen() -> None:
    owner = Owner(".", "only")
    series = (LagSeries(owner, ((BEGIN_MS, 5.0),)),)
    report = Report(
        "data", BEGIN_MS, BEGIN_MS, BEGIN_MS, logs=1, groups=1, commits_total=1, commits=((BEGIN_MS, 1),),
        lag_records=series, lag_seconds=series, lag_peaks=(LagPeak(owner, 1, 5, 5, 5.0, 5.0),),
    )  # fmt: skip
    text = page(report)
    parsed(text)
    records, seconds, bars = (one for one in plots(text) if one.get("class") == "plot")
    assert len(bars.findall("rect")) == 1 and float(bars.findall("rect")[0].attrib["width"]) >= 1
    assert len(records.findall("g/circle")) == len(seconds.findall("g/circle")) == 1
    # One data directory needs no name.
    assert ".: only" not in text


def lagging(before: int | None, end: int | None, last_commit_s: float | None = 59, group: str = "billing") -> LagPeak:
    """Of a minute, the last six seconds of which are what a state is told by."""
    last = None if last_commit_s is None else round(BEGIN_MS + last_commit_s * 1000)
    return LagPeak(Owner(".", group), 3, 1000, end, 5.0, None if end is None else 4.0, before, last)


@pytest.mark.parametrize(
    ("peak", "state"),
    [
        (lagging(100, 200), "falling behind"),
        (lagging(200, 100), "catching up"),
        (lagging(100, 105), "steady"),
        (lagging(100, 200, 53.9), "no commits"),
        (lagging(100, 200, None), "no commits"),
        (lagging(100, 0), "no lag"),
        (lagging(None, 100), "–"),
        (lagging(100, None), "–"),
    ],
)
def test_what_a_group_with_lag_does(peak: LagPeak, state: str) -> None:
    assert state_of(peak, BEGIN_MS + 54_000) == state
    assert state_of(peak, None) == ("no lag" if state == "no lag" else "–")


def test_who_lags_and_why_comes_first() -> None:
    worst = dataclasses.replace(
        lagging(100, 2000, 30.0, "<b>"), rebalances=7, is_rebalancing=True, cause="session_timeout"
    )
    peaks = (worst, lagging(100, 700), lagging(0, 0, 59, "idle"))
    report = Report(
        "data", BEGIN_MS, BEGIN_MS, BEGIN_MS + 60_000, trend_ms=BEGIN_MS + 54_000, logs=1, lag_peaks=peaks,
        findings=full_report(("audit",)).findings, jumps=full_report(("search",)).jumps,
        rewinds_total=3, resets_total=1,
    )  # fmt: skip
    text = page(report)
    parsed(text)
    lines = [html.unescape(re.sub("<[^>]+>", "", one)) for one in re.findall("<li>(.*?)</li>", text)]
    assert lines == [
        "<b> is behind by 2,000 records, 4 s at the end: it committed nothing after 10-09 08:53:50; a rebalance of it "
        "was not over; 7 rebalances, most often session_timeout.",
        "billing is behind by 700 records, 4 s at the end: it commits, and is falling behind: +600 since 10-09 08:54.",
        "The worst storm: audit, 9 rebalances in 1 ms from 10-09 08:53:20 on, most often member_left (all).",
        "3 rewinds and 1 reset of offsets, the most by search in search-3 (all).",
    ]
    assert text.index("At a glance</h2>") < text.index("Lag</h2>")
    none = parsed(page(dataclasses.replace(report, lag_peaks=peaks[2:], findings=(), rewinds_total=0, resets_total=0)))
    assert "No group has lag at the end." in none.words
    unknown = parsed(page(dataclasses.replace(report, lag_peaks=(lagging(100, None),))))
    assert "Whether a group has lag at the end is not known." in unknown.words


def test_a_group_has_one_colour_in_both_plots() -> None:
    def series(names: str) -> tuple[LagSeries, ...]:
        return tuple(LagSeries(Owner(".", name), ((BEGIN_MS, 5.0), (BEGIN_MS + 1000, 6.0))) for name in names)

    report = Report(
        "data", BEGIN_MS, BEGIN_MS, BEGIN_MS + 1000, logs=1, lag_peaks=(lagging(1, 2),),
        lag_records=series("abcdef"), lag_seconds=series("gfhaij"),
    )  # fmt: skip
    records, seconds = (
        {line.findtext("title"): line.attrib["class"] for line in one.findall("g")}
        for one in plots(page(report))
        if one.get("class") == "plot"
    )
    assert records == {name: f"line c{number}" for number, name in enumerate("abcdef", 1)}
    assert (seconds["f"], seconds["a"]) == ("line c6", "line c1")
    assert sorted(seconds.values()) == [f"line c{number}" for number in range(1, 7)]


@pytest.mark.parametrize(
    "name", [*HOSTILE, "W" * 50, "注文" * 30, "team.service.consumer-group.production.eu-west-1.v3"]
)
def test_names_of_lanes_fit(name: str) -> None:
    # No letter of DejaVu or Noto is wider than two of these.
    cut = fitted(name, 27)
    assert len(cut) <= 27 and sum(2 if one in "注文" else 1 for one in cut) <= 27
    assert cut == visible(name) or ("…" in cut and cut[0] == visible(name)[0] and cut[-1] == visible(name)[-1])


def test_unknown_lag_is_shown() -> None:
    owner = Owner(".", "only")
    series = (LagSeries(owner, ((BEGIN_MS, None), (BEGIN_MS + 1000, None))),)
    report = Report(
        "data", BEGIN_MS, BEGIN_MS, BEGIN_MS + 1000, logs=1, lag_records=series, lag_seconds=series,
        lag_peaks=(LagPeak(owner, 1, None, None, None, None),),
    )  # fmt: skip
    content = " ".join(parsed(page(report)).words)
    assert "in records: not known" in content and "–" in content


@pytest.mark.parametrize("begin_ms", [-(2**62), -1, 0, 253_402_300_799_000, 2**62])
@pytest.mark.parametrize("length_ms", [0, 1, 10**6, 10**10, 10**13])
def test_any_time_has_a_page(begin_ms: int, length_ms: int) -> None:
    report = full_report(("billing",))
    parsed(page(dataclasses.replace(report, begin_ms=begin_ms, end_ms=begin_ms + length_ms, made_ms=begin_ms)))


def test_every_word_that_columns_point_to_is_there() -> None:
    assert {*EXPLAINED.values()} <= {name for name, _, _ in WORDS}


def test_every_cause_of_the_coordinator_has_a_colour() -> None:
    from kcoord.core import cause as group_cause

    # Causes of transactions belong to no group.
    values = [value for name, value in vars(group_cause).items() if name.isupper() and isinstance(value, str)]
    known = [value for value in values if value not in group_cause.TRANSACTION_CAUSES]
    coloured = [cause for _, causes in FAMILIES for cause in causes]
    assert len(known) >= 20 and set(coloured) <= set(known) and len(set(coloured)) == len(coloured)
    assert sorted(set(known) - set(coloured)) == ["assignment_too_large", "group_too_large", "rebalanced"]


@pytest.mark.parametrize("most", [7, 200])
@pytest.mark.parametrize("span_ms", [0, 1, 999, 200_000, 200_001, 10**9, 10**12, 10**15, 2**62])
def test_steps_are_few_and_short(span_ms: int, most: int) -> None:
    step = step_ms(span_ms, most)
    assert step % 1000 == 0 and step * most >= span_ms
    assert step == 1000 or span_ms > step // 3 * most


# --- what is missing


def charts(text: str) -> dict[str, ET.Element]:
    found = [one for one in plots(text) if one.get("class") == "plot"]
    return {str(one.findtext("text[@class='title']")): one for one in found}


def greys(chart: ET.Element) -> list[tuple[float, float]]:
    """From where to where on the axis; 84 is its left edge, and 820 pixels are an hour."""
    return [
        (float(one.attrib["x"]), float(one.attrib["width"]))
        for one in chart.findall("rect")
        if one.attrib["class"] == "gone"
    ]


def test_what_compaction_removed_is_grey_and_explained() -> None:
    text = page(full_report(("billing", "audit", "search")))
    parser = parsed(text)
    content = " ".join(" ".join(parser.words).split())
    for what in (
        "Compaction removed history, so this page is not complete.",
        "History is complete from 2025-10-09 09:23:20 on (30 min before the end)",
        "5 commits are left",
        "min.compaction.lag.ms=",
        "__group_events",
        "kcoord pipeline offsets-history",
        "≥ 123,456",
        "≥ 40",
        "At least 4 rewinds",
    ):
        assert what in content, what
    found = charts(text)
    for title in ("Lag over time, in records", "Age of the first message not read, over time", "Commits over time"):
        assert greys(found[title]) == [(84.0, 410.0)], title
        assert "history is not complete before 2025-10-09 09:23:20" in found[title].attrib["aria-label"]
    # Each lane from its own group's time on: 10, 11 and 12 minutes of the hour.
    lanes = greys(found["Rebalances over time"])
    assert [round(width * 60 / 704) for _, width in lanes] == [10, 11, 12]
    assert text.count('grey: <a href="#missing">') == 4


def test_a_page_of_complete_history_has_nothing_grey() -> None:
    report = dataclasses.replace(
        full_report(("billing",)), complete_ms=None, rebalances_complete_ms=None, gone=(), commits_left=0, lanes=()
    )
    text = page(report)
    content = " ".join(parsed(text).words)
    assert 'class="gone"' not in text and "missing" not in parsed(text).ids and "123,456" in content
    whole = page(dataclasses.replace(report, listing=tuple(
        dataclasses.replace(one, complete_ms=None) for one in report.listing
    )))  # fmt: skip
    assert "≥" not in re.sub(r'<section><h2 id="words">.*', "", whole, flags=re.DOTALL)


def test_rebalances_that_the_topic_kept_are_complete() -> None:
    report = dataclasses.replace(full_report(("billing",)), rebalances_complete_ms=None)
    content = " ".join(parsed(page(report)).words)
    assert "Rebalances are complete" in content and "≥ 40" not in content and "≥ 123,456" in content


def test_a_time_that_is_not_known_is_not_one() -> None:
    bar = Bar(BEGIN_MS, BEGIN_MS, 1, "member_left", None, 1, 2, 3, 2, None, is_timed=False)
    report = dataclasses.replace(full_report(("billing",)), lanes=(Lane(Owner(".", "billing"), (bar,)),))
    text = page(report)
    assert "over at 2025-10-09 08:53:20; how long it took is not known" in text
    assert "there is only the end" in text and "for 0 s" not in text


# --- all groups


def summary(name: str, log: str = ".", lag: int | None = 0, is_stopped: bool = False) -> GroupSummary:
    peak = LagPeak(Owner(log, name), 1, lag, lag, None, None, lag, BEGIN_MS + 59_000, 0 if lag else 3)
    return GroupSummary(peak, 10, None, 0, 0, is_stopped)


def test_each_group_has_a_link_of_its_own() -> None:
    """The same on every page, whichever groups and logs that has; none is another's."""
    names = ("billing", "team.a-b_c", "a b", "a-b", "a~b", "", "GROUP", *HOSTILE[:4])
    ids = {anchor(Owner(log, name)) for log in (".", "east", "a b") for name in names}
    assert len(ids) == 3 * len(names) and all(re.fullmatch(r"group-[A-Za-z0-9._~/-]+", one) for one in ids)
    assert anchor(Owner(".", "billing")) == "group-billing"
    assert anchor(Owner("east", "billing")) == "group-east/billing"
    report = full_report(("billing", "audit"))
    parser = parsed(page(report))
    for one in report.listing:
        # In the list, at a glance, in every table.
        assert anchor(one.owner) in parser.ids and parser.links.count(f"#{anchor(one.owner)}") >= 8
    assert "3 groups, of which 2 are listed" in " ".join(parser.words)


def test_filters_know_states_lag_and_rebalances() -> None:
    listing = (summary("a", lag=5), summary("b"), summary("c", is_stopped=True), summary("d", lag=None))
    report = Report(
        "data", BEGIN_MS, BEGIN_MS, BEGIN_MS + 60_000, trend_ms=BEGIN_MS + 54_000, logs=1, listing=listing,
        listing_total=4,
    )  # fmt: skip
    text = page(report)
    parser = parsed(text)
    rows = re.findall(r'<tr id="(.*?)" data-state="(.*?)" data-lag="(.)" data-rebalances="(.)">', text)
    assert rows == [
        ("group-a", "steady", "1", "0"),
        ("group-b", "no lag", "0", "1"),
        ("group-c", "stopped", "0", "1"),
        ("group-d", "–", "0", "1"),
    ]
    # Without the script there are no filters to be seen, and all rows.
    assert '<form id="filter" class="filter" hidden>' in text
    assert re.findall("<option[^>]*>(.*?)</option>", text) == ["any", "steady", "no lag", "stopped", "–"]
    # What a form control is for is said in words.
    assert parser.tags["label"] == parser.tags["input"] + parser.tags["select"] == 4
    assert 'role="status"' in text


def test_groups_that_stopped_take_no_places_of_others() -> None:
    stopped = tuple(lagging(9000, 9000, 10, f"idle-{number}") for number in range(5))
    report = Report(
        "data", BEGIN_MS, BEGIN_MS, BEGIN_MS + 60_000, trend_ms=BEGIN_MS + 54_000, logs=1,
        lag_peaks=(lagging(100, 700), lagging(0, 0, 59, "well")), stopped=stopped,
    )  # fmt: skip
    text = page(report)
    parsed(text)
    lines = [html.unescape(re.sub("<[^>]+>", "", one)) for one in re.findall("<li>(.*?)</li>", text)]
    assert [line.split()[0] for line in lines] == ["billing", "idle-0", "idle-1"]
    at_work, others = re.findall("<table>.*?</table>", text)
    assert "groups at work" in at_work and "well" in at_work and "idle" not in at_work
    assert "groups with lag that stopped" in others and "idle-4" in others
