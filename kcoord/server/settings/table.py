"""The table of settings, each with its unit, its default and its reason.

A setting has the name of Kafka's property if there is one. The code for files, environment and flags reads this table,
and `docs/configuration.md` is generated from it.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core import choices

INT32_MAX: Final = 2147483647
INT64_MAX: Final = 9223372036854775807

INTEGER: Final = "integer"
BOOLEAN: Final = "boolean"
STRING: Final = "string"
CHOICE: Final = "choice"

# Types of DescribeConfigs that are not those of SHOWN_AS.
LONG: Final = "LONG"
LIST: Final = "LIST"
# As DescribeConfigs shows the settings of a kind.
SHOWN_AS: Final = {INTEGER: "INT", BOOLEAN: "BOOLEAN", STRING: "STRING", CHOICE: "STRING"}

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
    multiplied by `scale`. `aliases` are other accepted names, each with the factor from its unit to the unit of the
    attribute; if one source gives several, the one with the finest unit wins. An empty text is stored as None where
    `is_optional`. Where `shown`, DescribeConfigs of the broker has the setting, with these words and, if it is not the
    usual one, the type `shown_as`. `make gen` writes the attributes, and docs/configuration.md.
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
        is_optional: bool = False,
        shown: str = "",
        shown_as: str = "",
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
        self.is_optional = is_optional
        self.shown = shown
        if choices:
            self.kind = CHOICE
        elif isinstance(default, bool):
            self.kind = BOOLEAN
        else:
            self.kind = INTEGER if isinstance(default, int) else STRING
        self.shown_as = shown_as or SHOWN_AS[self.kind]


NETWORK_SETTINGS: Final = (
    Setting(
        "listeners", "server.listeners", "127.0.0.1:9092", "",
        "The addresses to listen on: `[NAME://]HOST:PORT`, separated by commas. Port 0 picks a free one, an empty host "
        "means every address. The default is reachable only from this machine, since there is no authentication yet.",
        shown="The addresses that the server listens on.", shown_as=LIST,
    ),
    Setting(
        "advertised.listeners", "server.advertised_listeners", "", "",
        "The addresses that clients connect to, by listener name or, without names, in the order of `listeners`. "
        "A listener without an entry advertises to each client the local address of that client's connection.",
        shown="The addresses that clients connect to.", shown_as=LIST,
    ),
    Setting(
        "controller.listener.names", "server.controller_listener_names", "", "",
        "Names in `listeners` to ignore: a broker's file may list its controller's listener; kcoord has none.",
    ),
    Setting(
        "max.connections", "server.max_connections", 10000, "connections",
        "The maximum number of connections; further ones are closed at once. Kafka has no limit. A low limit on open "
        "files reduces it: the log keeps its share, and `connections_limited` in the server's log reports both.",
        minimum=1, maximum=INT32_MAX,
        shown="All connections together.",
    ),
    Setting(
        "max.connections.per.ip", "server.max_connections_per_ip", 1000, "connections",
        "The maximum number of connections from one address. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
        shown="Connections from one address.",
    ),
    Setting(
        "max.connections.per.ip.exempt.loopback", "server.loopback_exempt", True, "",
        "Whether `max.connections.per.ip` ignores connections from this machine.",
    ),
    Setting(
        "max.connection.creation.rate", "server.connection_rate", 1000, "connections/s",
        "The rate at which connections are accepted, averaged over two seconds; others wait in the backlog. "
        "Connections that are closed at once count, too. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
        shown="New connections per second.",
    ),
    Setting(
        "socket.listen.backlog.size", "server.listen_backlog", 1024, "connections",
        "Connections that may wait to be accepted.", minimum=1, maximum=65535,
        shown="Connections that may wait to be accepted.",
    ),
    Setting(
        "socket.send.buffer.bytes", "server.send_buffer_bytes", 256 * 1024, "bytes",
        "The size of a connection's send buffer (SO_SNDBUF); -1 lets the system choose and grow it. Kafka's default is "
        "102400. Small buffers stay in the processor's cache: with those that Linux chooses on one machine, up to "
        "4 MiB, large fetches are half as fast. A larger buffer, or -1, is for clients far away.",
        minimum=-1, maximum=INT32_MAX,
        shown="The size of the send buffers of sockets. -1: the system's default.",
    ),
    Setting(
        "socket.receive.buffer.bytes", "server.receive_buffer_bytes", 256 * 1024, "bytes",
        "The same for the receive buffer (SO_RCVBUF), which counts for producers.", minimum=-1, maximum=INT32_MAX,
        shown="The size of the receive buffers of sockets. -1: the system's default.",
    ),
    Setting(
        "connections.max.idle.ms", "server.idle_ms", 600000, "ms",
        "A connection that receives nothing for this long and has no pending request is closed. -1: never.",
        minimum=-1,
        shown="How long a connection may be idle.", shown_as=LONG,
    ),
    Setting(
        "frame.deadline.ms", "server.frame_deadline_ms", 30000, "ms",
        "A request must be complete within this time after its first byte, or the connection is closed.", minimum=100,
    ),
    Setting(
        "socket.request.max.bytes", "server.frame_bytes_max", 100 * MIB, "bytes",
        "The largest request of any kind; the three limits below cannot exceed it.", minimum=1024, maximum=INT32_MAX,
        shown="The largest request.",
    ),
    Setting(
        "frame.control.max.bytes", "server.frame_control_bytes_max", MIB, "bytes",
        "The largest request that is neither a Produce nor a JoinGroup or SyncGroup.",
        minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "frame.group.max.bytes", "server.frame_group_bytes_max", 16 * MIB, "bytes",
        "The largest JoinGroup or SyncGroup: the leader of a large group sends the assignments of all members in one "
        "request. A broker stores them with all subscriptions in one record of at most 1 MiB by default.",
        minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "frame.produce.max.bytes", "server.frame_produce_bytes_max", 10 * MIB, "bytes",
        "The largest Produce; raised if `message.max.bytes` requires it.", minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "request.elements.max", "core.request_elements_max", 15000, "elements",
        "The maximum number of elements in all arrays of one request (topics, partitions, members, ...). It bounds one "
        "turn of the event loop, since 1,000 elements take 2 to 3 ms. A request with more closes its connection, and "
        "the log names this setting. Raise it if one client commits or fetches more partitions. Kafka has no limit.",
        minimum=1000, maximum=1_000_000,
    ),
    Setting(
        "install.elements.max", "core.install_elements_max", 60000, "elements",
        "The same for ConsumerGroupInstallAssignment if `request.elements.max` is less: members, their topics and "
        "partitions. It suffices for 10,000 members, the largest group, with one topic and four partitions each. Kafka "
        "does not have this request.",
        minimum=1000, maximum=1_000_000,
    ),
    Setting(
        "queued.max.request.bytes", "server.queued_bytes_max", 256 * MIB, "bytes",
        "The bytes of incomplete and waiting requests of all connections together. Above it, the connection with the "
        "most is closed. Produce requests whose records a thread checks do not count: they may hold 64 MiB and one "
        "more request, and those of up to 64 KiB another 16 MiB, one client address half of each. Further ones wait "
        "and count here. Kafka has no limit.", minimum=MIB,
        shown="Bytes of queued requests of all connections together.", shown_as=LONG,
    ),
    Setting(
        "output.buffer.high.bytes", "server.output_high_bytes", MIB, "bytes",
        "The server stops reading a connection with this much unread output until its client catches up.", minimum=1024,
    ),
    Setting(
        "output.buffer.max.bytes", "server.output_bytes_max", 256 * MIB, "bytes",
        "A connection with this much unread output is closed.", minimum=MIB,
    ),
    Setting(
        "queued.max.response.bytes", "core.queued_response_bytes_max", 256 * MIB, "bytes",
        "The bytes of unread responses of all connections together. As it fills up, Fetch responses become smaller, "
        "and empty when it is full. Above it, the connection with the most is closed. Kafka has no limit.",
        minimum=16 * MIB,
    ),
    Setting(
        "output.deadline.ms", "server.output_deadline_ms", 10_000, "ms",
        "While unread responses take more than half of `queued.max.response.bytes`, a connection whose client has not "
        "read a byte for this long is closed. Otherwise `connections.max.idle.ms` applies.", minimum=100,
    ),
    Setting(
        "turn.log.ms", "server.turn_log_ms", 100, "ms",
        "A turn of the event loop that takes more CPU time is logged, with the most expensive API in it. 0: never.",
    ),
    Setting(
        "progress.log.ms", "server.progress_log_ms", 5000, "ms",
        "A longer start or stop logs its progress at this interval: how many logs are open or closed, and how many "
        "there are. 0: never.",
    ),
    Setting(
        "shutdown.deadline.ms", "server.shutdown_deadline_ms", 5000, "ms",
        "How long pending responses may take after SIGTERM before their connections are closed.", minimum=0,
    ),
)  # fmt: skip

LOG_SETTINGS: Final = (
    Setting(
        "log.dirs", "server.data_dir", "data", "", "The data directory; only one.", aliases=(("log.dir", 1),),
        shown="The data directory.", shown_as=LIST,
    ),
    Setting(
        "log.sync", "server.log_sync", SYNC_ALWAYS, "",
        "When a write is acknowledged: `always` after it is synced to disk, `os` after it is passed to the operating "
        "system (as in Kafka), `memory` at once, because there is no data directory.",
        choices=(SYNC_ALWAYS, SYNC_OS, SYNC_MEMORY),
    ),
    Setting(
        "log.reserve.bytes", "server.reserve_bytes", 64 * MIB, "bytes",
        "With less free space than this the server does not start, and a running server rejects writes with an error "
        "that clients retry. Heartbeats and reads continue.", minimum=0,
    ),
    Setting(
        "log.segment.bytes", "core.log_segment_bytes", 1073741824, "bytes",
        "The maximum size of a segment; a larger one is closed before it.", minimum=14, maximum=INT32_MAX,
    ),
    Setting(
        "log.preallocate", "core.log_preallocate", False, "",
        "With `log.sync=always`, write zeros behind the end of logs that grow by small writes: 256 KiB at a time, not "
        "the whole segment as Kafka does. A sync then takes less time, and the newest segment ends in zeros until the "
        "server is stopped cleanly. For topics that do not set `preallocate`.",
    ),
    Setting(
        "log.roll.ms", "core.log_roll_ms", 7 * DAY_MS, "ms",
        "The maximum age of a segment before it is closed.", minimum=1,
        aliases=(("log.roll.hours", HOUR_MS),),
    ),
    Setting(
        "log.retention.ms", "core.log_retention_ms", 7 * DAY_MS, "ms",
        "How long records are kept in topics that do not set `retention.ms`; -1: forever. 0 is refused, as by Kafka.",
        minimum=-1, aliases=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    ),
    Setting(
        "log.retention.bytes", "core.log_retention_bytes", -1, "bytes",
        "The size of a partition above which its oldest segments are removed; -1: unlimited.", minimum=-1,
    ),
    Setting(
        "log.retention.check.interval.ms", "server.retention_check_ms", 5 * MINUTE_MS, "ms",
        "How often retention is applied.", minimum=1,
    ),
    Setting(
        "log.cleaner.enable", "server.cleaner_enable", True, "",
        "Whether compacted topics, including `__consumer_offsets`, are compacted.",
    ),
    Setting(
        "log.cleaner.backoff.ms", "server.cleaner_backoff_ms", 15000, "ms",
        "How often the server checks which logs to compact. It checks sooner after 128 MiB of commits.", minimum=1,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size", "server.cleaner_buffer_bytes", 128 * MIB, "bytes",
        "The memory for the keys of one compaction. A log with more keys needs several.", minimum=MIB,
    ),
    Setting(
        "background.silence.max.ms", "server.background_silence_ms", 2 * MINUTE_MS, "ms",
        "A child process (compaction, state checkpoints, snapshots of the metadata log) without progress for this long "
        "is killed, and its work is retried later. Syncing a file takes less time, even on a slow disk.", minimum=100,
    ),
    Setting(
        "log.history", "server.history_ms", 7 * DAY_MS, "ms",
        "How long compaction keeps all records of the coordinators' internal topics, so that past states can be looked "
        "up.", minimum=0,
    ),
    Setting(
        "log.history.bytes", "server.history_bytes", 1024 * MIB, "bytes",
        "The maximum size that `log.history` keeps per partition. While a log grows quickly, less is kept (at least "
        "half), so that with what waits for compaction it has about this size.", minimum=0,
    ),
    Setting(
        "metadata.log.max.record.bytes.between.snapshots", "server.metadata_snapshot_bytes", 20 * MIB, "bytes",
        "How much the metadata log (topics, their configs, producer ids) grows before a snapshot is written.",
        minimum=1,
    ),
    Setting(
        "metadata.log.max.snapshot.interval.ms", "server.metadata_snapshot_interval_ms", HOUR_MS, "ms",
        "How long after the last snapshot, or after the start, a snapshot is written whatever the log's growth, if "
        "there are new records; 0: never.", minimum=0,
    ),
    Setting(
        "metadata.max.retention.bytes", "server.metadata_retention_bytes", 100 * MIB, "bytes",
        "The size of the metadata log and its snapshots above which their oldest part is removed; -1: unlimited. The "
        "newest snapshot and the log after it are always kept.", minimum=-1,
    ),
    Setting(
        "metadata.max.retention.ms", "server.metadata_retention_ms", 7 * DAY_MS, "ms",
        "How long records of the metadata log below a snapshot are kept, so that past states can be looked up; -1: "
        "forever.", minimum=-1,
    ),
    Setting(
        "message.max.bytes", "core.message_max_bytes", 1048588, "bytes",
        "The largest record batch that a producer may send.", maximum=INT32_MAX,
    ),
)  # fmt: skip

TOPIC_SETTINGS: Final = (
    Setting(
        "node.id", "core.node_id", 1, "", "The id of this node.",
        maximum=INT32_MAX, aliases=(("broker.id", 1),),
        shown="The number of this node.",
    ),
    Setting(
        "broker.rack", "core.rack", "", "", "The rack of this node, if any.", is_optional=True,
        shown="The rack of this node.",
    ),
    Setting(
        "auto.create.topics.enable", "core.auto_create_topics_enable", True, "",
        "Whether a Metadata request for an unknown topic may create it.",
        shown="Whether asking for an unknown topic may create it.",
    ),
    Setting(
        "num.partitions", "core.num_partitions", 1, "partitions",
        "The number of partitions of a topic that is created without a number.", minimum=1, maximum=INT32_MAX,
        shown="The default number of partitions of a topic.",
    ),
    Setting(
        "default.replication.factor", "core.default_replication_factor", 1, "replicas",
        "Only for tools that read it: there is one node.", minimum=1, maximum=32767,
        shown="The default replication factor of a topic.",
    ),
    Setting(
        "delete.topic.enable", "core.delete_topic_enable", True, "", "Whether topics can be deleted.",
        shown="Whether topics can be deleted.",
    ),
    Setting(
        "partitions.max", "core.partitions_max", 50000, "partitions",
        "The maximum number of partitions of all topics together, since each takes about 4 KiB of memory. Above it no "
        "partition can be created; existing ones stay. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "request.partitions.max", "core.request_partitions_max", 10000, "partitions",
        "The maximum number of partitions that one request may create, and of topics that it may delete. Kafka's "
        "controller has the same limit.", minimum=1, maximum=INT32_MAX,
    ),
    Setting(
        "fetch.max.bytes", "core.fetch_max_bytes", 57671680, "bytes",
        "The maximum size of a Fetch response.", minimum=1024, maximum=INT32_MAX,
        shown="The most that one Fetch returns.",
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots", "core.fetch_session_slots", 1000, "sessions",
        "The maximum number of incremental fetch sessions (KIP-227).", maximum=INT32_MAX,
        shown="Incremental fetch sessions that are kept.",
    ),
    Setting(
        "max.request.partition.size.limit", "core.max_request_partition_size_limit", 2000, "partitions",
        "The maximum number of partitions in a DescribeTopicPartitions response (KIP-966).",
        minimum=1, maximum=INT32_MAX,
        shown="The most partitions that one DescribeTopicPartitions returns.",
    ),
    Setting(
        "decompressed.max.bytes", "core.decompressed_bytes_max", 64 * MIB, "bytes",
        "The maximum decompressed size of a batch that the server must decompress.", minimum=1024, maximum=INT32_MAX,
    ),
    Setting(
        "produce.decompressed.max.bytes", "core.produce_decompressed_bytes_max", 128 * MIB, "bytes",
        "The maximum decompressed size of all batches in one Produce request; each compressed block counts as at least "
        "4 KiB. Above it nothing of the request is stored, and the error is MESSAGE_TOO_LARGE, after which producers "
        "send smaller batches. Kafka has no limit.", minimum=1024,
    ),
)  # fmt: skip

GROUP_SETTINGS: Final = (
    Setting(
        "group.min.session.timeout.ms", "core.group_min_session_timeout_ms", 6000, "ms",
        "The shortest session timeout that a member may request.", minimum=0, maximum=INT32_MAX,
        shown="The shortest session timeout.",
    ),
    Setting(
        "group.max.session.timeout.ms", "core.group_max_session_timeout_ms", 1800000, "ms",
        "The longest session timeout that a member may request.", minimum=1, maximum=INT32_MAX,
        shown="The longest session timeout.",
    ),
    Setting(
        "group.initial.rebalance.delay.ms", "core.group_initial_rebalance_delay_ms", 0, "ms",
        "How long an empty group waits for more members before its first rebalance. Kafka's default is 3000; the "
        "default of 0 suits development and tests.", maximum=INT32_MAX,
        shown="How long an empty group waits for more members before its first rebalance.",
    ),
    Setting(
        "group.max.size", "core.group_max_size", 10000, "members",
        "Members of one group. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
        shown="Members of one group.",
    ),
    Setting(
        "group.consumer.session.timeout.ms", "core.group_consumer_session_timeout_ms", 45000, "ms",
        "The session timeout of members of a consumer group (KIP-848), unless the group sets "
        "`consumer.session.timeout.ms`.", minimum=1, maximum=INT32_MAX,
        shown="How long a member without heartbeats stays in a consumer group.",
    ),
    Setting(
        "group.consumer.min.session.timeout.ms", "core.group_consumer_min_session_timeout_ms", 45000, "ms",
        "The shortest session timeout that a group may set.", minimum=1, maximum=INT32_MAX,
        shown="The shortest session timeout that a group may set.",
    ),
    Setting(
        "group.consumer.max.session.timeout.ms", "core.group_consumer_max_session_timeout_ms", 60000, "ms",
        "The longest session timeout that a group may set.", minimum=1, maximum=INT32_MAX,
        shown="The longest session timeout that a group may set.",
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms", "core.group_consumer_heartbeat_interval_ms", 5000, "ms",
        "The heartbeat interval of members of a consumer group, unless the group sets "
        "`consumer.heartbeat.interval.ms`.", minimum=1, maximum=INT32_MAX,
        shown="The interval at which members of a consumer group send heartbeats.",
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms", "core.group_consumer_min_heartbeat_interval_ms", 5000, "ms",
        "The shortest heartbeat interval that a group may set.", minimum=1, maximum=INT32_MAX,
        shown="The shortest heartbeat interval that a group may set.",
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms", "core.group_consumer_max_heartbeat_interval_ms", 15000, "ms",
        "The longest heartbeat interval that a group may set.", minimum=1, maximum=INT32_MAX,
        shown="The longest heartbeat interval that a group may set.",
    ),
    Setting(
        "group.consumer.assignment.interval.ms", "core.group_consumer_assignment_interval_ms", 1000, "ms",
        "The minimum time between two assignments of a consumer group, unless the group sets "
        "`consumer.assignment.interval.ms`. The first one never waits. Can also be changed at run time.",
        minimum=0, maximum=INT32_MAX,
        shown="The least time between two assignments of a consumer group.",
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms", "core.group_consumer_min_assignment_interval_ms", 0, "ms",
        "The shortest assignment interval that a group may set.", minimum=0, maximum=INT32_MAX,
        shown="The shortest assignment interval that a group may set.",
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms", "core.group_consumer_max_assignment_interval_ms", 15000, "ms",
        "The longest assignment interval that a group may set.", minimum=0, maximum=INT32_MAX,
        shown="The longest assignment interval that a group may set.",
    ),
    Setting(
        "group.consumer.max.size", "core.group_consumer_max_size", 10000, "members",
        "Members of one consumer group. Kafka has no limit.", minimum=1, maximum=INT32_MAX,
        shown="Members of one consumer group.",
    ),
    Setting(
        "group.consumer.assignors", "core.group_consumer_assignors", "uniform,range", "",
        "The names of the server-side assignors, separated by commas. The first is the default for members. "
        "`docs/assignors.md` describes them, and how to add one.",
        shown="The server's assignors; a member that asks for none gets the first.", shown_as=LIST,
    ),
    Setting(
        "group.coordinator.rebalance.protocols", "core.group_coordinator_rebalance_protocols",
        "classic,consumer,streams", "",
        "The supported group protocols, separated by commas; `classic` is required. Without `consumer`, "
        "ConsumerGroupHeartbeat and ConsumerGroupDescribe return UNSUPPORTED_VERSION, as in a broker. "
        "`streams` and `share` are accepted but have no effect.",
        shown="The group protocols that are served; deprecated in Kafka.", shown_as=LIST,
    ),
    Setting(
        "group.consumer.migration.policy", "core.group_consumer_migration_policy", choices.MIGRATION_BIDIRECTIONAL, "",
        "Whether a group with members may change from the classic protocol to KIP-848's (`upgrade`), back "
        "(`downgrade`), both or neither. Groups without members always may.",
        choices=(
            choices.MIGRATION_BIDIRECTIONAL, choices.MIGRATION_UPGRADE,
            choices.MIGRATION_DOWNGRADE, choices.MIGRATION_DISABLED,
        ),
        shown="Which groups with members may change their protocol.",
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms", "core.group_consumer_regex_refresh_interval_ms", 600000, "ms",
        "How often regular expressions in subscriptions are resolved again even if no topic has changed.",
        minimum=10000, maximum=INT32_MAX,
    ),
    Setting(
        "group.consumer.regex.min.refresh.interval.ms", "core.group_consumer_regex_min_refresh_interval_ms", 10000,
        "ms", "The minimum time between two resolutions of a group's regular expressions. Not a setting in Kafka, "
        "which uses the same value.",
        maximum=INT32_MAX,
    ),
    Setting(
        "group.events.enable", "core.group_events_enable", True, "",
        "Whether changes of groups and their causes are written to the topic `__group_events`. Kafka does not have it.",
    ),
    Setting(
        "group.events.retention.ms", "core.group_events_retention_ms", 7 * DAY_MS, "ms",
        "`retention.ms` of `__group_events` when the topic is created.", minimum=1000,
    ),
    Setting(
        "empty_group_id_commit", "core.empty_group_id_commit", choices.EMPTY_GROUP_INVALID_GROUP_ID, "",
        "The response to a commit with an empty group id from OffsetCommit v4 on (KIP-289): error 24, the code in the "
        "proposal (73, which has another meaning now), or no error, as in released brokers.",
        choices=(
            choices.EMPTY_GROUP_INVALID_GROUP_ID, choices.EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT, choices.EMPTY_GROUP_ALLOW,
        ),
    ),
    Setting(
        "offset.metadata.max.bytes", "core.offset_metadata_max_bytes", 4096, "bytes",
        "The longest metadata string of a committed offset.", maximum=INT32_MAX,
        shown="The longest metadata of an offset.",
    ),
    Setting(
        "offsets.retention.minutes", "core.offsets_retention_ms", 7 * 24 * 60, "minutes",
        "How long the offsets of an empty group, or of a topic without subscribers, are kept (KIP-211). In groups of "
        "the new protocol it counts from the commit, as in Kafka.", minimum=1,
        maximum=INT32_MAX, scale=MINUTE_MS, aliases=(("offsets.retention.ms", 1),),
        shown="How long the offsets of an empty group are kept.",
    ),
    Setting(
        "offsets.retention.consumer.groups.from", "core.offsets_retention_consumer_groups_from",
        choices.RETENTION_FROM_COMMIT, "",
        "The start of `offsets.retention.minutes` in empty groups of the new protocol (KIP-848): the commit, as in "
        "Kafka, or the time when the group became empty (`empty`), as in classic groups. Not a setting in Kafka.",
        choices=(choices.RETENTION_FROM_COMMIT, choices.RETENTION_FROM_EMPTY),
    ),
    Setting(
        "offsets.retention.check.interval.ms", "core.offsets_retention_check_interval_ms", 600000, "ms",
        "How often expired offsets are removed.", minimum=1,
        shown="How often expired offsets are looked for.", shown_as=LONG,
    ),
    Setting(
        "offsets.topic.num.partitions", "core.offsets_topic_num_partitions", 1, "partitions",
        "The number of partitions of `__consumer_offsets`, fixed when the data directory is created. Kafka uses "
        "50 by default, which has no advantage in one process.", minimum=1, maximum=10000,
        shown="Partitions of `__consumer_offsets` in a new data directory.",
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
        "The number of partitions of `__transaction_state`, fixed when the first transactional producer comes.",
        minimum=1, maximum=10000,
        shown="Partitions of a new `__transaction_state`.",
    ),
    Setting(
        "transactional.id.expiration.ms", "core.transactional_id_expiration_ms", 7 * DAY_MS, "ms",
        "How long an unused transactional id is remembered.", minimum=1, maximum=INT32_MAX,
        shown="How long an unused transactional id is remembered.",
    ),
    Setting(
        "transaction.max.timeout.ms", "core.transaction_max_timeout_ms", 900000, "ms",
        "The longest timeout that a transactional producer may request.", minimum=1, maximum=INT32_MAX,
        shown="The longest transaction timeout.",
    ),
    Setting(
        "transactional.ids.max", "core.transactional_ids_max", 500_000, "ids",
        "The maximum number of transactional ids; each takes about 1.2 KB of memory until it expires "
        "(`transactional.id.expiration.ms`). InitProducerId for a further one gets "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the one error about the id itself that every client reports, and the "
        "server's log names this setting. Kafka has no limit.",
        minimum=1,
    ),
    Setting(
        "transaction.partitions.max", "core.transaction_partitions_max", 10_000, "partitions",
        "The maximum number of partitions that a producer writes to in one transaction: each further one stores all of "
        "them again. The error makes clients abort the transaction: TRANSACTION_ABORTABLE for Produce v12, "
        "TOPIC_AUTHORIZATION_FAILED for the AddPartitionsToTxn of older clients, which do not know the first one. The "
        "server's log names this setting. Kafka has no limit.",
        minimum=1,
    ),
    Setting(
        "producer.id.expiration.ms", "core.producer_id_expiration_ms", 86400000, "ms",
        "How long the sequence numbers of an idle producer are remembered.", minimum=1,
        shown="How long the sequence numbers of an idle producer are remembered.",
    ),
    Setting(
        "producers.max", "core.producers_max", 200_000, "producers",
        "The maximum number of idempotent producers whose sequence numbers are remembered, summed over all partitions; "
        "each takes about 400 bytes. Above it a partition with at least 16 drops its oldest for a new one. Batches of "
        "the dropped producer are still accepted, but a duplicate may be stored. Kafka has no limit.",
        minimum=1000,
    ),
    Setting(
        "producers.per.partition.max", "core.producers_per_partition_max", 20_000, "producers",
        "The same for one partition. The snapshot that is written when a segment is closed contains all of them. Kafka "
        "has no limit.", minimum=16,
    ),
    Setting(
        "producer.id.block.size", "core.producer_id_block_size", 1000, "ids",
        "The number of producer ids that are reserved on disk at once.", minimum=1, maximum=1000000,
    ),
)  # fmt: skip

LOGGING_SETTINGS: Final = (
    Setting(
        "logging.format", "server.logging_format", "auto", "",
        "The format of log lines on standard error: `console` for a terminal, `json`, or `auto`, which chooses "
        "`console` if standard error is a terminal.",
        choices=("auto", "console", "json"),
    ),
    Setting(
        "logging.level", "server.logging_level", "info", "",
        "The lowest level that is logged. `debug` adds a line for every connection and every request.",
        choices=("debug", "info", "warning", "error"),
    ),
)  # fmt: skip

CONTROL_SETTINGS: Final = (
    Setting(
        "control.listen", "server.control_listen", "", "",
        "The address, `HOST:PORT`, of an HTTP listener for tests, which provokes failures and shows what clients sent "
        "(docs/testing.md). Whoever has its token can do anything. Empty: none.",
    ),
    Setting(
        "control.token", "server.control_token", "", "",
        "The token that each request to `control.listen` must have. Empty: a random one, printed at the start.",
    ),
    Setting(
        "control.clock", "server.control_clock", "real", "",
        "With `virtual`, the HTTP listener can move the server's time.", choices=("real", "virtual"),
    ),
    Setting(
        "control.brokers", "server.control_brokers", 1, "brokers",
        "The number of brokers that a server with `control.listen` plays, each on a listener of its own. A single "
        "listener with port 0 is enough for all of them.", minimum=1, maximum=100,
    ),
)  # fmt: skip

SECTIONS: Final = (
    ("Network", NETWORK_SETTINGS),
    ("Log", LOG_SETTINGS),
    ("Node and topics", TOPIC_SETTINGS),
    ("Groups and offsets", GROUP_SETTINGS),
    ("Producers and transactions", PRODUCER_SETTINGS),
    ("Messages of the server", LOGGING_SETTINGS),
    ("Tests", CONTROL_SETTINGS),
)
SETTINGS: Final[tuple[Setting, ...]] = tuple(setting for _, section in SECTIONS for setting in section)
BY_NAME: Final[dict[str, Setting]] = {setting.name: setting for setting in SETTINGS}

# `--profile NAME`: predefined settings. Every other source overrides them.
PROFILES: Final[dict[str, dict[str, str]]] = {
    # For fixtures: no files, a free port, and sessions short enough to expire in a test.
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

# Kafka properties without an effect in kcoord. They are accepted with a warning, so that a broker's file can be used.
# `group.consumer.assignor.offload.enable` is one of them: the server itself decides where assignors run.
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
        "transaction.partition.verification.enable",
        "transaction.state.log.load.buffer.size", "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor", "transaction.state.log.segment.bytes",
        "transaction.two.phase.commit.enable", "unclean.leader.election.enable",
    }
)  # fmt: skip
PREFIXES_WITHOUT_EFFECT: Final = (
    "controller.", "group.coordinator.", "group.share.", "group.streams.", "fetch.purgatory.",
    "log.cleaner.", "log.flush.", "log.message.", "log.index.", "log.cleanup.", "log.initial.", "log.local.",
    "log.segment.delete.", "log.roll.jitter.", "metrics.", "metadata.",
    "producer.purgatory.", "delete.records.purgatory.", "producer.id.expiration.check.", "quota.", "remote.log.",
    "replica.", "replication.", "controlled.shutdown.", "telemetry.", "share.coordinator.",
    "errors.deadletterqueue.", "transaction.abort.timed.", "transaction.remove.expired.", "zookeeper.",
    "kafka.metrics.", "auto.include.jmx.", "num.replica.", "leader.imbalance.", "reserved.broker.",
)  # fmt: skip
# Properties that protect a broker. A server that accepted but ignored them would be open.
REFUSED_PREFIXES: Final = (
    "authorizer.", "super.users", "allow.everyone.if.no.acl.found", "sasl.", "ssl.", "listener.name.",
    "principal.builder.", "delegation.token.", "password.encoder.", "connections.max.reauth.",
)  # fmt: skip
