"""Clients that are killed while they are in the middle of something; each says in one JSON line when it is there.

python -m tests.data.broker_victims member BOOTSTRAP NAME GROUP PROTOCOL TOPIC [SETTING=VALUE]...
python -m tests.data.broker_victims transaction BOOTSTRAP NAME TIMEOUT_MS TOPIC PARTITION GROUP
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

OPEN_OFFSET = 77


def member(bootstrap: str, name: str, group: str, protocol: str, topic: str, *settings: str) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": name,
        "group.id": group,
        "enable.auto.commit": False,
    }
    if protocol == "consumer":
        config["group.protocol"] = "consumer"
    else:
        config.update({"session.timeout.ms": 6000, "heartbeat.interval.ms": 300})
    config.update({name: value for name, _, value in (setting.partition("=") for setting in settings)})
    consumer = Consumer({**config, "log_level": 0})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    owned = sorted([at.topic, at.partition] for at in consumer.assignment())
    print_json({"group": group, "owned": owned})
    while True:
        consumer.poll(0.1)


def transaction(bootstrap: str, name: str, timeout_ms: str, topic: str, partition: str, group: str) -> None:
    """Produces three records and sends an offset of a group without members; commits neither."""
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
    producer = Producer({**config, "transaction.timeout.ms": int(timeout_ms)})
    producer.init_transactions(20)
    producer.begin_transaction()
    for i in range(3):
        producer.produce(topic, b"of %s, %d" % (name.encode(), i), b"open", int(partition))
    producer.flush()
    helper = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    offsets = [TopicPartition(topic, int(partition), OPEN_OFFSET, "open")]
    producer.send_offsets_to_transaction(offsets, helper.consumer_group_metadata(), 20)
    print_json(
        {
            "group": group,
            "topic": topic,
            "partition": int(partition),
            "offset": OPEN_OFFSET,
            "metadata": "open",
        }
    )
    time.sleep(600)


def print_json(did: dict[str, Any]) -> None:
    print(json.dumps(did), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "member":
        member(*sys.argv[2:])
    else:
        transaction(*sys.argv[2:])
