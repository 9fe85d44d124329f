"""Settings: the table, the sources and their order, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord.cli import settings_listing
from kcoord.core.config import CoreConfig
from kcoord.server.settings.config import ServerConfig
from kcoord.server.settings.load import Config, ConfigError, load
from kcoord.server.settings.table import BY_NAME, SETTINGS

ROOT = Path(__file__).resolve().parents[4]
# Not settings: the directory knows the cluster, and the rest is made from the settings.
DERIVED = {"cluster_id", "static_values", "server_values"}


def test_the_table_covers_the_core_and_has_its_defaults() -> None:
    core = CoreConfig()
    in_table = {s.attribute.removeprefix("core."): s for s in SETTINGS if s.attribute.startswith("core.")}
    # dir(), since an instance of a native class has no __dict__.
    assert {name for name in dir(core) if not name.startswith("_")} - DERIVED == set(in_table)
    for attribute, setting in in_table.items():
        default = setting.default * setting.scale if isinstance(setting.default, int) else setting.default
        assert (getattr(core, attribute) or "") == (default or ""), setting.name


def test_the_table_covers_the_server() -> None:
    in_table = {s.attribute.removeprefix("server.") for s in SETTINGS if s.attribute.startswith("server.")}
    assert {name for name in dir(ServerConfig()) if not name.startswith("_")} == in_table


def test_defaults_match_the_table() -> None:
    config = load()
    assert {s.name: config.value(s) for s in SETTINGS} == {s.name: s.default for s in SETTINGS}
    assert config.explicit == {}


def test_every_setting_is_documented_with_its_unit() -> None:
    for setting in SETTINGS:
        assert setting.doc.endswith("."), setting.name
        if setting.kind == "integer" and setting.name != "node.id":
            assert setting.unit, setting.name


def test_the_document_matches_the_table() -> None:
    document = (ROOT / "docs" / "configuration.md").read_text()
    assert document == settings_listing.as_markdown(), "run: make gen"


def test_the_listings_have_every_setting() -> None:
    assert {row["name"] for row in json.loads(settings_listing.as_json())} == set(BY_NAME)
    table = settings_listing.as_table()
    assert all(name in table for name in BY_NAME)


def value(config: Config, name: str) -> int | bool | str:
    return config.value(BY_NAME[name])


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "kcoord.toml"
    file.write_text('"num.partitions" = 2\n[log]\nsync = "os"\n[group.max]\nsize = 7\n')
    config = load(config_file=str(file))
    assert (value(config, "num.partitions"), value(config, "log.sync")) == (2, "os")
    assert value(config, "group.max.size") == 7
    environ = {"KCOORD_LOG_SYNC": "memory", "KCOORD_NUM_PARTITIONS": "3", "HOME": "/"}
    config = load(config_file=str(file), environ=environ)
    assert (value(config, "num.partitions"), value(config, "log.sync")) == (3, "memory")
    config = load(config_file=str(file), environ=environ, assignments=["log.sync=always"])
    assert value(config, "log.sync") == "always"
    assert config.explicit["log.sync"] == ("always", "--set")


def test_flags_and_their_variables() -> None:
    environ = {"KCOORD_LISTEN": "127.0.0.1:1", "KCOORD_DATA": "a", "KCOORD_ADVERTISE": "b:2"}
    config = load(environ=environ)
    assert [(one.host, one.port) for one in config.listeners] == [("127.0.0.1", 1)]
    assert config.listeners[0].advertised_host == "b"
    assert config.server.data_dir == "a"
    config = load(environ=environ, listen=["::1", ":2"][1:], data="c")
    assert (config.listeners[0].host, config.listeners[0].port) == ("", 2)
    assert config.server.data_dir == "c"


def test_a_file_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[log]\nsync = 'os'\n")
    assert load(environ={"KCOORD_CONFIG": str(file)}).server.log_sync == "os"


def test_profile_loses_against_everything_else() -> None:
    config = load(profile="test")
    assert (config.server.log_sync, config.listeners[0].port) == ("memory", 0)
    assert load(environ={"KCOORD_PROFILE": "test"}).server.log_sync == "memory"
    assert load(profile="test", assignments=["log.sync=os"]).server.log_sync == "os"


def test_a_broker_s_properties_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "# a broker\nprocess.roles=broker,controller\nnode.id=7\ncontroller.quorum.voters=7@localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n"
        "advertised.listeners=PLAINTEXT://example.test:9092\nnum.io.threads=8\nlog.dirs=/var/kafka\n"
        "log.retention.hours=168\nlog.retention.ms=1000\nnum.partitions = \\\n   4\n"
    )
    config = load(config_file=str(file))
    assert config.core.node_id == 7
    assert config.core.num_partitions == 4
    assert config.server.data_dir == "/var/kafka"
    assert config.core.log_retention_ms == 1000  # the finer unit wins
    (listener,) = config.listeners
    assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", "", 9092)
    assert (listener.advertised_host, listener.advertised_port) == ("example.test", 9092)
    assert sorted(warning.split()[0] for warning in config.warnings) == [
        "controller.quorum.voters", "num.io.threads", "process.roles",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "attribute", "expected"),
    [
        ("broker.id", "3", "node_id", 3),
        ("offsets.retention.minutes", "2", "offsets_retention_ms", 120000),
        ("offsets.retention.ms", "5", "offsets_retention_ms", 5),
        ("log.retention.minutes", "3", "log_retention_ms", 180000),
        ("log.retention.hours", "-1", "log_retention_ms", -1),
        ("log.roll.hours", "1", "log_roll_ms", 3600000),
        ("auto.create.topics.enable", "FALSE", "auto_create_topics_enable", False),
        ("broker.rack", "r1", "rack", "r1"),
        ("empty_group_id_commit", "allow", "empty_group_id_commit", "allow"),
        ("group.consumer.migration.policy", "Upgrade", "group_consumer_migration_policy", "upgrade"),
        ("group.consumer.assignors", " range , mine", "group_consumer_assignors", "range,mine"),
        (
            "group.coordinator.rebalance.protocols",
            " classic , streams,classic",
            "group_coordinator_rebalance_protocols",
            "classic,streams",
        ),
    ],
)
def test_names_and_units(name: str, text: str, attribute: str, expected: object) -> None:
    assert getattr(load(assignments=[f"{name}={text}"]).core, attribute) == expected


def test_static_values_are_what_was_configured() -> None:
    core = load(assignments=["broker.id=3", "offsets.retention.ms=120000", "delete.topic.enable=false"]).core
    assert core.static_values == {
        "node.id": "3", "offsets.retention.minutes": "2", "delete.topic.enable": "false",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("log.synk=os", "unknown setting log.synk (--set); did you mean log.sync?"),
        ("qqqq=1", "unknown setting qqqq (--set)"),
        ("log.sync", "--set log.sync: must be NAME=VALUE"),
        ("log.sync=sometimes", "must be one of always, os, memory"),
        ("num.partitions=two", "must be a whole number"),
        ("num.partitions=0", "must be from 1 to 2147483647 partitions"),
        ("offsets.retention.minutes=0", "must be from 1 to 2147483647 minutes"),
        ("auto.create.topics.enable=1", "must be true or false"),
        ("log.dirs=a,b", "only one data directory"),
        ("log.retention.ms=0", "log.retention.ms must be -1 (unlimited), or 1 or more"),
        ("log.retention.hours=0", "log.retention.ms must be -1 (unlimited), or 1 or more"),
        ("group.min.session.timeout.ms=2000000", "larger than group.max.session.timeout.ms"),
        ("group.consumer.migration.policy=both", "must be one of bidirectional, upgrade, downgrade, disabled"),
        ("group.consumer.assignors=", "a name is empty"),
        ("group.consumer.assignors=range,", "a name is empty"),
        ("group.coordinator.rebalance.protocols=consumer", "classic is required"),
        ("group.coordinator.rebalance.protocols=classic,Consumer", "'Consumer' must be one of consumer, classic"),
        ("group.coordinator.rebalance.protocols=", "'' must be one of consumer, classic, share, streams"),
        ("group.consumer.assignors=range,uniform,range", "a name is listed twice"),
        ("group.consumer.regex.refresh.interval.ms=9999", "must be from 10000"),
        ("group.consumer.session.timeout.ms=0", "must be from 1"),
        ("group.consumer.session.timeout.ms=44999", "less than group.consumer.min.session.timeout.ms (45000)"),
        ("group.consumer.session.timeout.ms=60001", "larger than group.consumer.max.session.timeout.ms (60000)"),
        ("group.consumer.min.session.timeout.ms=60001", "larger than group.consumer.max.session.timeout.ms"),
        ("group.consumer.heartbeat.interval.ms=4999", "less than group.consumer.min.heartbeat.interval.ms (5000)"),
        ("group.consumer.max.assignment.interval.ms=999", "larger than group.consumer.max.assignment.interval.ms"),
        ("group.consumer.max.heartbeat.interval.ms=4999", "larger than group.consumer.max.heartbeat.interval.ms"),
        ("listeners=nowhere", "must be HOST:PORT"),
        ("listeners=SSL://:9093", "TLS and SASL are not supported"),
        ("ssl.keystore.location=x", "would be open"),
        ("authorizer.class.name=x", "would be open"),
    ],
)
def test_mistakes_are_named(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(assignments=[assignment])
    assert message in str(caught.value)


def test_a_session_must_be_longer_than_the_time_between_heartbeats() -> None:
    values = ["group.consumer.max.heartbeat.interval.ms=60000", "group.consumer.heartbeat.interval.ms=45000"]
    with pytest.raises(ConfigError, match="must be less than group.consumer.session.timeout.ms"):
        load(assignments=values)
    assert load(assignments=[*values, "group.consumer.session.timeout.ms=45001"]).core is not None


def test_a_broker_s_settings_without_effect_are_accepted_with_a_warning() -> None:
    values = ["group.consumer.assignor.offload.enable=false", "group.coordinator.threads=4"]
    assert len(load(assignments=values).warnings) == 2


def test_unknown_variables_and_the_links_of_a_kubernetes_service() -> None:
    load(environ={"KCOORD_SERVICE_HOST": "10.0.0.1", "KCOORD_PORT": "tcp://10.0.0.1:9092", "KCOORD_COMPILE": "1"})
    load(environ={"KCOORD_PORT_9092_TCP_ADDR": "10.0.0.1", "KCOORD_SERVICE_PORT_KAFKA": "9092"})
    load(environ={"KCOORD_UI_SERVICE_HOST": "10.0.0.1", "KCOORD_UI_PORT": "tcp://10.0.0.1:80"})
    load(environ={"KCOORD_UI_PORT_80_TCP_PROTO": "tcp", "KCOORD_UI_SERVICE_PORT": "80"})
    with pytest.raises(ConfigError, match="unknown setting KCOORD_LISTEN_PORT"):
        load(environ={"KCOORD_LISTEN_PORT": "9092"})
    with pytest.raises(ConfigError, match="did you mean KCOORD_LOG_SYNC"):
        load(environ={"KCOORD_LOG_SINK": "os"})


@pytest.mark.parametrize("text", ["a = [", "a = 1.5\n", "[log]\nsync = 2020-01-01\n"])
def test_files_that_are_no_settings(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load(config_file=str(file))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(config_file=str(tmp_path / "none.toml"))


def test_a_produce_frame_can_hold_the_largest_message() -> None:
    config = load(assignments=["message.max.bytes=50000000"])
    assert config.server.frame_produce_bytes_max > 50000000


def test_every_setting_is_declared_once() -> None:
    names = [setting.name for setting in SETTINGS]
    attributes = [setting.attribute for setting in SETTINGS if setting.attribute]
    assert sorted(names) == sorted(set(names))
    assert sorted(attributes) == sorted(set(attributes))
