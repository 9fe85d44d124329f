"""Steps that scripts about consumer groups are made of: members that remember what they were told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.consumer_session import ConsumerSession
from tests.harness.script_steps import b64, create_topic, wait_for_topic
from tests.harness.session import KcoordCodec

# A broker tells its group coordinator of new topics a moment after it answers for them.
SETTLE_S = 0.3
POLLS = 100
POLL_S = 0.1
GROUP_RESOURCE = 32
# What scripts set timeouts to that are to run out, and how long they wait for that. Long enough for a busy machine to
# heartbeat in time, which it does every half second.
SHORT_TIMEOUT_MS = 2000
EXPIRY_PAUSE_S = 3.2

Partitions = dict[str, list[int]]
Answer = dict[str, Any]


def heartbeat(group: str, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
    """A ConsumerGroupHeartbeat request that says nothing but what is given."""
    return {"groupId": group, "memberId": member, "memberEpoch": epoch, **fields}


def join_heartbeat(group: str, member: str, topics: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    """The first heartbeat of a member."""
    request = heartbeat(group, member, 0, rebalanceTimeoutMs=30000, topicPartitions=[])
    request["subscribedTopicNames"] = topics
    request.update(fields)
    return request


class Member:
    """A member of the consumer protocol: its epoch and what it owns follow the answers."""

    def __init__(
        self, s: ConsumerSession, group: str, name: str, version: int = 1, instance: str | None = None
    ) -> None:
        self.s = s
        self.group = group
        self.id = name
        self.name = name
        self.version = version
        self.instance = instance
        self.epoch = 0
        self.assigned: list[dict[str, Any]] = []

    def send(self, step: str, request: dict[str, Any]) -> Answer:
        if self.instance is not None:
            request.setdefault("instanceId", self.instance)
        answer: Answer = self.s.call(
            f"{self.name} {step}", "ConsumerGroupHeartbeat", self.version, request, on=self.name
        )
        if answer["errorCode"] == 0:
            self.id = answer["memberId"]
            self.epoch = answer["memberEpoch"]
            if answer["assignment"] is not None:
                self.assigned = answer["assignment"]["topicPartitions"]
        return answer

    def join(self, topics: list[str] | None = None, step: str = "joins", **fields: Any) -> Answer:
        return self.send(step, join_heartbeat(self.group, self.id, topics, **fields))

    def beat(self, step: str = "heartbeats", **fields: Any) -> Answer:
        """A heartbeat of the member at its epoch that says nothing new, unless `fields` do."""
        return self.send(step, heartbeat(self.group, self.id, self.epoch, **fields))

    def owns(self, step: str = "tells what it owns", **fields: Any) -> Answer:
        """A heartbeat that says that what was assigned is what it owns."""
        return self.beat(step, topicPartitions=self.assigned, **fields)

    def leave(self, step: str = "leaves", epoch: int = -1) -> Answer:
        return self.send(step, heartbeat(self.group, self.id, epoch))

    def beat_until(self, step: str, condition: Callable[[Answer], bool], **fields: Any) -> Answer:
        """Heartbeats until the answer is as wished; only that one is recorded."""
        for _ in range(POLLS):
            answer = self.beat(step, **fields)
            if condition(answer):
                return answer
            self.s.drop_last_step()
            self.s.pause(POLL_S)
        raise TimeoutError(f"{step}: {answer}")

    def partitions(self, topic: str) -> list[int]:
        """Of the topic, what is assigned to the member."""
        wanted = self.s.topic_ids[topic]
        return [p for item in self.assigned if item["topicId"] == wanted for p in item["partitions"]]


def settle_all(*members: Member) -> None:
    """Lets the members heartbeat in turn until they say the same twice."""
    for _ in range(4):
        before = [(m.epoch, m.assigned) for m in members]
        for m in members:
            m.owns()
        if before == [(m.epoch, m.assigned) for m in members]:
            return


def owned(s: ConsumerSession, **topics: list[int]) -> list[dict[str, Any]]:
    """TopicPartitions of a heartbeat; names of topics are spelled with _ for -."""
    return [{"topicId": s.topic_ids[name.replace("_", "-")], "partitions": parts} for name, parts in topics.items()]


def new_topic(s: ConsumerSession, name: str, partitions: int = 1) -> None:
    """Makes a topic and waits until the group coordinator has heard of it."""
    create_topic(s, name, partitions)
    s.pause(SETTLE_S)


def grow_topic(s: ConsumerSession, name: str, partitions: int) -> None:
    topic = {"name": name, "count": partitions, "assignments": None}
    s.call(f"{name} grows", "CreatePartitions", 3, {"topics": [topic], "timeoutMs": 5000})
    wait_for_topic(s, name, partitions)
    s.pause(SETTLE_S)


def delete_topic(s: ConsumerSession, name: str) -> None:
    s.call(f"{name} is deleted", "DeleteTopics", 6, {"topics": [{"name": name}], "timeoutMs": 5000})
    for _ in range(POLLS):
        with s.unrecorded():
            listed = s.call("wait", "Metadata", 12, {"topics": [{"name": name}], "allowAutoTopicCreation": False})
        if listed["topics"][0]["errorCode"] == 3:
            break
        s.pause(POLL_S)
    s.pause(SETTLE_S)


def configure_group(s: ConsumerSession, group: str, values: dict[str, str | None], step: str = "") -> Answer:
    """Sets configs of the GROUP resource; None deletes one."""
    configs = [
        {"name": name, "configOperation": 1 if value is None else 0, "value": value} for name, value in values.items()
    ]
    request = {"resources": [{"resourceType": GROUP_RESOURCE, "resourceName": group, "configs": configs}]}
    answer: Answer = s.call(step or f"configures {group}: {values}", "IncrementalAlterConfigs", 1, request, on="admin")
    s.pause(SETTLE_S)
    return answer


def described(s: ConsumerSession, *groups: str, step: str = "described", version: int = 1) -> Answer:
    answer: Answer = s.call(step, "ConsumerGroupDescribe", version, {"groupIds": list(groups)}, on="admin")
    return answer


def listed(s: ConsumerSession, group: str, step: str = "as it is listed") -> None:
    """The group's own line of ListGroups v5."""
    s.call(step, "ListGroups", 5, {}, on="admin")
    record = s.last_step()
    record["response"]["groups"] = [g for g in record["response"]["groups"] if g["groupId"] == group]


# ---- what classic consumers say


def subscription(
    topics: list[str], version: int = 1, owned_partitions: Partitions | None = None, **fields: Any
) -> bytes:
    """A classic consumer's subscription, with the version in front."""
    value: dict[str, Any] = {"topics": topics, **fields}
    if version >= 1:
        value["ownedPartitions"] = [{"topic": t, "partitions": p} for t, p in (owned_partitions or {}).items()]
    return version.to_bytes(2, "big") + KcoordCodec().encode("ConsumerProtocolSubscription", version, value)


def assignment(partitions: Partitions, version: int = 1, user_data: bytes | None = None) -> bytes:
    """A classic consumer's assignment, with the version in front."""
    listed_partitions = [{"topic": t, "partitions": p} for t, p in partitions.items()]
    value = {"assignedPartitions": listed_partitions, "userData": None if user_data is None else b64(user_data)}
    return version.to_bytes(2, "big") + KcoordCodec().encode("ConsumerProtocolAssignment", version, value)


class ClassicMember:
    """A member of the classic protocol with the consumer's embedded protocol."""

    def __init__(
        self,
        s: ConsumerSession,
        group: str,
        name: str,
        topics: list[str],
        member_id: str = "",
        instance: str | None = None,
    ) -> None:
        self.s = s
        self.group = group
        self.name = name
        self.topics = topics
        self.id = member_id
        self.instance = instance
        self.generation = -1
        self.protocol: str | None = None
        self.owned: Partitions = {}
        self.session_timeout_ms = 30000
        self.rebalance_timeout_ms = 30000
        self.protocols: tuple[str, ...] = ("range",)

    def join_request(self, **fields: Any) -> dict[str, Any]:
        metadata = b64(subscription(self.topics, 1, self.owned))
        request: dict[str, Any] = {
            "groupId": self.group,
            "memberId": self.id,
            "groupInstanceId": self.instance,
            "protocolType": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name in self.protocols],
            "sessionTimeoutMs": self.session_timeout_ms,
            "rebalanceTimeoutMs": self.rebalance_timeout_ms,
        }
        request.update(fields)
        return request

    def send_join(self, step: str = "joins", version: int = 9, **fields: Any) -> Any:
        return self.s.send(f"{self.name} {step}", "JoinGroup", version, self.join_request(**fields), on=self.name)

    def joined(self, answer: Answer) -> Answer:
        if answer["errorCode"] in (0, 79):
            self.id = answer["memberId"]
        if answer["errorCode"] == 0:
            self.generation = answer["generationId"]
            self.protocol = answer["protocolName"]
        return answer

    def join(self, step: str = "joins", version: int = 9, **fields: Any) -> Answer:
        return self.joined(self.send_join(step, version, **fields).answer())

    def sync_request(self, shares: dict[str, bytes] | None = None, **fields: Any) -> dict[str, Any]:
        request: dict[str, Any] = {
            "groupId": self.group,
            "generationId": self.generation,
            "memberId": self.id,
            "groupInstanceId": self.instance,
            "protocolType": "consumer",
            "protocolName": self.protocol,
            "assignments": [{"memberId": who, "assignment": b64(share)} for who, share in (shares or {}).items()],
        }
        request.update(fields)
        return request

    def send_sync(self, shares: dict[str, bytes] | None = None, step: str = "syncs", **fields: Any) -> Any:
        return self.s.send(f"{self.name} {step}", "SyncGroup", 5, self.sync_request(shares, **fields), on=self.name)

    def sync(self, shares: dict[str, bytes] | None = None, step: str = "syncs", **fields: Any) -> Answer:
        answer: Answer = self.send_sync(shares, step, **fields).answer()
        return answer

    def beat(self, step: str = "heartbeats", **fields: Any) -> Answer:
        request: dict[str, Any] = {
            "groupId": self.group,
            "generationId": self.generation,
            "memberId": self.id,
            "groupInstanceId": self.instance,
        }
        request.update(fields)
        answer: Answer = self.s.call(f"{self.name} {step}", "Heartbeat", 4, request, on=self.name)
        return answer

    def leave(self, step: str = "leaves") -> Answer:
        member = {"memberId": self.id, "groupInstanceId": self.instance}
        request = {"groupId": self.group, "members": [member]}
        answer: Answer = self.s.call(f"{self.name} {step}", "LeaveGroup", 5, request, on=self.name)
        return answer


def classic_group(s: ConsumerSession, group: str, topic: str, shares: dict[str, list[int]]) -> list[ClassicMember]:
    """A stable classic group whose members, by name, have these partitions of the topic. The first one leads."""
    members = [ClassicMember(s, group, name, [topic]) for name in shares]
    leader = members[0]
    leader.join("asks for a member id")
    leader.join()
    for member in members[1:]:
        member.join("asks for a member id")
    waiting = [member.send_join() for member in members[1:]]
    if waiting:
        s.pause(0.1)
        leader.join("joins again")
        for member, pending in zip(members[1:], waiting, strict=True):
            member.joined(pending.answer())
    assignments = {m.id: assignment({topic: shares[m.name]}) for m in members}
    leader.sync(assignments, "syncs as the leader")
    for member in members[1:]:
        member.sync()
    for member in members:
        member.owned = {topic: shares[member.name]}
    return members


def follow(*members: ClassicMember | Member) -> None:
    """Lets members do what they are told until nobody is told anything: classic ones rejoin and sync."""
    for _ in range(6):
        quiet = True
        for member in members:
            if isinstance(member, Member):
                before = member.epoch, member.assigned
                member.owns()
                quiet &= before == (member.epoch, member.assigned)
            elif member.beat()["errorCode"] == 27:
                quiet = False
                member.join("joins again")
                member.sync()
        if quiet:
            return
