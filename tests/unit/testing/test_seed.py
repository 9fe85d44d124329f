"""Seeds as documents: what they mean, and where a mistake is reported."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kcoord.cli.main import serve
from kcoord.testing.state.records import NewRecord
from kcoord.testing.state.seed import SeedError, load_seed, parse_seed

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "seed.yaml"


def record(given: Any) -> NewRecord:
    (topic,) = parse_seed({"topics": {"t": {"records": [given]}}}, "seed").topics
    return topic.records[0]


def test_the_example() -> None:
    seed = load_seed(EXAMPLE)
    assert [(topic.name, topic.partitions, len(topic.records)) for topic in seed.topics] == [
        ("orders", 3, 4), ("customers", 1, 2), ("invoices", 2, 0),
    ]  # fmt: skip
    orders, customers, _ = seed.topics
    assert orders.configs == {"retention.ms": -1}
    assert orders.records[0] == NewRecord(b"first order")
    assert orders.records[2] == NewRecord(
        b'{"item":"book","amount":2}', b"customer-7", [("source", b"seed")], None, 1_769_860_800_000
    )
    assert orders.records[3] == NewRecord(b"\xff\xff\xff\xff", b"\x00\x01\x02", [], 2)
    assert customers.records[1] == NewRecord(None, b"customer-8")
    assert seed.groups == {"billing": {("orders", 0): 1, ("orders", 1): 0, ("orders", 2): 0}}


def test_the_page_shows_a_seed() -> None:
    import yaml

    page = EXAMPLE.parents[1] / "docs" / "testing.md"
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    seed = parse_seed(yaml.safe_load(blocks[0]), "page")
    assert [record.key for record in seed.topics[0].records] == [None, b"customer-7", b"\x00\x01\x02"]
    assert seed.groups == {"billing": {("orders", 0): 1}}
    # The compose file.
    command = yaml.safe_load(blocks[1])["services"]["kcoord"]["command"]
    assert serve.make_context("serve", command[1:]).params["seed"] == "/seed.json"


def test_json_means_the_same(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "seed.json"
    path.write_text(json.dumps(yaml.safe_load(EXAMPLE.read_text())))
    found, expected = load_seed(path), load_seed(EXAMPLE)
    assert (found.topics, found.groups) == (expected.topics, expected.groups)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("ä", "ä".encode()),
        (7, b"7"),
        (True, b"true"),
        (["ä", None], '["ä",null]'.encode()),
        ({"base64": "/w==", "more": 1}, b'{"base64":"/w==","more":1}'),
        (b"\xff", b"\xff"),
    ],
)
def test_values(given: Any, value: bytes) -> None:
    assert record({"value": given}).value == value


@pytest.mark.parametrize(
    ("fields", "time_ms"),
    [
        ({"timestamp_ms": 5}, 5),
        ({"timestamp": "1970-01-01T00:00:01"}, 1000),
        ({"timestamp": "1970-01-01T02:00:01+02:00"}, 1000),
        ({}, None),
    ],
)
def test_times(fields: dict[str, Any], time_ms: int | None) -> None:
    assert record({"value": "v", **fields}).timestamp_ms == time_ms


def test_times_that_yaml_has_read(tmp_path: Path) -> None:
    path = tmp_path / "seed.yml"
    path.write_text("topics: {t: {records: [{timestamp: 1970-01-02}, {timestamp: 1970-01-01T00:00:02Z}]}}")
    assert [one.timestamp_ms for one in load_seed(path).topics[0].records] == [86_400_000, 2000]


def test_headers_in_their_order() -> None:
    given = [{"key": "a", "value": "1"}, {"key": "a", "value": None}]
    assert record({"headers": given}).headers == [("a", b"1"), ("a", None)]
    assert record({"headers": {"b": 2}}).headers == [("b", b"2")]


RECORDS = "topics.t.records"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "seed: a seed has the fields topics and groups, not []"),
        ({"topcis": {}}, "seed: unknown field 'topcis'; did you mean 'topics'?"),
        (
            {"users": {"alice": "secret"}},
            "seed: users: the server has no users and no ACLs (no SASL, no authorization)",
        ),
        ({"topics": {}, "acls": []}, "seed: acls: the server has no users and no ACLs"),
        ({"topics": ["t"]}, 'seed: topics: topics by name, not ["t"]'),
        ({"topics": {5: 1}}, "seed: topics: the name 5 is not text; put it in quotes"),
        ({"topics": {"t": "3"}}, "seed: topics.t: a topic has the fields"),
        ({"topics": {"t": 0}}, "seed: topics.t: 0 is not a number from 1 on"),
        ({"topics": {"t": {"partitions": True}}}, "seed: topics.t.partitions: true is not a number from 1 on"),
        ({"topics": {"t": {"configs": {"a": None}}}}, "seed: topics.t.configs.a: null is neither text nor a number"),
        ({"topics": {"t": {"records": {}}}}, None),
        ({"topics": {"t": {"records": "a"}}}, f'seed: {RECORDS}: a list of records, not "a"'),
        ({"topics": {"t": {"records": [None]}}}, f"seed: {RECORDS}[0]: a record is text, or has some of the fields"),
        ({"topics": {"t": {"records": ["a", {"vlaue": 1}]}}}, f"seed: {RECORDS}[1]: unknown field 'vlaue'; did you"),
        ({"topics": {"t": {"records": [{"key": {"base64": "?"}}]}}}, f'seed: {RECORDS}[0].key: "?" is not base64'),
        ({"topics": {"t": {"records": [{"value": float("nan")}]}}}, f"seed: {RECORDS}[0].value: NaN is not JSON"),
        (
            {"topics": {"t": {"records": [{"headers": [{"k": 1}]}]}}},
            f"seed: {RECORDS}[0].headers[0]: unknown field 'k'",
        ),
        ({"topics": {"t": {"records": [{"headers": [{}]}]}}}, f"seed: {RECORDS}[0].headers[0].key: null is not text"),
        ({"topics": {"t": {"records": [{"partition": -1}]}}}, f"seed: {RECORDS}[0].partition: -1 is not a number"),
        (
            {"topics": {"t": {"partitions": 2, "records": [{"partition": 2}]}}},
            f"seed: {RECORDS}[0].partition: partition 2 of a topic with 2",
        ),
        ({"topics": {"t": {"records": [{"timestamp": "now"}]}}}, f'seed: {RECORDS}[0].timestamp: "now" is not a time'),
        ({"topics": {"t": {"records": [{"timestamp": 5}]}}}, "milliseconds: timestamp_ms"),
        ({"topics": {"t": {"records": [{"timestamp": "2026-01-01", "timestamp_ms": 1}]}}}, "not both"),
        ({"groups": {"g": {"t": 5}}}, "seed: groups.g.t: offsets by partition, such as {0: 5}, not 5"),
        ({"groups": {"g": {"t": {"a": 5}}}}, 'seed: groups.g.t: "a" is not a number from 0 on'),
        ({"groups": {"g": {"t": {"0": -5}}}}, "seed: groups.g.t.0: -5 is not a number from 0 on"),
        ({"topics": {"t": 2}, "groups": {"g": {"t": {2: 5}}}}, "seed: groups.g.t: partition 2 of a topic with 2"),
    ],
)
def test_mistakes_have_a_place(document: Any, problem: str | None) -> None:
    if problem is None:
        parse_seed(document, "seed")
        return
    with pytest.raises(SeedError) as caught:
        parse_seed(document, "seed")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("seed.json", "{", "seed.json is not JSON: Expecting property name"),
        ("seed.txt", "topics:", "the name of a YAML file ends with .yaml or .yml"),
        ("seed.json", '{"topics": {"t": 1, "t": 2}}', "seed.json: 't' is given twice"),
        ("seed.yaml", "topics: {", "seed.yaml is not YAML: while parsing"),
        ("seed.yaml", "topics:\n  t: 1\n  t: 2\n", "seed.yaml, line 3: 't' is given twice"),
        ("seed.yaml", "topics: !!python/name:os.system", "could not determine a constructor"),
        ("seed.yaml", "\udcff", "seed.yaml cannot be read: 'utf-8' codec"),
    ],
)
def test_files_that_are_no_seed(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SeedError) as caught:
        load_seed(path)
    assert problem in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SeedError, match=r"none\.json cannot be read: No such file"):
        load_seed(tmp_path / "none.json")


def test_an_empty_file_is_an_empty_seed(tmp_path: Path) -> None:
    (tmp_path / "seed.yaml").write_text("# nothing yet\n")
    assert load_seed(tmp_path / "seed.yaml").topics == []


def test_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SeedError, match=r"needs PyYAML; install it \(pip install pyyaml\), or .* JSON"):
        load_seed(EXAMPLE)
