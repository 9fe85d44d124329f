"""Topics, metadata, configurations and producer ids with a list in place of the log, for tests."""

from __future__ import annotations

from typing import Any

from kcoord.core.admin.configs import ConfigHandlers
from kcoord.core.admin.metadata import MetadataHandlers
from kcoord.core.admin.topics import TopicAdmin
from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now, Outcome, Request
from kcoord.core.producers import ProducerIds
from kcoord.core.topics.registry import TopicRegistry
from kcoord.core.transactions.claims import AssignmentClaims
from kcoord.core.transactions.end import TransactionEnds
from kcoord.core.transactions.expiry import TransactionExpiry
from kcoord.core.transactions.held_commits import HeldCommits
from kcoord.core.transactions.init import TransactionInits
from kcoord.core.transactions.state import Transactions
from kcoord.protocol import apis
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader

HOST = "127.0.0.1"
PORT = 9092
NOW = Now(0, 1_700_000_000_000)


class AdminRig:
    """Sends requests, applies their records as the engine does, and keeps them for a second registry."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.config = config if config is not None else CoreConfig()
        self.config.cluster_id = self.config.cluster_id or "a-cluster-id-of-22-chr"
        self.log: list[Message] = []
        self.sent = 0
        self.open()
        self.apply(self.topics.loaded(self.entropy()))

    def open(self) -> None:
        """Rebuild all state from the log, as a restart does."""
        self.topics = TopicRegistry(self.config)
        for offset, record in enumerate(self.log):
            self.topics.replay_metadata(record, offset)
        metadata = MetadataHandlers(self.config, self.topics)
        admin = self.admin = TopicAdmin(self.config, self.topics)
        configs = self.configs = ConfigHandlers(self.config, self.topics)
        producer_ids = ProducerIds(self.config, self.topics)
        transactions = Transactions(self.topics)
        ends = TransactionEnds(transactions, producer_ids, HeldCommits(transactions))
        expiry = TransactionExpiry(self.config, transactions)
        claims = AssignmentClaims(self.config, transactions, producer_ids, ends)
        self.inits = TransactionInits(self.config, transactions, producer_ids, expiry, claims)
        self.handlers: dict[int, Any] = {
            apis.METADATA: metadata.handle_metadata,
            apis.DESCRIBE_TOPIC_PARTITIONS: metadata.handle_describe_topic_partitions,
            apis.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
            apis.FIND_COORDINATOR: metadata.handle_find_coordinator,
            apis.CREATE_TOPICS: admin.handle_create_topics,
            apis.DELETE_TOPICS: admin.handle_delete_topics,
            apis.CREATE_PARTITIONS: admin.handle_create_partitions,
            apis.DESCRIBE_CONFIGS: configs.handle_describe_configs,
            apis.ALTER_CONFIGS: configs.handle_alter_configs,
            apis.INCREMENTAL_ALTER_CONFIGS: configs.handle_incremental_alter_configs,
            apis.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
        }

    def entropy(self) -> bytes:
        self.sent += 1
        return self.sent.to_bytes(4, "big") * 4

    def apply(self, out: Outcome) -> Outcome:
        for record in out.records:
            assert record.key is None and record.value is not None
            self.topics.replay_metadata(record.value, len(self.log))
            self.log.append(record.value)
        return out

    def handle(self, api_key: int, version: int, body: Message) -> Outcome:
        entropy = self.entropy()
        request = Request(self.sent, 1, api_key, version, "test", "10.0.0.1", body, entropy, HOST, PORT)
        if isinstance(body, InitProducerIdRequest):
            return self.apply(self.inits.handle_init_producer_id(request, body, NOW))
        out: Outcome = self.handlers[api_key](request, body)
        return self.apply(out)

    def ask(self, api_key: int, version: int, body: Message) -> Any:
        """The answer as a client of that version reads it."""
        out = self.handle(api_key, version, body)
        assert [reply.request_id for reply in out.replies] == [self.sent]
        response = out.replies[0].response
        assert response is not None
        w = BytesWriter()
        apis.encode_response(w, api_key, response, version)
        return apis.decode_response(api_key, Reader(w.getvalue()), version)
