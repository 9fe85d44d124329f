"""The scenario commands of consumer groups (KIP-848).

    beat client=a topics=t,u        joins (epoch 0, the first time), with a member id that the client makes up: a
    beat client=a                   the heartbeat of a member that has nothing to say
    beat client=a epoch=-1          leaves (-2: a static member for a while)
    describe-consumer g h           ConsumerGroupDescribe

Options of `beat`, besides `group=` (g), `version=`, `client_id=`: `epoch=` and `member=` (else what the client was
told last), `topics=t,u` and `regex=t.*` (joining says both as they were last said), `owned=t/0+t/1` or `owned=all`
(what it was given last) or `owned=` (nothing; joining says that, other heartbeats say nothing of it), `rebalance=60s`
(said when joining), `instance=`, `rack=`, `assignor=`, `full=yes` (all that joining says, as clients do after errors).
"""

from __future__ import annotations

from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
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
    )


def build_describe_consumer(
    command: Command, actor: Actor, version: int, printer: Printer, actors: Actors
) -> Message:
    return ConsumerGroupDescribeRequest(command.words or ["g"])
