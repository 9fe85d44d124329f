"""Which settings the logs of topics have: the server's, the topic's own, changed ones, and after a restart."""

from __future__ import annotations

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.log_config import PREALLOCATED_BYTES
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kcoord.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.harness.engine import Client, finish_turn, open_engine
from tests.unit.engine.test_produce_jobs import request, small

NOW = Now(0, 1_700_000_000_000)
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
NAMES = ("plain", "on", "off")


def opened(storage: MemoryStorage, preallocate: bool = False) -> tuple[Engine, Client]:
    config = CoreConfig()
    config.group_events_enable = False
    config.log_preallocate = preallocate
    engine = open_engine(storage, NOW, sync="memory", config=config)
    return engine, Client(engine)


def create(client: Client) -> None:
    own = {"on": [CreatableTopicConfig("preallocate", "TRUE")], "off": [CreatableTopicConfig("preallocate", "false")]}
    body = CreateTopicsRequest([CreatableTopic(name, 1, 1, [], own.get(name, [])) for name in NAMES])
    assert {one.error_code for one in client.ask(apis.CREATE_TOPICS, 5, body, NOW).topics} == {0}
    for name in NAMES:
        client.ask(apis.PRODUCE, 9, request((0, small()), topic=name), NOW)


def alter(client: Client, kind: int, name: str, key: str, value: str | None) -> None:
    change = AlterableConfig(key, SET if value is not None else DELETE, value)
    body = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, [change])])
    assert client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, body, NOW).responses[0].error_code == 0


def preallocating(engine: Engine) -> list[str]:
    finish_turn(engine, NOW)
    found = []
    for name in NAMES:
        log = engine.directory.get(name, 0)
        assert log is not None and log.config.preallocated_bytes in (0, PREALLOCATED_BYTES)
        if log.config.preallocated_bytes:
            found.append(name)
    return found


def test_preallocation_is_off_unless_the_topic_says_otherwise() -> None:
    storage = MemoryStorage()
    engine, client = opened(storage)
    create(client)
    assert preallocating(engine) == ["on"]
    alter(client, TOPIC, "plain", "preallocate", "true")
    assert preallocating(engine) == ["plain", "on"]
    alter(client, TOPIC, "on", "preallocate", None)
    assert preallocating(engine) == ["plain"]
    engine.stop()
    again, _ = opened(storage)
    assert preallocating(again) == ["plain"]


def test_the_server_decides_for_topics_that_do_not() -> None:
    storage = MemoryStorage()
    engine, client = opened(storage, preallocate=True)
    create(client)
    assert preallocating(engine) == ["plain", "on"]
    body = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "plain", ["preallocate"])])
    (shown,) = client.ask(apis.DESCRIBE_CONFIGS, 4, body, NOW).results[0].configs
    assert shown.value == "true"
    # A value set on the running broker is above the one that it was started with.
    alter(client, BROKER, "", "log.preallocate", "false")
    assert preallocating(engine) == ["on"]
    alter(client, BROKER, "", "log.preallocate", None)
    assert preallocating(engine) == ["plain", "on"]
