"""The scenario commands of consumer groups (KIP-848).

    beat client=a topics=t,u        joins (epoch 0, the first time), with a member id that the client makes up: a
    beat client=a                   the heartbeat of a member that has nothing to say
    beat client=a epoch=-1          leaves (-2: a static member for a while)
    describe-consumer g h           ConsumerGroupDescribe
    prepare client=a                asks for what is to be assigned (client-side assignors)
    install client=a to=a:t/0+t/1;b:t/2    hands in an assignment

Options of `beat`, besides `group=` (g), `version=`, `client_id=`: `epoch=` and `member=` (else what the client was
told last), `topics=t,u` and `regex=t.*` (joining says both as they were last said), `owned=t/0+t/1` or `owned=all`
(what it was given last) or `owned=` (nothing; joining says that, other heartbeats say nothing of it), `rebalance=60s`
(said when joining), `instance=`, `rack=`, `assignor=`, `full=yes` (all that joining says, as clients do after errors),
`assignors=sticky:1-3:2:ff:1,other:1-1:1` (client-side ones: name, versions, version of the metadata, metadata in
hexadecimal, reason; `assignors=` for none; joining says them as they were last said).

Options of `prepare` and `install`, besides `group=`, `epoch=` and `member=`: for `install` `at=` (the group's epoch;
else what `prepare` was told last), `error=`, and behind each member's partitions what it is told: `a:t/0:2:ff`.
"""

from __future__ import annotations

from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest
from kcoord.protocol.consumer_group_heartbeat import (
    ClientAssignor,
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from kcoord.protocol.consumer_group_install_assignment import (
    AssignedMember,
    AssignedTopicPartitions,
    ConsumerGroupInstallAssignmentRequest,
)
from kcoord.protocol.consumer_group_prepare_assignment import ConsumerGroupPrepareAssignmentRequest
from kcoord.wire.message import Message
from tests.scenarios.actor import Actor, Actors, instance_of, member_id_of
from tests.scenarios.embedded import partitions
from tests.scenarios.printing import Printer, milliseconds
from tests.scenarios.script import Command

NOT_GIVEN = -1


def build_beat(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    epoch = command.number("epoch", max(actor.generation_id, 0))
    joins = epoch == 0
    is_full = command.flag("full") or joins
    if not actor.member_id and version >= 1:
        actor.member_id = actor.name
    if "instance" in command.options:
        actor.instance_id = command.text("instance") or None
    topics: list[str] | None = None
    if "topics" in command.options:
        topics = actor.topics = command.names("topics")
    regex = command.optional("regex")
    if regex is not None:
        actor.regex = regex
    if is_full:
        topics = actor.topics if actor.topics is not None or actor.regex is not None else []
        regex = actor.regex
    owned: list[OwnedTopicPartitions] | None = None
    text = command.optional("owned")
    if text == "all" or (text is None and is_full and not joins):
        owned = [OwnedTopicPartitions(topic_id, indexes) for topic_id, indexes in actor.assignment.items()]
    elif text is not None:
        owned = []
        for name, indexes in partitions(text).items():
            owned.append(OwnedTopicPartitions(printer.topic_ids[name], indexes))
    elif joins:
        owned = []
    rebalance = command.optional("rebalance")
    rebalance_timeout_ms = NOT_GIVEN
    if rebalance is not None or is_full:
        rebalance_timeout_ms = milliseconds(rebalance if rebalance is not None else "60s")
    assignors: list[ClientAssignor] | None = None
    if "assignors" in command.options:
        actor.assignors = assignors = [client_assignor(one) for one in command.names("assignors")]
    elif is_full:
        assignors = actor.assignors
    return ConsumerGroupHeartbeatRequest(
        command.text("group", "g"),
        member_id_of(command, actor, printer),
        epoch,
        instance_of(command, actor) if is_full or epoch < 0 else None,
        command.optional("rack"),
        rebalance_timeout_ms,
        topics,
        regex,
        command.optional("assignor"),
        owned,
        assignors,
    )


def client_assignor(text: str) -> ClientAssignor:
    name, versions, version, metadata, reason = (text.split(":") + ["", ""])[:5]
    low, _, high = versions.partition("-")
    return ClientAssignor(name, int(low), int(high), int(reason or "0"), int(version), bytes.fromhex(metadata))


def build_prepare(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    epoch = command.number("epoch", actor.generation_id)
    member_id = member_id_of(command, actor, printer)
    return ConsumerGroupPrepareAssignmentRequest(command.text("group", "g"), member_id, epoch)


def build_install(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    epoch = command.number("epoch", actor.generation_id)
    at = command.number("at", actor.prepared_epoch)
    members: list[AssignedMember] = []
    for text in command.text("to").split(";"):
        if not text:
            continue
        member_id, owned, told_version, metadata = (text.split(":") + ["", "", ""])[:4]
        topics = [
            AssignedTopicPartitions(printer.topic_ids[name], indexes) for name, indexes in partitions(owned).items()
        ]
        told = bytes.fromhex(metadata)
        members.append(AssignedMember(printer.lengthen(member_id), topics, int(told_version or "0"), told))
    return ConsumerGroupInstallAssignmentRequest(
        command.text("group", "g"),
        member_id_of(command, actor, printer),
        epoch,
        at,
        command.number("error", 0),
        members,
    )


def build_describe_consumer(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    return ConsumerGroupDescribeRequest(command.words or ["g"])
