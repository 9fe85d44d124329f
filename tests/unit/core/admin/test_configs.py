"""Configurations: what may be set, what is in force, and where it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.topics.config_defs import GROUP_CONFIGS, TOPIC_CONFIGS, parse_double, parse_integer
from kcoord.core.topics.registry import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.alter_configs import AlterableConfig as Replacement
from kcoord.protocol.alter_configs import AlterConfigsRequest
from kcoord.protocol.alter_configs import AlterConfigsResource as ReplacedResource
from kcoord.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.unit.core.admin.admin_rig import AdminRig
from tests.unit.core.topics.test_topics import create

SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(rig: AdminRig, kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False) -> int:
    resource = AlterConfigsResource(kind, name, [AlterableConfig(*change) for change in changes])
    answer = rig.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([resource], validate))
    assert len(answer.responses) == 1
    code: int = answer.responses[0].error_code
    assert (answer.responses[0].error_message is None) == (code == errors.NONE)
    return code


def replace(rig: AdminRig, kind: int, name: str, *values: tuple[str, str | None], validate: bool = False) -> int:
    resource = ReplacedResource(kind, name, [Replacement(*value) for value in values])
    (answer,) = rig.ask(apis.ALTER_CONFIGS, 2, AlterConfigsRequest([resource], validate)).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    code: int = answer.error_code
    return code


def describe(rig: AdminRig, kind: int, name: str, *keys: str, docs: bool = False) -> dict[str, Any]:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    answer = rig.ask(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest([resource], True, docs))
    result = answer.results[0]
    assert result.error_code == errors.NONE
    return {config.name: config for config in result.configs}


def value_of(rig: AdminRig, topic: str, name: str) -> str:
    found = rig.topics.get(topic)
    assert found is not None
    return rig.topics.config_value(found, name)


def test_every_topic_configuration_of_kafka_is_known_with_a_description() -> None:
    assert len(TOPIC_CONFIGS) == 33
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
    rig = AdminRig()
    create(rig, "t")
    shown = describe(rig, RESOURCE_TOPIC, "t", docs=True)
    assert list(shown) == list(TOPIC_CONFIGS)
    for name, config in shown.items():
        definition = TOPIC_CONFIGS[name]
        assert config.value == definition.default
        assert config.documentation
        assert definition.check(definition.default) == ""


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cleanup.policy", ["", "delete", "compact , delete"], ["remove", "delete,keep", "Delete"]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10", "-2", "x"]),
        ("compression.lz4.level", ["1", "17"], ["0", "18"]),
        ("compression.type", ["producer", "zstd"], ["none", "", "ZSTD"]),
        ("compression.zstd.level", ["-131072", "22"], ["-131073", "23"]),
        ("follower.replication.throttled.replicas", ["", "*", "0:1,1:2"], ["0", "a:b", "*,0:1", "0:1:2"]),
        (
            "max.message.bytes",
            ["0", "2147483647", " 7 ", "+7"],
            ["-1", "2147483648", "1_000", "٣", "7.0", ""],
        ),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1.0", "1e-1"], ["1.1", "-0.1", "nan", "inf", "x"]),
        ("preallocate", ["true", "FALSE"], ["yes", "1"]),
        ("retention.ms", ["-1", "9223372036854775807"], ["-2", "9223372036854775808"]),
        ("segment.bytes", ["1048576"], ["1048575"]),
        ("remote.storage.enable", ["false"], ["true"]),
        ("min.compaction.lag.ms", ["0"], ["9223372036854775808"]),
    ],
)
def test_values(name: str, good: list[str], bad: list[str]) -> None:
    rig = AdminRig()
    create(rig, "t")
    for value in good:
        assert alter(rig, RESOURCE_TOPIC, "t", (name, SET, value)) == errors.NONE, value
    before = len(rig.log)
    for value in bad:
        assert alter(rig, RESOURCE_TOPIC, "t", (name, SET, value)) == errors.INVALID_CONFIG, value
    assert len(rig.log) == before


def test_what_depends_on_each_other_is_checked_together() -> None:
    rig = AdminRig()
    create(rig, "t")
    assert alter(rig, RESOURCE_TOPIC, "t", ("max.compaction.lag.ms", SET, "5")) == errors.NONE
    assert alter(rig, RESOURCE_TOPIC, "t", ("min.compaction.lag.ms", SET, "6")) == errors.INVALID_CONFIG
    both = (("min.compaction.lag.ms", SET, "6"), ("max.compaction.lag.ms", SET, "7"))
    assert alter(rig, RESOURCE_TOPIC, "t", *both) == errors.NONE


def test_lists_are_edited_from_what_is_in_force() -> None:
    rig = AdminRig()
    create(rig, "t")
    assert alter(rig, RESOURCE_TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == errors.NONE
    assert value_of(rig, "t", "cleanup.policy") == "delete,compact"
    assert alter(rig, RESOURCE_TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == errors.NONE
    assert value_of(rig, "t", "cleanup.policy") == "compact"
    assert alter(rig, RESOURCE_TOPIC, "t", ("cleanup.policy", DELETE, None)) == errors.NONE
    assert value_of(rig, "t", "cleanup.policy") == "delete"


def test_nothing_is_written_without_a_change_or_for_validation() -> None:
    rig = AdminRig()
    create(rig, "t", retention_ms="5")
    before = len(rig.log)
    assert alter(rig, RESOURCE_TOPIC, "t", ("retention.ms", SET, "5")) == errors.NONE
    assert alter(rig, RESOURCE_TOPIC, "t", ("flush.ms", DELETE, None)) == errors.NONE
    assert alter(rig, RESOURCE_TOPIC, "t", ("retention.ms", SET, "6"), validate=True) == errors.NONE
    assert len(rig.log) == before


def test_a_topic_takes_the_strongest_value() -> None:
    config = CoreConfig()
    config.message_max_bytes = 1000
    config.static_values = {"message.max.bytes": "1000"}
    rig = AdminRig(config)
    create(rig, "t")
    rig.topics.reconfigured.clear()
    sources = []
    assert value_of(rig, "t", "max.message.bytes") == "1000"
    sources.append(describe(rig, RESOURCE_TOPIC, "t")["max.message.bytes"].config_source)
    assert alter(rig, RESOURCE_BROKER, "", ("message.max.bytes", SET, "2000")) == errors.NONE
    assert value_of(rig, "t", "max.message.bytes") == "2000"
    sources.append(describe(rig, RESOURCE_TOPIC, "t")["max.message.bytes"].config_source)
    assert alter(rig, RESOURCE_BROKER, "1", ("message.max.bytes", SET, "3000")) == errors.NONE
    assert value_of(rig, "t", "max.message.bytes") == "3000"
    sources.append(describe(rig, RESOURCE_TOPIC, "t")["max.message.bytes"].config_source)
    assert alter(rig, RESOURCE_TOPIC, "t", ("max.message.bytes", SET, "4000")) == errors.NONE
    assert value_of(rig, "t", "max.message.bytes") == "4000"
    shown = describe(rig, RESOURCE_TOPIC, "t")["max.message.bytes"]
    sources.append(shown.config_source)
    assert sources == [4, 3, 2, 1]
    assert [(s.name, s.value, s.source) for s in shown.synonyms] == [
        ("max.message.bytes", "4000", 1),
        ("message.max.bytes", "3000", 2),
        ("message.max.bytes", "2000", 3),
        ("message.max.bytes", "1000", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    # Topics to look at again: all of them twice, then one.
    assert rig.topics.reconfigured == ["", "", "t"]


def test_the_broker_shows_what_it_heeds_and_takes_what_it_can() -> None:
    config = CoreConfig()
    config.group_max_size = 7
    config.static_values = {"group.max.size": "7"}
    rig = AdminRig(config)
    shown = describe(rig, RESOURCE_BROKER, "1", docs=True)
    assert (shown["group.max.size"].value, shown["group.max.size"].config_source) == ("7", 4)
    assert shown["group.max.size"].read_only
    assert not shown["message.max.bytes"].read_only
    assert all(entry.documentation for entry in shown.values())
    assert describe(rig, RESOURCE_BROKER, "") == {}
    assert alter(rig, RESOURCE_BROKER, "1", ("group.max.size", SET, "8")) == errors.INVALID_REQUEST
    assert alter(rig, RESOURCE_BROKER, "1", ("no.such", SET, "8")) == errors.INVALID_REQUEST
    assert alter(rig, RESOURCE_BROKER, "1", ("log.retention.ms", SET, "soon")) == errors.INVALID_REQUEST
    for name in ("", "1"):
        assert alter(rig, RESOURCE_BROKER, name, ("log.retention.ms", SET, "0")) == errors.INVALID_REQUEST
        assert alter(rig, RESOURCE_BROKER, name, ("log.retention.ms", SET, "-1"), validate=True) == errors.NONE
    assert alter(rig, RESOURCE_BROKER, "2", ("log.retention.ms", SET, "8")) == errors.INVALID_REQUEST
    assert alter(rig, RESOURCE_BROKER, "x", ("log.retention.ms", SET, "8")) == errors.INVALID_REQUEST
    assert alter(rig, RESOURCE_BROKER, "", ("log.retention.ms", SET, "8")) == errors.NONE
    assert list(describe(rig, RESOURCE_BROKER, "")) == ["log.retention.ms"]
    assert describe(rig, RESOURCE_BROKER, "1")["log.retention.ms"].value == "8"


def test_groups_take_consumer_keys_within_bounds() -> None:
    rig = AdminRig()
    key = "consumer.session.timeout.ms"
    assert alter(rig, RESOURCE_GROUP, "g", (key, SET, "50000")) == errors.NONE
    assert rig.topics.configs_of(RESOURCE_GROUP, "g") == {key: "50000"}
    for name, value in ((key, "44999"), (key, "60001"), (key, "x"), ("share.session.timeout.ms", "1")):
        assert alter(rig, RESOURCE_GROUP, "g", (name, SET, value)) == errors.INVALID_CONFIG
    assert alter(rig, RESOURCE_GROUP, "", (key, SET, "50000")) == errors.INVALID_REQUEST
    assert list(describe(rig, RESOURCE_GROUP, "g")) == list(GROUP_CONFIGS)
    assert alter(rig, RESOURCE_GROUP, "g", (key, DELETE, None)) == errors.NONE
    assert rig.topics.configs[RESOURCE_GROUP] == {}


@pytest.mark.parametrize("kind", [RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, 99])
def test_other_resources_cannot_be_altered(kind: int) -> None:
    rig = AdminRig()
    assert alter(rig, kind, "1", ("a", SET, "1")) == errors.INVALID_REQUEST


def test_configurations_survive_a_restart_and_go_with_their_topic() -> None:
    rig = AdminRig()
    create(rig, "t", retention_ms="5")
    alter(rig, RESOURCE_TOPIC, "t", ("flush.ms", SET, "9"))
    rig.open()
    assert value_of(rig, "t", "retention.ms") == "5"
    assert value_of(rig, "t", "flush.ms") == "9"
    assert value_of(rig, "t", "no.such") == ""


def test_numbers_are_read_as_java_reads_them() -> None:
    assert [parse_integer(text) for text in ("7", "+7", "-7", "007")] == [7, 7, -7, 7]
    for text in ("", "-", "+-1", "1_0", " 1", "1.0", "0x1", "٣", "9" * 41):
        assert parse_integer(text) is None, text
    assert [parse_double(text) for text in ("1", "1.5", "1e3", ".5")] == [1.0, 1.5, 1000.0, 0.5]
    for text in ("", "nan", "inf", "1_0", "e", "1e999"):
        assert parse_double(text) is None, text


def test_replaced_configs() -> None:
    """AlterConfigs: what is not named is deleted, for each kind of resource, and nothing changes after an error."""
    rig = AdminRig()
    create(rig, "t", retention_ms="1000", segment_ms="5000")
    assert replace(rig, RESOURCE_TOPIC, "t", ("segment.ms", "6000"), validate=True) == errors.NONE
    assert replace(rig, RESOURCE_TOPIC, "t", ("segment.ms", "soon")) == errors.INVALID_CONFIG
    assert replace(rig, RESOURCE_TOPIC, "t", ("segment.ms", None)) == errors.INVALID_REQUEST
    assert replace(rig, RESOURCE_BROKER_LOGGER, "1", ("kafka", "INFO")) == errors.INVALID_REQUEST
    assert rig.topics.configs_of(RESOURCE_TOPIC, "t") == {"retention.ms": "1000", "segment.ms": "5000"}
    assert replace(rig, RESOURCE_TOPIC, "t", ("segment.ms", "6000"), ("cleanup.policy", "compact")) == errors.NONE
    assert rig.topics.configs_of(RESOURCE_TOPIC, "t") == {"segment.ms": "6000", "cleanup.policy": "compact"}
    assert replace(rig, RESOURCE_TOPIC, "t") == errors.NONE
    assert rig.topics.configs_of(RESOURCE_TOPIC, "t") == {}
    for kind, name, key, value in (
        (RESOURCE_BROKER, "", "log.retention.ms", "9000"),
        (RESOURCE_GROUP, "g", "consumer.session.timeout.ms", "50000"),
    ):
        assert replace(rig, kind, name, (key, value)) == errors.NONE
        assert rig.topics.configs_of(kind, name) == {key: value}
        assert replace(rig, kind, name) == errors.NONE
        assert rig.topics.configs_of(kind, name) == {}


def test_deleted_configs_count_for_the_limit_of_a_request() -> None:
    rig = AdminRig()
    for name in ("a", "b"):
        create(rig, name, retention_ms="1000", segment_ms="5000")
    rig.configs.altered_max = 3
    resources = [ReplacedResource(RESOURCE_TOPIC, name, []) for name in ("a", "b")]
    answer = rig.ask(apis.ALTER_CONFIGS, 2, AlterConfigsRequest(resources))
    assert [one.error_code for one in answer.responses] == [errors.POLICY_VIOLATION] * 2
    assert rig.topics.configs_of(RESOURCE_TOPIC, "a")
    rig.configs.altered_max = 4
    answer = rig.ask(apis.ALTER_CONFIGS, 2, AlterConfigsRequest(resources))
    assert [one.error_code for one in answer.responses] == [errors.NONE] * 2
