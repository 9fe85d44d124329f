"""The table of settings: what can be set, in which unit, with which default, and why.

A setting bears Kafka's property name where one covers it. Everything else about settings (files, environment, flags)
reads this table, and `docs/configuration.md` is printed from it.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core import config as core

INT32_MAX: Final = core.INT32_MAX
INT64_MAX: Final = 9223372036854775807

INTEGER: Final = "integer"
BOOLEAN: Final = "boolean"
STRING: Final = "string"
CHOICE: Final = "choice"

SYNC_ALWAYS: Final = "always"
SYNC_OS: Final = "os"
SYNC_MEMORY: Final = "memory"

MINUTE_MS: Final = 60 * 1000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1024 * 1024


@final
class Setting:
    """One setting.

    `attribute` is `core.NAME` (CoreConfig) or `server.NAME` (ServerConfig). The value is given in `unit` and stored
    multiplied by `scale`. `aliases` are other accepted names, each with what its value is multiplied by to get to the
    unit of the attribute; where several are given in one source, the finest wins.
    """

    def __init__(
        self,
        name: str,
        attribute: str,
        default: int | bool | str,
        unit: str,
        doc: str,
        *,
        minimum: int = 0,
        maximum: int = INT64_MAX,
        choices: tuple[str, ...] = (),
        scale: int = 1,
        aliases: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.name = name
        self.attribute = attribute
        self.default = default
        self.unit = unit
        self.doc = doc
        self.minimum = minimum
        self.maximum = maximum
        self.choices = choices
        self.scale = scale
        self.aliases = aliases
        if choices:
            self.kind = CHOICE
        elif isinstance(default, bool):
            self.kind = BOOLEAN
        else:
            self.kind = INTEGER if isinstance(default, int) else STRING


NETWORK_SETTINGS: Final = (
    Setting(
        "listeners", "server.listeners", "127.0.0.1:9092", "",
        "Where to listen: `[NAME://]HOST:PORT`, several with commas. Port 0 picks a free one, an empty host means "
        "every address. The default is reachable from this machine only, since there is no authentication yet.",
    ),
    Setting(
        "advertised.listeners", "server.advertised_listeners", "", "",
        "What clients are told to connect to, by listener name or, without names, in the order of `listeners`. "
        "A listener that is not named here tells each client the local address of the client's own connection.",
    ),
    Setting(
        "controller.listener.names", "server.controller_listener_names", "", "",
        "Listeners of `listeners` to leave out: a broker's file names its controller's there; kcoord has none.",
    ),
    Setting(
        "max.connections", "server.max_connections", 10000, "connections",
        "Connections in all; more are closed at once. Kafka has no limit. Fewer where the limit on open files asks for "
        "it: the log keeps its share, and `connections_limited` in the server's log names both.",
        minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "max.connections.per.ip", "server.max_connections_per_ip", 1000, "connections",
        "Connections of one address. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "max.connections.per.ip.exempt.loopback", "server.loopback_exempt", True, "",
        "Whether connections from this machine are left out of `max.connections.per.ip`.",
    ),
    Setting(
        "max.connection.creation.rate", "server.connection_rate", 1000, "connections/s",
        "How many new connections are accepted in a second, on average over two; more wait in the backlog. "
        "Those that are closed at once count, too. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "socket.listen.backlog.size", "server.listen_backlog", 1024, "connections",
        "Connections that may wait to be accepted.", minimum=1, maximum=65535,
    ),
    Setting(
        "connections.max.idle.ms", "server.idle_ms", 600000, "ms",
        "A connection on which nothing arrives for so long, and that waits for no answer, is closed. -1: never.",
        minimum=-1,
    ),
    Setting(
        "frame.deadline.ms", "server.frame_deadline_ms", 30000, "ms",
        "A request must be complete so long after its first byte, or its connection is closed.", minimum=100,
    ),
    Setting(
        "socket.request.max.bytes", "server.frame_bytes_max", 100 * MIB, "bytes",
        "No request may be larger, whatever the three limits below say.", minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "frame.control.max.bytes", "server.frame_control_bytes_max", MIB, "bytes",
        "The largest request that is neither a Produce nor a JoinGroup or SyncGroup.",
        minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "frame.group.max.bytes", "server.frame_group_bytes_max", 16 * MIB, "bytes",
        "The largest JoinGroup or SyncGroup: the leader of a large group sends everybody's assignment in one. A broker "
        "stores what all members sent, and their assignments, in one record of 1 MiB by default.",
        minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "frame.produce.max.bytes", "server.frame_produce_bytes_max", 10 * MIB, "bytes",
        "The largest Produce; raised to what `message.max.bytes` needs.", minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "request.elements.max", "core.request_elements_max", 15000, "elements",
        "Elements of all arrays in one request together (topics, partitions, members, ...): what one turn of the event "
        "loop can afford, since 1,000 of them take 2 to 3 ms. A request with more closes its connection, and the log "
        "names this setting. Raise it where one client commits or fetches more partitions. Kafka has no limit.",
        minimum=1000, maximum=1_000_000,
    ),
    Setting(
        "install.elements.max", "core.install_elements_max", 60000, "elements",
        "The same for ConsumerGroupInstallAssignment, where `request.elements.max` is less: members, their topics and "
        "the partitions of these. For the 10,000 members of the largest group that is a topic and four partitions "
        "each. Kafka does not have the request.",
        minimum=1000, maximum=1_000_000,
    ),
    Setting(
        "queued.max.request.bytes", "server.queued_bytes_max", 256 * MIB, "bytes",
        "Bytes of incomplete and waiting requests on all connections together. Above it the connection that holds "
        "the most is closed. Not counted are Produce requests whose records a thread checks: they hold up to 64 MiB "
        "and one request more, and then the next ones wait and count here. Kafka has no limit.", minimum=MIB,
    ),
    Setting(
        "output.buffer.high.bytes", "server.output_high_bytes", MIB, "bytes",
        "A connection that has so much unread output is not read from until its client catches up.", minimum=1024,
    ),
    Setting(
        "output.buffer.max.bytes", "server.output_bytes_max", 256 * MIB, "bytes",
        "A connection that has so much unread output is closed.", minimum=MIB,
    ),
    Setting(
        "queued.max.response.bytes", "core.queued_response_bytes_max", 256 * MIB, "bytes",
        "Bytes of answers on all connections together that their clients have not read. Fetch answers get smaller as "
        "it fills up, and empty when it is full; above it the connection that holds the most is closed. Kafka has no "
        "limit.", minimum=16 * MIB,
    ),
    Setting(
        "output.deadline.ms", "server.output_deadline_ms", 10_000, "ms",
        "While unread answers take more than half of `queued.max.response.bytes`, a connection whose client has not "
        "taken a byte for so long is closed. Otherwise `connections.max.idle.ms` counts.", minimum=100,
    ),
    Setting(
        "turn.log.ms", "server.turn_log_ms", 100, "ms",
        "A turn of the event loop that takes more of the processor's time is reported in the log, with the API that "
        "cost most in it. 0: never.",
    ),
    Setting(
        "shutdown.deadline.ms", "server.shutdown_deadline_ms", 5000, "ms",
        "At SIGTERM, how long answers under way may take before their connections are closed.", minimum=0,
    ),
)  # fmt: skip

LOG_SETTINGS: Final = (
    Setting(
        "log.dirs", "server.data_dir", "data", "", "The data directory; one only.", aliases=(("log.dir", 1),),
    ),
    Setting(
        "log.sync", "server.log_sync", SYNC_ALWAYS, "",
        "What an answer means: `always` that the bytes are synced to the disk, `os` that the operating system has "
        "them (as in Kafka), `memory` that there is no directory at all.",
        choices=(SYNC_ALWAYS, SYNC_OS, SYNC_MEMORY),
    ),
    Setting(
        "log.reserve.bytes", "server.reserve_bytes", 64 * MIB, "bytes",
        "With less free space than this the server does not start, and a running one turns writes away with an error "
        "that clients retry, while heartbeats and reads go on.", minimum=0,
    ),
    Setting(
        "log.segment.bytes", "core.log_segment_bytes", 1073741824, "bytes",
        "A segment that would grow beyond this is closed and the next one begun.", minimum=14, maximum=INT32_MAX,
    ),
    Setting(
        "log.roll.ms", "core.log_roll_ms", 7 * DAY_MS, "ms",
        "A segment that is older than this is closed and the next one begun.", minimum=1,
        aliases=(("log.roll.hours", HOUR_MS),),
    ),
    Setting(
        "log.retention.ms", "core.log_retention_ms", 7 * DAY_MS, "ms",
        "Records of topics without a `retention.ms` of their own may go when they are older; -1 keeps them.",
        minimum=-1, aliases=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    ),
    Setting(
        "log.retention.bytes", "core.log_retention_bytes", -1, "bytes",
        "The oldest segments of a partition may go when it is larger; -1 means any size.", minimum=-1,
    ),
    Setting(
        "log.retention.check.interval.ms", "server.retention_check_ms", 5 * MINUTE_MS, "ms",
        "How often segments that may go are looked for.", minimum=1,
    ),
    Setting(
        "log.cleaner.enable", "server.cleaner_enable", True, "",
        "Whether compacted topics, `__consumer_offsets` among them, are compacted.",
    ),
    Setting(
        "log.cleaner.backoff.ms", "server.cleaner_backoff_ms", 15000, "ms",
        "How often logs that are worth compacting are looked for.", minimum=1,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size", "server.cleaner_buffer_bytes", 128 * MIB, "bytes",
        "Memory for the keys of one compaction. A log with more keys takes several.", minimum=MIB,
    ),
    Setting(
        "background.silence.max.ms", "server.background_silence_ms", 2 * MINUTE_MS, "ms",
        "A child process (compaction, state checkpoints, snapshots of the metadata log) that makes no progress for so "
        "long is ended, and its work is tried again later. Syncing a file takes less, on a slow disk too.", minimum=100,
    ),
    Setting(
        "log.history", "server.history_ms", 7 * DAY_MS, "ms",
        "How long records of the coordinators' own topics are left alone by compaction, so that earlier states can "
        "be looked up.", minimum=0,
    ),
    Setting(
        "log.history.bytes", "server.history_bytes", 1024 * MIB, "bytes",
        "The most that `log.history` keeps of one partition.", minimum=0,
    ),
    Setting(
        "metadata.log.max.record.bytes.between.snapshots", "server.metadata_snapshot_bytes", 20 * MIB, "bytes",
        "How much the metadata log (topics, their configs, producer ids) grows until a snapshot of it is written.",
        minimum=1,
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms", "server.metadata_snapshot_interval_ms", HOUR_MS, "ms",
        "How long after the last snapshot, or after the start, one is written whatever the log has grown, if there "
        "is anything new; 0 for never.", minimum=0,
    ),
    Setting(
        "metadata.max.retention.bytes", "server.metadata_retention_bytes", 100 * MIB, "bytes",
        "What the metadata log and its snapshots may take before their oldest part goes; -1 means any size. The newest "
        "snapshot and the log behind it stay.", minimum=-1,
    ),
    Setting(
        "metadata.max.retention.ms", "server.metadata_retention_ms", 7 * DAY_MS, "ms",
        "How long records of the metadata log are kept below a snapshot, so that earlier states can be looked up; -1 "
        "keeps them.", minimum=-1,
    ),
    Setting(
        "message.max.bytes", "core.message_max_bytes", 1048588, "bytes",
        "The largest record batch that a producer may send.", maximum=INT32_MAX,
    ),
)  # fmt: skip

TOPIC_SETTINGS: Final = (
    Setting(
        "node.id", "core.node_id", 1, "", "The number of this node in what clients are told.",
        maximum=INT32_MAX, aliases=(("broker.id", 1),),
    ),
    Setting("broker.rack", "core.rack", "", "", "The rack that clients are told, if any."),
    Setting(
        "auto.create.topics.enable", "core.auto_create_topics_enable", True, "",
        "Whether asking for an unknown topic may create it.",
    ),
    Setting(
        "num.partitions", "core.num_partitions", 1, "partitions",
        "Partitions of a topic that is created without saying how many.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "default.replication.factor", "core.default_replication_factor", 1, "replicas",
        "Kept for tools that look at it: there is one node.", minimum=1, maximum=32767,
    ),
    Setting(
        "delete.topic.enable", "core.delete_topic_enable", True, "", "Whether topics can be deleted.",
    ),
    Setting(
        "partitions.max", "core.partitions_max", 50000, "partitions",
        "The most partitions of all topics together, since each takes about 4 KiB of memory. Beyond it nothing is "
        "created; what is there stays. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "request.partitions.max", "core.request_partitions_max", 10000, "partitions",
        "The most partitions that one request may create, and the most topics that it may delete. Kafka's controller "
        "has the same limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "fetch.max.bytes", "core.fetch_max_bytes", 57671680, "bytes",
        "The most that one Fetch returns.", minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots", "core.fetch_session_slots", 1000, "sessions",
        "Incremental fetch sessions that are kept (KIP-227).", maximum=INT32_MAX,
    ),
    Setting(
        "max.request.partition.size.limit", "core.max_request_partition_size_limit", 2000, "partitions",
        "The most partitions that one DescribeTopicPartitions returns (KIP-966).", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "decompressed.max.bytes", "core.decompressed_bytes_max", 64 * MIB, "bytes",
        "What a compressed batch may become when it has to be looked into.", minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "produce.decompressed.max.bytes", "core.produce_decompressed_bytes_max", 128 * MIB, "bytes",
        "What all compressed batches of one Produce request may become together; a compressed block counts for 4 KiB "
        "at least. Beyond it nothing of the request is stored (MESSAGE_TOO_LARGE, which makes producers send less "
        "at once). Kafka has no limit.", minimum=1024,
    ),
)  # fmt: skip

GROUP_SETTINGS: Final = (
    Setting(
        "group.min.session.timeout.ms", "core.group_min_session_timeout_ms", 6000, "ms",
        "The shortest session timeout that a member may ask for.", minimum=0, maximum=INT32_MAX,
    ),
    Setting(
        "group.max.session.timeout.ms", "core.group_max_session_timeout_ms", 1800000, "ms",
        "The longest session timeout that a member may ask for.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.initial.rebalance.delay.ms", "core.group_initial_rebalance_delay_ms", 0, "ms",
        "How long an empty group waits for more members before its first rebalance. Kafka's default is 3000; people "
        "develop and test with this, so nobody waits.", maximum=INT32_MAX,
    ),
    Setting(
        "group.max.size", "core.group_max_size", 10000, "members",
        "Members of one group. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.session.timeout.ms", "core.group_consumer_session_timeout_ms", 45000, "ms",
        "How long a silent member of a consumer group (KIP-848) stays, where the group sets no "
        "`consumer.session.timeout.ms`.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms", "core.group_consumer_min_session_timeout_ms", 45000, "ms",
        "The shortest session timeout that a group may set.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms", "core.group_consumer_max_session_timeout_ms", 60000, "ms",
        "The longest session timeout that a group may set.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms", "core.group_consumer_heartbeat_interval_ms", 5000, "ms",
        "How often members of a consumer group are told to heartbeat, where the group sets no "
        "`consumer.heartbeat.interval.ms`.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms", "core.group_consumer_min_heartbeat_interval_ms", 5000, "ms",
        "The shortest heartbeat interval that a group may set.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms", "core.group_consumer_max_heartbeat_interval_ms", 15000, "ms",
        "The longest heartbeat interval that a group may set.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.assignment.interval.ms", "core.group_consumer_assignment_interval_ms", 1000, "ms",
        "The least time between two assignments of a consumer group, where the group sets no "
        "`consumer.assignment.interval.ms`. The first one never waits. Can be set on the running server too.",
        minimum=0, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms", "core.group_consumer_min_assignment_interval_ms", 0, "ms",
        "The shortest assignment interval that a group may set.", minimum=0, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms", "core.group_consumer_max_assignment_interval_ms", 15000, "ms",
        "The longest assignment interval that a group may set.", minimum=0, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.max.size", "core.group_consumer_max_size", 10000, "members",
        "Members of one consumer group. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.assignors", "core.group_consumer_assignors", "uniform,range", "",
        "The server's assignors, by name and with commas. A member that asks for none gets the first. "
        "`docs/assignors.md` says what they do, and how to add one.",
    ),
    Setting(
        "group.coordinator.rebalance.protocols", "core.group_coordinator_rebalance_protocols",
        "classic,consumer,streams", "",
        "The group protocols that are served, with commas; `classic` is required. Without `consumer`, "
        "ConsumerGroupHeartbeat and ConsumerGroupDescribe are answered with UNSUPPORTED_VERSION, as by a broker. "
        "`streams` and `share` are accepted, and not served here.",
    ),
    Setting(
        "group.consumer.migration.policy", "core.group_consumer_migration_policy", core.MIGRATION_BIDIRECTIONAL, "",
        "Whether a group with members may change from the classic protocol to KIP-848's (`upgrade`), back "
        "(`downgrade`), both or neither. Groups without members always may.",
        choices=(
            core.MIGRATION_BIDIRECTIONAL, core.MIGRATION_UPGRADE, core.MIGRATION_DOWNGRADE, core.MIGRATION_DISABLED,
        ),
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms", "core.group_consumer_regex_refresh_interval_ms", 600000, "ms",
        "How often subscriptions by regular expression are resolved anew though no topic changed.",
        minimum=10000, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.regex.min.refresh.interval.ms", "core.group_consumer_regex_min_refresh_interval_ms", 10000,
        "ms", "How long after one resolution of a group's regular expressions the next one may be, whatever it is for. "
        "Not a setting in Kafka, where it is the same.",
        maximum=INT32_MAX,
    ),
    Setting(
        "group.events.enable", "core.group_events_enable", True, "",
        "Whether what happens to groups, and why, is written to the topic `__group_events`. Kafka has no such thing.",
    ),
    Setting(
        "group.events.retention.ms", "core.group_events_retention_ms", 7 * DAY_MS, "ms",
        "`retention.ms` of `__group_events`, when the topic is made.", minimum=1000,
    ),
    Setting(
        "empty_group_id_commit", "core.empty_group_id_commit", core.EMPTY_GROUP_INVALID_GROUP_ID, "",
        "What a commit with an empty group id gets from OffsetCommit v4 on (KIP-289): error 24, the proposal's own "
        "code (73, which names something else by now), or nothing, as released brokers do.",
        choices=(
            core.EMPTY_GROUP_INVALID_GROUP_ID, core.EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT, core.EMPTY_GROUP_ALLOW,
        ),
    ),
    Setting(
        "offset.metadata.max.bytes", "core.offset_metadata_max_bytes", 4096, "bytes",
        "The longest metadata string of a committed offset.", maximum=INT32_MAX,
    ),
    Setting(
        "offsets.retention.minutes", "core.offsets_retention_ms", 7 * 24 * 60, "minutes",
        "How long the offsets of an empty group, or of one that left a topic, are kept (KIP-211). In groups of the new "
        "protocol it counts from the commit, as in Kafka.", minimum=1,
        maximum=INT32_MAX, scale=MINUTE_MS, aliases=(("offsets.retention.ms", 1),),
    ),
    Setting(
        "offsets.retention.consumer.groups.from", "core.offsets_retention_consumer_groups_from",
        core.RETENTION_FROM_COMMIT, "",
        "From when `offsets.retention.minutes` counts in empty groups of the new protocol (KIP-848): from the commit, "
        "as in Kafka, or from when the group became empty (`empty`), as in classic groups. Not a setting in Kafka.",
        choices=(core.RETENTION_FROM_COMMIT, core.RETENTION_FROM_EMPTY),
    ),
    Setting(
        "offsets.retention.check.interval.ms", "core.offsets_retention_check_interval_ms", 600000, "ms",
        "How often expired offsets are looked for.", minimum=1,
    ),
    Setting(
        "offsets.topic.num.partitions", "core.offsets_topic_num_partitions", 1, "partitions",
        "Partitions of `__consumer_offsets`, fixed when the directory is made. Kafka's default is 50, which gains "
        "nothing in one process.", minimum=1, maximum=10000,
    ),
    Setting(
        "coordinator.batch.max.bytes", "core.coordinator_batch_bytes_max", 64 * MIB, "bytes",
        "The largest atomic batch of coordinator records, such as the state of one group.",
        minimum=1024, maximum=INT32_MAX,
    ),
)  # fmt: skip

PRODUCER_SETTINGS: Final = (
    Setting(
        "transaction.state.log.num.partitions", "core.transaction_topic_num_partitions", 1, "partitions",
        "Partitions of `__transaction_state`, fixed when the directory is made.", minimum=1, maximum=10000,
    ),
    Setting(
        "transactional.id.expiration.ms", "core.transactional_id_expiration_ms", 7 * DAY_MS, "ms",
        "How long an unused transactional id is remembered.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "transaction.max.timeout.ms", "core.transaction_max_timeout_ms", 900000, "ms",
        "The longest timeout that a transactional producer may ask for.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "producer.id.expiration.ms", "core.producer_id_expiration_ms", 86400000, "ms",
        "How long the sequence numbers of an idle producer are remembered.", minimum=1,
    ),
    Setting(
        "producers.max", "core.producers_max", 200_000, "producers",
        "Idempotent producers whose sequence numbers all partitions together remember, counted for each partition; "
        "one takes about 400 bytes. Above it a partition that has 16 or more forgets its oldest for a new one: its "
        "batches are taken as before, but one that it sends twice may be stored twice. Kafka has no limit.",
        minimum=1000,
    ),
    Setting(
        "producers.per.partition.max", "core.producers_per_partition_max", 20_000, "producers",
        "The same for one partition. They are all in the snapshot that is made when a segment is closed. Kafka has no "
        "limit.", minimum=16,
    ),
    Setting(
        "producer.id.block.size", "core.producer_id_block_size", 1000, "ids",
        "Producer ids are reserved on disk in blocks of so many.", minimum=1, maximum=1000000,
    ),
)  # fmt: skip

LOGGING_SETTINGS: Final = (
    Setting(
        "logging.format", "server.logging_format", "auto", "",
        "Lines on standard error: for people, as JSON, or `auto`: for people when it is a terminal.",
        choices=("auto", "console", "json"),
    ),
    Setting(
        "logging.level", "server.logging_level", "info", "", "The least important lines to print.",
        choices=("info", "warning", "error"),
    ),
)  # fmt: skip

SECTIONS: Final = (
    ("Network", NETWORK_SETTINGS),
    ("Log", LOG_SETTINGS),
    ("Node and topics", TOPIC_SETTINGS),
    ("Groups and offsets", GROUP_SETTINGS),
    ("Producers and transactions", PRODUCER_SETTINGS),
    ("Messages of the server", LOGGING_SETTINGS),
)
SETTINGS: Final[tuple[Setting, ...]] = tuple(setting for _, section in SECTIONS for setting in section)
BY_NAME: Final[dict[str, Setting]] = {setting.name: setting for setting in SETTINGS}

# `--profile NAME`: settings that go together. Whatever else is given wins over them.
PROFILES: Final[dict[str, dict[str, str]]] = {
    # For fixtures: nothing on disk, a free port, sessions that a test can let expire.
    "test": {
        "group.events.enable": "false",
        "log.sync": SYNC_MEMORY,
        "listeners": "127.0.0.1:0",
        "group.min.session.timeout.ms": "100",
        "group.consumer.min.session.timeout.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "50",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.regex.min.refresh.interval.ms": "100",
        "logging.level": "warning",
    },
}

# Properties of Kafka that mean nothing here. They are accepted with a warning, so that a broker's file can be used.
# `group.consumer.assignor.offload.enable` among them: where assignors run is for the server to decide.
WITHOUT_EFFECT: Final = frozenset(
    {
        "alter.config.policy.class.name", "background.threads", "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms", "compression.type", "connection.failed.authentication.delay.ms",
        "create.topic.policy.class.name", "early.start.listeners", "group.consumer.assignor.offload.enable",
        "initial.broker.registration.timeout.ms",
        "inter.broker.listener.name", "leader.imbalance.check.interval.seconds",
        "leader.imbalance.per.broker.percentage", "auto.leader.rebalance.enable",
        "listener.security.protocol.map", "max.connections.per.ip.overrides", "metadata.log.dir", "min.insync.replicas",
        "metric.reporters", "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads", "num.replica.fetchers", "offsets.commit.timeout.ms",
        "offsets.load.buffer.size", "offsets.topic.compression.codec", "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes", "process.roles", "queued.max.requests", "request.timeout.ms",
        "security.inter.broker.protocol", "server.max.startup.time.ms", "socket.connection.setup.timeout.ms",
        "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "transaction.partition.verification.enable",
        "transaction.state.log.load.buffer.size", "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor", "transaction.state.log.segment.bytes",
        "transaction.two.phase.commit.enable", "unclean.leader.election.enable",
    }
)  # fmt: skip
PREFIXES_WITHOUT_EFFECT: Final = (
    "controller.", "group.coordinator.", "group.share.", "group.streams.", "fetch.purgatory.",
    "log.cleaner.", "log.flush.", "log.message.", "log.index.", "log.cleanup.", "log.initial.", "log.local.",
    "log.segment.delete.", "log.roll.jitter.", "log.preallocate", "metrics.", "metadata.",
    "producer.purgatory.", "delete.records.purgatory.", "producer.id.expiration.check.", "quota.", "remote.log.",
    "replica.", "replication.", "controlled.shutdown.", "telemetry.", "share.coordinator.",
    "errors.deadletterqueue.", "transaction.abort.timed.", "transaction.remove.expired.", "zookeeper.",
    "kafka.metrics.", "auto.include.jmx.", "num.replica.", "leader.imbalance.", "reserved.broker.",
)  # fmt: skip
# Properties that protect a broker. Accepting them without keeping their promise would leave a server open.
REFUSED_PREFIXES: Final = (
    "authorizer.", "super.users", "allow.everyone.if.no.acl.found", "sasl.", "ssl.", "listener.name.",
    "principal.builder.", "delegation.token.", "password.encoder.", "connections.max.reauth.",
)  # fmt: skip
