"""Clients of a scenario, and what they remember."""

from __future__ import annotations

from kcoord.protocol.consumer_group_heartbeat import ClientAssignor, ConsumerGroupHeartbeatResponse
from kcoord.protocol.consumer_group_prepare_assignment import ConsumerGroupPrepareAssignmentResponse
from kcoord.protocol.end_txn import EndTxnResponse
from kcoord.protocol.init_producer_id import InitProducerIdResponse
from kcoord.protocol.join_group import JoinGroupResponse
from kcoord.wire.message import Message
from tests.scenarios.printing import Printer
from tests.scenarios.script import Command


class Actor:
    """A client with a connection of its own, which remembers who its coordinator says it is."""

    def __init__(self, name: str, connection_id: int) -> None:
        self.name = name
        self.connection_id = connection_id
        self.member_id = ""
        # A member's epoch is the generation that it commits with.
        self.generation_id = -1
        self.instance_id: str | None = None
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        # What a member of the new protocol subscribes to, and what it was given last.
        self.topics: list[str] | None = None
        self.regex: str | None = None
        self.assignment: dict[bytes, list[int]] = {}
        # Its client-side assignors, and the group epoch that it was told to compute for.
        self.assignors: list[ClientAssignor] | None = None
        self.prepared_epoch = -1
        # As a producer: its id and epoch, the next sequence by partition (`t:0`), and its transaction version.
        self.transactional_id = ""
        self.producer = (-1, -1)
        self.sequences: dict[str, int] = {}
        self.transaction_version = 2

    def learn(self, response: Message) -> None:
        if isinstance(response, JoinGroupResponse):
            if response.member_id:
                self.member_id = response.member_id
            if response.error_code == 0:
                self.generation_id = response.generation_id
                self.protocol_type = response.protocol_type
                self.protocol_name = response.protocol_name
        elif isinstance(response, ConsumerGroupPrepareAssignmentResponse) and response.error_code == 0:
            self.prepared_epoch = response.group_epoch
        elif isinstance(response, ConsumerGroupHeartbeatResponse) and response.error_code == 0:
            if response.member_id:
                self.member_id = response.member_id
            self.generation_id = response.member_epoch
            if response.assignment is not None:
                self.assignment = {t.topic_id: t.partitions for t in response.assignment.topic_partitions}
        elif isinstance(response, InitProducerIdResponse | EndTxnResponse) and response.error_code == 0:
            self._learn_producer(response.producer_id, response.producer_epoch)

    def _learn_producer(self, producer_id: int, epoch: int) -> None:
        """EndTxn names the producer from transaction version 2 on."""
        if producer_id >= 0 and (producer_id, epoch) != self.producer:
            self.producer = (producer_id, epoch)
            self.sequences = {}


Actors = dict[str, Actor]


def member_id_of(command: Command, actor: Actor, printer: Printer) -> str:
    return printer.lengthen(command.text("member", actor.member_id))


def instance_of(command: Command, actor: Actor) -> str | None:
    instance = command.optional("instance")
    return actor.instance_id if instance is None else instance or None
