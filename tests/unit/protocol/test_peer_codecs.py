"""Our codec against those of kafka-python and aiokafka: what we write, they read, and write again to the same bytes.

Both are independent descriptions of the protocol, so a field of a wrong type, order or version cannot hide.
"""

from __future__ import annotations

import importlib
import inspect
import io
from typing import Any

import aiokafka.protocol
import kafka.protocol
import pytest
from aiokafka.protocol.api import RequestStruct as AioRequest
from aiokafka.protocol.struct import Struct as AioStruct
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage

from kcoord.codegen.schema import Message, snake_case
from kcoord.protocol.apis import APIS
from kcoord.wire.primitives import BytesWriter
from tests.unit.protocol import strategies

MESSAGES = {m.name: m for m in strategies.MESSAGES if m.type in ("request", "response")}


def kafka_python_classes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for package in ("admin", "consumer", "metadata", "producer"):
        module = importlib.import_module(f"{kafka.protocol.__name__}.{package}")
        for name, item in vars(module).items():
            if inspect.isclass(item) and issubclass(item, ApiMessage) and name in MESSAGES:
                found[name] = item
    return found


def aiokafka_classes() -> dict[tuple[str, int], Any]:
    """(message name, version) -> the struct class of that version."""
    found: dict[tuple[str, int], Any] = {}
    names = {api.key: api.name for api in APIS.values()}
    for module_name in (
        "admin",
        "commit",
        "coordination",
        "fetch",
        "group",
        "metadata",
        "offset",
        "produce",
        "transaction",
    ):
        module = importlib.import_module(f"{aiokafka.protocol.__name__}.{module_name}")
        for item in vars(module).values():
            if not inspect.isclass(item) or not issubclass(item, AioStruct):
                continue
            key, version = getattr(item, "API_KEY", None), getattr(item, "API_VERSION", None)
            if not isinstance(key, int) or not isinstance(version, int) or key not in names:
                continue
            kind = "Request" if issubclass(item, AioRequest) else "Response"
            found[names[key] + kind, version] = item
    return found


# aiokafka 0.14 describes these without the current leader epoch that version 4 brought. Kafka has it.
AIOKAFKA_IS_WRONG = {("ListOffsetsRequest", 4), ("ListOffsetsRequest", 5)}
KAFKA_PYTHON = kafka_python_classes()
AIOKAFKA = aiokafka_classes()


def encoded(message: Message, version: int, data: st.DataObject) -> bytes:
    holder = strategies.module(message)
    value = data.draw(strategies.struct_values(holder, message, message.root, version))
    if message.name == "ApiVersionsResponse":
        # A client reads an answer with an error as version 0, whatever it asked for.
        value.error_code = 0
    if message.name == "InitProducerIdRequest":
        # With a tag of our own, which peers do not write again.
        value.group_assignment = None
    w = BytesWriter()
    getattr(holder, f"encode_{snake_case(message.name)}")(w, value, version)
    return w.getvalue()


def test_the_peers_know_our_apis() -> None:
    # A peer that knew nothing would make the tests below pass by testing nothing.
    unknown = sorted(set(MESSAGES) - set(KAFKA_PYTHON))
    # kafka-python does not speak KIP-848, of which two APIs were never released.
    verbs = ("Describe", "Heartbeat", "InstallAssignment", "PrepareAssignment")
    assert unknown == [f"ConsumerGroup{verb}{kind}" for verb in verbs for kind in ("Request", "Response")]
    assert len(AIOKAFKA) >= 60


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, version)
        for name in sorted(KAFKA_PYTHON)
        for version in range(MESSAGES[name].valid.low, MESSAGES[name].valid.high + 1)
    ],
)
@settings(
    max_examples=6,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_kafka_python_reads_and_rewrites(name: str, version: int, data: st.DataObject) -> None:
    ours = encoded(MESSAGES[name], version, data)
    theirs = KAFKA_PYTHON[name].decode(ours, version=version)
    theirs._header = None  # decode leaves it out, encode looks at it
    assert bytes(theirs.encode(version=version)) == ours


@pytest.mark.parametrize(
    ("name", "version"),
    [
        key
        for key in sorted(set(AIOKAFKA) - AIOKAFKA_IS_WRONG)
        if MESSAGES[key[0]].valid.low <= key[1] <= MESSAGES[key[0]].valid.high
    ],
)
@settings(
    max_examples=6,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_aiokafka_reads_and_rewrites(name: str, version: int, data: st.DataObject) -> None:
    ours = encoded(MESSAGES[name], version, data)
    source = io.BytesIO(ours)
    theirs = AIOKAFKA[name, version].decode(source)
    assert source.read() == b""
    assert theirs.encode() == ours
