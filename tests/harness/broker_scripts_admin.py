"""Scripts about the cluster, topics and configs."""

from __future__ import annotations

from typing import Any

from tests.harness.schema_json import ZERO_UUID
from tests.harness.script_steps import (
    commit_request,
    create_topic,
    versions,
    wait_for_config,
    wait_for_coordinator,
    wait_for_topic,
)
from tests.harness.session import Session

UNKNOWN_ID = "AAAAAAAAAAAAAAAAAAAAZQ"
BAD_NAMES = {
    "empty": "",
    "a dot": ".",
    "two dots": "..",
    "with a space": "a b",
    "with a slash": "a/b",
    "not ASCII": "grün",
    "of 249 characters": "x" * 249,
    "of 250 characters": "x" * 250,
}


def cluster(s: Session) -> None:
    for version in versions("DescribeCluster"):
        s.call("cluster", "DescribeCluster", version, {})
        s.call("with operations", "DescribeCluster", version, {"includeClusterAuthorizedOperations": True})
        if version >= 1:
            for kind in (0, 1, 2, 3):
                s.call(f"endpoint type {kind}", "DescribeCluster", version, {"endpointType": kind}, on=f"e{kind}")
        if version >= 2:
            s.call("with fenced brokers", "DescribeCluster", version, {"includeFencedBrokers": True})
    named = {"clientSoftwareName": "some-client", "clientSoftwareVersion": "1.2.3"}
    for version in versions("ApiVersions"):
        s.call("api versions", "ApiVersions", version, named, on=f"v{version}")
        s.call("api versions a second time", "ApiVersions", version, named, on=f"v{version}")
    for version in (3, 4):
        for step, name, software_version in (
            ("no names", "", ""),
            ("a name with a space", "some client", "1"),
            ("a name that ends with a dash", "client-", "1"),
            ("a version with a slash", "client", "1/2"),
        ):
            request = {"clientSoftwareName": name, "clientSoftwareVersion": software_version}
            s.call(step, "ApiVersions", version, request, on="bad")
    s.raw("a version from the future", 18, 99, b"\x07unknown\x02x\x00", True, on="future")
    s.call("and then version 0", "ApiVersions", 0, {}, on="future")
    s.raw("version 5", 18, 5, b"\x07client\x02x\x00", True, on="future5")


def metadata(s: Session) -> None:
    create_topic(s, "md-topic", 2)
    for version in versions("Metadata"):
        s.call(
            "no topics asked for",
            "Metadata",
            version,
            {"topics": [], "allowAutoTopicCreation": False} if version else {"topics": [{"name": "md-topic"}]},
        )
        s.call("a topic", "Metadata", version, {"topics": [{"name": "md-topic"}], "allowAutoTopicCreation": False})
        if version >= 4:
            s.call(
                "an unknown topic",
                "Metadata",
                version,
                {"topics": [{"name": "md-nowhere"}], "allowAutoTopicCreation": False},
            )
        for step, name in BAD_NAMES.items():
            if "249" not in step:
                s.call(
                    f"a name {step}", "Metadata", version, {"topics": [{"name": name}], "allowAutoTopicCreation": False}
                )
        if version >= 8:
            wants = {"includeTopicAuthorizedOperations": True, "includeClusterAuthorizedOperations": True}
            s.call(
                "with operations",
                "Metadata",
                version,
                {"topics": [{"name": "md-topic"}], "allowAutoTopicCreation": False, **wants},
            )
    s.call(
        "the same topic twice", "Metadata", 9, {"topics": [{"name": "md-topic"}] * 2, "allowAutoTopicCreation": False}
    )
    for version in (10, 11, 12, 13):
        known = s.topic_ids["md-topic"]
        for step, topics in {
            "an unknown id": [{"topicId": UNKNOWN_ID, "name": None}],
            "a known id": [{"topicId": known, "name": None}],
            "a known id with its name": [{"topicId": known, "name": "md-topic"}],
            "a known id with another name": [{"topicId": known, "name": "md-nowhere"}],
            "neither id nor name": [{"topicId": ZERO_UUID, "name": None}],
            "ids and names mixed": [{"topicId": known, "name": None}, {"name": "md-topic"}],
            "a known and an unknown id": [{"topicId": known, "name": None}, {"topicId": UNKNOWN_ID, "name": None}],
        }.items():
            s.call(step, "Metadata", version, {"topics": topics, "allowAutoTopicCreation": False}, on="ids")
    s.call("auto creation", "Metadata", 12, {"topics": [{"name": "md-auto"}], "allowAutoTopicCreation": True})
    wait_for_topic(s, "md-auto", 1)
    s.call("it is there", "Metadata", 12, {"topics": [{"name": "md-auto"}], "allowAutoTopicCreation": True})
    s.call(
        "auto creation of bad names",
        "Metadata",
        12,
        {"topics": [{"name": "a b"}, {"name": "md.auto_2"}], "allowAutoTopicCreation": True},
    )
    wait_for_topic(s, "md.auto_2", 1)
    s.call("a name that collides", "Metadata", 12, {"topics": [{"name": "md_auto.2"}], "allowAutoTopicCreation": True})
    wait_for_coordinator(s)
    internal = {"topics": [{"name": "__consumer_offsets"}], "allowAutoTopicCreation": False}
    s.call("the offsets topic", "Metadata", 12, internal)
    s.call(
        "the metadata topic",
        "Metadata",
        12,
        {"topics": [{"name": "__cluster_metadata"}], "allowAutoTopicCreation": False},
    )


def create_topics(s: Session) -> None:
    def topic(name: str, partitions: int = 1, replication: int = 1, **fields: Any) -> dict[str, Any]:
        return {"name": name, "numPartitions": partitions, "replicationFactor": replication, **fields}

    def create(step: str, *topics: dict[str, Any], version: int = 7, **fields: Any) -> None:
        s.call(step, "CreateTopics", version, {"topics": list(topics), **fields})

    for version in versions("CreateTopics"):
        name = f"ct-{version}"
        create("only validate", topic(name, 3), version=version, validateOnly=True)
        create("create", topic(name, 3), version=version)
        create("exists", topic(name, 3), version=version)
        create("only validate what exists", topic(name, 3), version=version, validateOnly=True)
        create("0 partitions", topic("ct-zero", 0), version=version)
        create("replication factor 2", topic("ct-two", 1, 2), version=version)
        create("replication factor 0", topic("ct-none", 1, 0), version=version)
        create("-1 and -1: the defaults", topic(f"ct-default-{version}", -1, -1), version=version)
        create("-2 partitions", topic("ct-negative", -2), version=version)
        create("replication factor -2", topic("ct-negative", 1, -2), version=version)
        both = topic("ct-both", 1, 1, assignments=[{"partitionIndex": 0, "brokerIds": [1]}])
        create("assignments and counts", both, version=version)
    for step, name in BAD_NAMES.items():
        create(f"a name {step}", topic(name))
    create("collides with another name", topic("ct-a.b"), topic("ct-c"))
    create("collides with another name", topic("ct-a_b"))
    create("the same name twice", topic("ct-double"), topic("ct-double"))
    create("no topics")
    assigned = [{"partitionIndex": 0, "brokerIds": [1]}, {"partitionIndex": 1, "brokerIds": [1]}]
    create("assignments alone", topic("ct-assigned", -1, -1, assignments=assigned))
    for step, assignments in {
        "to an unknown broker": [{"partitionIndex": 0, "brokerIds": [9]}],
        "with a gap": [{"partitionIndex": 1, "brokerIds": [1]}],
        "with a partition twice": [{"partitionIndex": 0, "brokerIds": [1]}, {"partitionIndex": 0, "brokerIds": [1]}],
        "with a broker twice": [{"partitionIndex": 0, "brokerIds": [1, 1]}],
        "to no broker": [{"partitionIndex": 0, "brokerIds": []}],
        "of different sizes": [{"partitionIndex": 0, "brokerIds": [1]}, {"partitionIndex": 1, "brokerIds": []}],
    }.items():
        create(f"assignments {step}", topic("ct-assigned-badly", -1, -1, assignments=assignments))
    for key, value in (
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete,compact"),
        ("cleanup.policy", "nonsense"),
        ("retention.ms", "1000"),
        ("retention.ms", "soon"),
        ("retention.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("no.such.key", "1"),
        ("max.message.bytes", "-1"),
        ("compression.type", "lzma"),
        ("compression.type", "zstd"),
        ("message.timestamp.type", "LogAppendTime"),
        ("segment.bytes", "1"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "2"),
        ("unclean.leader.election.enable", "perhaps"),
        ("segment.ms", ""),
        ("", "1"),
    ):
        name = f"ct-config-{key}-{value}".replace(",", "-")
        create(f"config {key}={value}", topic(name, configs=[{"name": key, "value": value}]))
    double = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    create("a config key twice", topic("ct-config-double", configs=double))
    create("good and bad together", topic("ct-good"), topic("a b"), topic("ct-zero", 0))
    create("an internal name", topic("__consumer_offsets"))
    create("another internal name", topic("__transaction_state"))
    create("the metadata topic", topic("__cluster_metadata"))
    create("a topic with leading underscores", topic("__mine"))
    create("timeout 0", topic("ct-timeout"), timeoutMs=0)


def delete_topics(s: Session) -> None:
    create_topic(s, "dt-timeout")
    s.call("timeout 0", "DeleteTopics", 6, {"topics": [{"name": "dt-timeout"}], "timeoutMs": 0})
    for version in versions("DeleteTopics"):
        name = f"dt-{version}"
        create_topic(s, name)
        by_name: dict[str, Any] = {"topicNames": [name], "topics": [{"name": name}], "timeoutMs": 5000}
        s.call("delete", "DeleteTopics", version, by_name)
        s.call("once more", "DeleteTopics", version, by_name)
        for step, bad in BAD_NAMES.items():
            s.call(
                f"a name {step}",
                "DeleteTopics",
                version,
                {"timeoutMs": 5000, "topicNames": [bad], "topics": [{"name": bad}]},
            )
        s.call("nothing", "DeleteTopics", version, {"timeoutMs": 5000, "topicNames": [], "topics": []})
        create_topic(s, name)
        s.call(
            "the same twice",
            "DeleteTopics",
            version,
            {"timeoutMs": 5000, "topicNames": [name, name], "topics": [{"name": name}, {"name": name}]},
        )
        s.call("is it there", "Metadata", 9, {"topics": [{"name": name}], "allowAutoTopicCreation": False})
    create_topic(s, "dt-by-id")
    known = s.topic_ids["dt-by-id"]
    for step, topics in {
        "an unknown id": [{"name": None, "topicId": UNKNOWN_ID}],
        "neither": [{"name": None}],
        "both": [{"name": "dt-by-id", "topicId": known}],
        "name and id apart": [{"name": "dt-by-id"}, {"name": None, "topicId": known}],
        "by id": [{"name": None, "topicId": known}],
        "by id again": [{"name": None, "topicId": known}],
    }.items():
        s.call(step, "DeleteTopics", 6, {"timeoutMs": 5000, "topics": topics}, on="b")
    create_topic(s, "dt-group")
    wait_for_coordinator(s)
    s.call("commit", "OffsetCommit", 8, commit_request("dt-group", "dt-group"))
    s.call("delete a topic with offsets", "DeleteTopics", 6, {"timeoutMs": 5000, "topics": [{"name": "dt-group"}]})
    s.call("commit to the deleted topic", "OffsetCommit", 8, commit_request("dt-group", "dt-group"))


def create_partitions(s: Session) -> None:
    create_topic(s, "cp", 2)

    def grow(step: str, *topics: dict[str, Any], version: int = 3, **fields: Any) -> None:
        s.call(step, "CreatePartitions", version, {"topics": list(topics), "timeoutMs": 5000, **fields})

    for version in versions("CreatePartitions"):
        now = version + 2
        grow("only validate", {"name": "cp", "count": now + 1}, version=version, validateOnly=True)
        grow("the same count", {"name": "cp", "count": now, "assignments": None}, version=version)
        grow("fewer", {"name": "cp", "count": 1, "assignments": None}, version=version)
        grow("one more", {"name": "cp", "count": now + 1, "assignments": None}, version=version)
        grow("0", {"name": "cp", "count": 0, "assignments": None}, version=version)
        grow("-1", {"name": "cp", "count": -1, "assignments": None}, version=version)
        grow("an unknown topic", {"name": "cp-nowhere", "count": 3, "assignments": None}, version=version)
    grow("an empty assignment list", {"name": "cp", "count": 7, "assignments": []})
    grow("with an assignment", {"name": "cp", "count": 8, "assignments": [{"brokerIds": [1]}]})
    grow("too many assignments", {"name": "cp", "count": 9, "assignments": [{"brokerIds": [1]}, {"brokerIds": [1]}]})
    grow("to an unknown broker", {"name": "cp", "count": 9, "assignments": [{"brokerIds": [9]}]})
    grow("to no broker", {"name": "cp", "count": 9, "assignments": [{"brokerIds": []}]})
    grow(
        "the same topic twice",
        {"name": "cp", "count": 10, "assignments": None},
        {"name": "cp", "count": 11, "assignments": None},
    )
    grow(
        "good and unknown",
        {"name": "cp", "count": 12, "assignments": None},
        {"name": "cp-nowhere", "count": 3, "assignments": None},
    )
    grow("nothing")
    grow("a bad name", {"name": "a b", "count": 3, "assignments": None})
    s.call("in the end", "Metadata", 9, {"topics": [{"name": "cp"}], "allowAutoTopicCreation": False})


def describe_configs(s: Session) -> None:
    create_topic(s, "dc", 1, {"retention.ms": "1000", "cleanup.policy": "compact,delete"})

    def describe(step: str, *resources: dict[str, Any], version: int = 4, on: str = "a", **fields: Any) -> None:
        s.call(step, "DescribeConfigs", version, {"resources": list(resources), **fields}, on)

    def of(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
        return {"resourceType": kind, "resourceName": name, "configurationKeys": keys}

    for version in versions("DescribeConfigs"):
        describe("a topic", of(2, "dc"), version=version)
        describe(
            "a topic with synonyms and texts",
            of(2, "dc"),
            version=version,
            includeSynonyms=True,
            includeDocumentation=True,
        )
        describe(
            "some keys",
            of(2, "dc", ["retention.ms", "segment.bytes", "no.such.key"]),
            version=version,
            includeSynonyms=True,
        )
        describe("no keys", of(2, "dc", []), version=version)
        describe("an unknown topic", of(2, "dc-nowhere"), version=version)
        describe("a bad name", of(2, "a b"), version=version)
        describe("no name", of(2, ""), version=version)
        describe("another broker", of(4, "9"), version=version)
        describe("a broker that is no number", of(4, "x"), version=version)
        describe("cluster defaults", of(4, ""), version=version)
        describe("resource type 0", of(0, "x"), version=version, on="zero")
        describe("resource type 99", of(99, "x"), version=version, on="odd")
        describe("nothing", version=version)
        describe("a group", of(32, "dc-group"), version=version, on="group")
        describe("client metrics", of(16, "dc-metrics"), version=version, on="metrics")
        keys = [
            "group.min.session.timeout.ms",
            "offset.metadata.max.bytes",
            "num.partitions",
            "auto.create.topics.enable",
            "log.retention.ms",
            "broker.id",
            "node.id",
            "advertised.listeners",
        ]
        describe("keys of this broker", of(4, "1", keys[:-1]), version=version, includeSynonyms=True)
    describe("the same twice", of(2, "dc", ["retention.ms"]), of(2, "dc", ["segment.ms"]))


def list_config_resources(s: Session) -> None:
    create_topic(s, "lcr")
    for version in versions("ListConfigResources"):
        s.call("list resources", "ListConfigResources", version, {})
        for types in ([2], [4], [8], [16], [32], [99], [2, 4]):
            if version >= 1:
                s.call(
                    f"list types {types}", "ListConfigResources", version, {"resourceTypes": types}, on=f"t{types[0]}"
                )


def alter_configs(s: Session) -> None:
    create_topic(s, "ac", 1, {"retention.ms": "1000"})

    def alter(
        step: str, name: str, *configs: tuple[str, int, str | None], kind: int = 2, version: int = 1, **fields: Any
    ) -> None:
        listed = [{"name": key, "configOperation": op, "value": value} for key, op, value in configs]
        resource = {"resourceType": kind, "resourceName": name, "configs": listed}
        s.call(step, "IncrementalAlterConfigs", version, {"resources": [resource], **fields})

    for version in versions("IncrementalAlterConfigs"):
        alter("set", "ac", ("retention.ms", 0, "2000"), version=version)
        alter("delete", "ac", ("retention.ms", 1, None), version=version)
        alter("delete what is not set", "ac", ("retention.ms", 1, None), version=version)
        alter("only validate", "ac", ("segment.ms", 0, "5000"), version=version, validateOnly=True)
        alter("append", "ac", ("cleanup.policy", 2, "compact"), version=version)
        alter("append what is there", "ac", ("cleanup.policy", 2, "compact"), version=version)
        alter("subtract", "ac", ("cleanup.policy", 3, "delete"), version=version)
        alter("subtract what is not there", "ac", ("cleanup.policy", 3, "delete"), version=version)
        alter("subtract the last", "ac", ("cleanup.policy", 3, "compact"), version=version)
        alter("append to a number", "ac", ("retention.ms", 2, "1"), version=version)
        alter("an unknown key", "ac", ("no.such.key", 0, "1"), version=version)
        alter("a bad value", "ac", ("retention.ms", 0, "soon"), version=version)
        alter("a null value", "ac", ("retention.ms", 0, None), version=version)
        alter("an unknown operation", "ac", ("retention.ms", 9, "1"), version=version)
        alter("the same key twice", "ac", ("retention.ms", 0, "1"), ("retention.ms", 0, "2"), version=version)
        alter("good and bad", "ac", ("segment.ms", 0, "7000"), ("retention.ms", 0, "soon"), version=version)
        alter("no configs", "ac", version=version)
        alter("an unknown topic", "ac-nowhere", ("retention.ms", 0, "1"), version=version)
        alter("a bad name", "a b", ("retention.ms", 0, "1"), version=version)
        alter("no name", "", ("retention.ms", 0, "1"), version=version)
        alter("resource type 99", "x", ("retention.ms", 0, "1"), kind=99, version=version)
    for value in ("0", "-1", "1"):
        for name in ("", "1"):
            step = f"a retention of {value} ms for {'this broker' if name else 'all brokers'}"
            alter(step, name, ("log.retention.ms", 0, value), kind=4, validateOnly=True)
    alter("a retention of 0 ms for a topic", "ac", ("retention.ms", 0, "0"), validateOnly=True)
    s.call("nothing", "IncrementalAlterConfigs", 1, {"resources": []})
    twice = {
        "resourceType": 2,
        "resourceName": "ac",
        "configs": [{"name": "segment.ms", "configOperation": 0, "value": "9000"}],
    }
    s.call("the same resource twice", "IncrementalAlterConfigs", 1, {"resources": [twice, twice]})
    keys = ["retention.ms", "segment.ms", "cleanup.policy"]
    resource = {"resourceType": 2, "resourceName": "ac", "configurationKeys": keys}
    s.call("in the end", "DescribeConfigs", 4, {"resources": [resource], "includeSynonyms": True})


def alter_lists(s: Session) -> None:
    """Values of lists with spaces, with repeated and with empty items, and how they are shown."""
    create_topic(s, "al", 2)

    def alter(name: str, value: str, operation: int = 0) -> None:
        config = {"name": name, "configOperation": operation, "value": value}
        resource = {"resourceType": 2, "resourceName": "al"}
        s.call(f"{value!r}", "IncrementalAlterConfigs", 1, {"resources": [{**resource, "configs": [config]}]})
        with s.unrecorded():
            # A later change shows that this one was applied.
            value = str(len(s.steps()))
            marker = {"name": "flush.ms", "configOperation": 0, "value": value}
            s.call("", "IncrementalAlterConfigs", 1, {"resources": [{**resource, "configs": [marker]}]})
        wait_for_config(s, 2, "al", "flush.ms", value)
        shown = {**resource, "configurationKeys": [name]}
        s.call("is shown as", "DescribeConfigs", 4, {"resources": [shown], "includeSynonyms": True})

    for value in ("delete,delete", " delete ,compact,delete", ",", "delete,", "compact,,delete", "compact, delete", ""):
        alter("cleanup.policy", value)
    alter("cleanup.policy", "delete,compact")
    for operation, value in ((3, "delete"), (2, "delete"), (2, "compact"), (2, "nonsense"), (3, "compact,delete")):
        alter("cleanup.policy", value, operation)
    replicas = "leader.replication.throttled.replicas"
    for value in ("0:1,0:1", "*,*", "0:1, 1:1", "none", "", "0:1,", "0:1,,1:1", ",", "1:1,0:1,1:1"):
        alter(replicas, value)
    for operation, value in ((2, "0:1"), (2, "1:1"), (3, "1:1"), (3, "0:1")):
        alter(replicas, value, operation)


def replace_configs(s: Session) -> None:
    create_topic(s, "rc", 1, {"retention.ms": "1000", "segment.ms": "5000"})

    def replace(
        step: str, name: str, *configs: tuple[str, str | None], kind: int = 2, version: int = 2, **fields: Any
    ) -> None:
        listed = [{"name": key, "value": value} for key, value in configs]
        resource = {"resourceType": kind, "resourceName": name, "configs": listed}
        s.call(step, "AlterConfigs", version, {"resources": [resource], **fields})

    def shown(
        step: str, name: str = "rc", kind: int = 2, keys: tuple[str, ...] = ("retention.ms", "segment.ms")
    ) -> None:
        resource = {"resourceType": kind, "resourceName": name, "configurationKeys": list(keys)}
        s.call(step, "DescribeConfigs", 4, {"resources": [resource], "includeSynonyms": True})

    for version in versions("AlterConfigs"):
        replace("one of two", "rc", ("retention.ms", "2000"), version=version)
        wait_for_config(s, 2, "rc", "segment.ms", None)
        shown("the other is gone")
        replace("only validate", "rc", ("cleanup.policy", "compact"), version=version, validateOnly=True)
        replace("an unknown key", "rc", ("no.such.key", "1"), version=version)
        replace("a bad value", "rc", ("retention.ms", "soon"), version=version)
        replace("a null value", "rc", ("retention.ms", None), version=version)
        replace("the same key twice", "rc", ("retention.ms", "1"), ("retention.ms", "2"), version=version)
        replace("good and bad", "rc", ("segment.ms", "7000"), ("retention.ms", "soon"), version=version)
        shown("nothing has changed")
        replace("an unknown topic", "rc-nowhere", ("retention.ms", "1"), version=version)
        replace("a bad name", "a b", ("retention.ms", "1"), version=version)
        replace("no name", "", ("retention.ms", "1"), version=version)
        replace("resource type 99", "x", ("retention.ms", "1"), kind=99, version=version)
        replace("a logger", "1", ("kafka", "INFO"), kind=8, version=version)
        replace("two", "rc", ("retention.ms", "3000"), ("segment.ms", "6000"), version=version)
        wait_for_config(s, 2, "rc", "segment.ms", "6000")
        shown("both")
    replace("none", "rc")
    wait_for_config(s, 2, "rc", "retention.ms", None)
    shown("all are gone")
    replace("a config of this broker", "1", ("log.retention.ms", "90000"), kind=4)
    wait_for_config(s, 4, "1", "log.retention.ms", "90000")
    replace("another broker", "7", ("log.retention.ms", "90000"), kind=4)
    replace("what cannot be changed", "1", ("node.id", "7"), kind=4)
    replace("none for this broker", "1", kind=4)
    wait_for_config(s, 4, "1", "log.retention.ms", None)
    replace("a config of a group", "rc-group", ("consumer.session.timeout.ms", "50000"), kind=32)
    wait_for_config(s, 32, "rc-group", "consumer.session.timeout.ms", "50000")
    replace("none for the group", "rc-group", kind=32)
    wait_for_config(s, 32, "rc-group", "consumer.session.timeout.ms", None)
    s.call("nothing", "AlterConfigs", 2, {"resources": []})


def describe_topic_partitions(s: Session) -> None:
    create_topic(s, "dp-a", 3)
    create_topic(s, "dp-b", 2)

    def describe(step: str, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> None:
        request: dict[str, Any] = {"topics": [{"name": name} for name in names], "responsePartitionLimit": limit}
        if cursor is not None:
            request["cursor"] = {"topicName": cursor[0], "partitionIndex": cursor[1]}
        s.call(step, "DescribeTopicPartitions", 0, request)

    describe("both, in the wrong order", "dp-b", "dp-a")
    describe("a limit of 2", "dp-a", "dp-b", limit=2)
    describe("the next page", "dp-a", "dp-b", limit=2, cursor=("dp-a", 2))
    describe("a limit of 3, the topic's end", "dp-a", "dp-b", limit=3)
    describe("the last page", "dp-a", "dp-b", limit=2, cursor=("dp-b", 1))
    describe("a cursor beyond the partitions", "dp-a", "dp-b", cursor=("dp-a", 9))
    describe("a cursor at an unknown topic", "dp-a", "dp-b", cursor=("dp-aa", 0))
    describe("a negative cursor", "dp-a", "dp-b", cursor=("dp-a", -1))
    describe("a limit of 0", "dp-a", limit=0)
    describe("a negative limit", "dp-a", limit=-1)
    describe("a huge limit", "dp-a", limit=2**31 - 1)
    describe("an unknown topic", "dp-nowhere", "dp-a")
    describe("a bad name", "a b")
    describe("the same twice", "dp-a", "dp-a")


INTERVAL = "consumer.assignment.interval.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
SESSION = "consumer.session.timeout.ms"
BROKER_INTERVAL = "group.consumer.assignment.interval.ms"


def group_configs(s: Session) -> None:
    def alter(
        step: str, name: str, *configs: tuple[str, int, str | None], kind: int = 32, version: int = 1, **fields: Any
    ) -> None:
        listed = [{"name": key, "configOperation": op, "value": value} for key, op, value in configs]
        resource = {"resourceType": kind, "resourceName": name, "configs": listed}
        s.call(step, "IncrementalAlterConfigs", version, {"resources": [resource], **fields})

    def describe(step: str, kind: int = 32, name: str = "gc", keys: list[str] | None = None) -> None:
        resource = {"resourceType": kind, "resourceName": name, "configurationKeys": keys}
        s.call(step, "DescribeConfigs", 4, {"resources": [resource], "includeSynonyms": True}, on="describe")

    for version in versions("IncrementalAlterConfigs"):
        alter("set one", "gc", (SESSION, 0, "50000"), version=version)
        alter("set all", "gc", (SESSION, 0, "60000"), (HEARTBEAT, 0, "15000"), (INTERVAL, 0, "0"), version=version)
        alter("delete one", "gc", (INTERVAL, 1, None), version=version)
        alter("delete what is not set", "gc", (INTERVAL, 1, None), version=version)
    for key, values in {
        SESSION: ("44999", "60001", "0", "-1", "5000"),
        HEARTBEAT: ("4999", "15001", "0", "45000"),
        INTERVAL: ("-1", "15001", "15000"),
    }.items():
        for value in values:
            alter(f"{key}={value}", "gc-bounds", (key, 0, value))
    texts = ("soon", "", " 50000 ", "+50001", "50000.0", "0xC350", "2147483648", "50_000", None)
    for text in texts:
        alter(f"a text that may be a number: {text}", "gc-texts", (SESSION, 0, text))
    for key in (
        "consumer.assignor.offload.enable",
        "no.such.key",
        "group.consumer.session.timeout.ms",
        "session.timeout.ms",
        "",
    ):
        alter(f"a key: {key}", "gc-keys", (key, 0, "50000"))
    alter("delete a key there is none of", "gc-keys", ("no.such.key", 1, None))
    alter("append to a number", "gc", (SESSION, 2, "50000"))
    alter("subtract from a number", "gc", (SESSION, 3, "50000"))
    alter("only validate", "gc-dry", (SESSION, 0, "50000"), validateOnly=True)
    alter("only validate a bad value", "gc-dry", (SESSION, 0, "1"), validateOnly=True)
    alter("good and bad", "gc-dry", (SESSION, 0, "50000"), (HEARTBEAT, 0, "1"))
    alter("the same key twice", "gc-dry", (SESSION, 0, "50000"), (SESSION, 0, "50001"))
    alter("an unknown operation", "gc-dry", (SESSION, 9, "50000"))
    alter("no configs", "gc-dry")
    alter("no name", "", (SESSION, 0, "50000"))
    alter("a name with anything in it", "gc / ünd mehr", (SESSION, 0, "50000"))
    wait_for_config(s, 32, "gc / ünd mehr", SESSION, "50000")
    describe("the group")
    describe("one key", keys=[SESSION])
    describe("a group that was only validated", name="gc-dry", keys=[SESSION, HEARTBEAT, INTERVAL])
    s.call("groups that have configs", "ListConfigResources", 1, {"resourceTypes": [32]}, on="list")
    for name in ("1", ""):
        for value in ("500", "0", "15000", "15001", "-1", "soon", "700"):
            alter(f"the broker's interval: {value}", name, (BROKER_INTERVAL, 0, value), kind=4)
        wait_for_config(s, 4, name, BROKER_INTERVAL, "700")
        describe("the broker's interval", 4, name, [BROKER_INTERVAL])
    describe("a group below the broker's interval", name="gc-fresh", keys=[INTERVAL])
    for key in (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.session.timeout.ms",
        "group.consumer.max.size",
    ):
        alter(f"the broker's {key}", "1", (key, 0, "1000"), kind=4)
    for name in ("1", ""):
        alter("the broker's interval: not set", name, (BROKER_INTERVAL, 1, None), kind=4)
        wait_for_config(s, 4, name, BROKER_INTERVAL, None)
    names = [
        f"group.consumer.{key}"
        for key in (
            "session.timeout.ms",
            "min.session.timeout.ms",
            "max.session.timeout.ms",
            "heartbeat.interval.ms",
            "min.heartbeat.interval.ms",
            "max.heartbeat.interval.ms",
            "assignors",
            "migration.policy",
            "regex.refresh.interval.ms",
            "assignment.interval.ms",
            "min.assignment.interval.ms",
            "max.assignment.interval.ms",
            "assignor.offload.enable",
        )
    ]
    describe("what the broker was started with", 4, "1", names)
    alter("delete all", "gc", (SESSION, 1, None), (HEARTBEAT, 1, None))
    wait_for_config(s, 32, "gc", SESSION, None)
    s.call("groups that still have configs", "ListConfigResources", 1, {"resourceTypes": [32]}, on="list")


LISTING_SCRIPTS = {"list_config_resources": list_config_resources}
ADMIN_SCRIPTS = {
    "cluster": cluster,
    "metadata": metadata,
    "create_topics": create_topics,
    "delete_topics": delete_topics,
    "create_partitions": create_partitions,
    "describe_configs": describe_configs,
    "alter_configs": alter_configs,
    "alter_lists": alter_lists,
    "replace_configs": replace_configs,
    "group_configs": group_configs,
    "describe_topic_partitions": describe_topic_partitions,
}
