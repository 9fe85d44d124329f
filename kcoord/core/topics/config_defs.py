"""The configurations of topics, groups and the broker: names, types, valid values and descriptions.

Names, types, defaults and ranges are those of Kafka 4.3, as its tools and clients expect; the descriptions are kcoord's
own. Values are kept as the text that the client sent, and are checked before they are stored. A topic without a value
uses the broker's, under one of the names in `broker_names`.
"""

from __future__ import annotations

from typing import Final, final

# Types, with their numbers in DescribeConfigs.
BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7

# Sources of a value, with their numbers in DescribeConfigs.
SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_DEFAULT: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SOURCE_GROUP: Final = 8

TYPE_NAMES: Final[dict[int, str]] = {
    BOOLEAN: "BOOLEAN",
    STRING: "STRING",
    INT: "INT",
    LONG: "LONG",
    DOUBLE: "DOUBLE",
    LIST: "LIST",
}

INT32_MIN: Final = -2147483648
INT32_MAX: Final = 2147483647
INT64_MIN: Final = -9223372036854775808
INT64_MAX: Final = 9223372036854775807

# Values are short. A megabyte of text in a configuration would stay in the metadata log for ever.
VALUE_CHARS_MAX: Final = 32767

NOT_A_NUMBER: Final = "Not a number of type "


@final
class ConfigDef:
    """One configuration. `minimum` and `maximum` limit numbers, `choices` lists valid texts and items of lists."""

    def __init__(
        self,
        name: str,
        kind: int,
        default: str,
        doc: str,
        minimum: int = INT64_MIN,
        maximum: int = INT64_MAX,
        choices: tuple[str, ...] = (),
        broker_names: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.doc = doc
        self.minimum = minimum
        self.maximum = maximum
        self.choices = choices
        self.broker_names = broker_names

    def check(self, value: str) -> str:
        """Check `value`: an error message, or "" if it is valid."""
        if len(value) > VALUE_CHARS_MAX:
            return f"Invalid value for configuration {self.name}: more than {VALUE_CHARS_MAX} characters"
        text = value.strip()
        kind = self.kind
        if kind == INT or kind == LONG:
            return self._check_integer(text)
        if kind == DOUBLE:
            return self._check_double(text)
        if kind == BOOLEAN:
            if text.lower() not in ("true", "false"):
                return self._invalid(value, "Expected value to be either true or false")
            return ""
        if kind == LIST:
            return self._check_list(text)
        if self.choices and value not in self.choices:
            return self._invalid(value, "String must be one of: " + ", ".join(self.choices))
        return ""

    def shown(self, value: str) -> str:
        """A stored value as DescribeConfigs shows it."""
        text = value.strip()
        kind = self.kind
        if kind == INT or kind == LONG:
            number = parse_integer(text)
            return value if number is None else str(number)
        if kind == DOUBLE:
            real = parse_double(text)
            return value if real is None else str(real)
        if kind == BOOLEAN:
            return text.lower()
        if kind == LIST:
            items = split_list(text)
            # A broker removes repeated items where it checks them against a list of choices.
            return ",".join(list(dict.fromkeys(items)) if self.choices else items)
        return value

    def _invalid(self, value: str, why: str) -> str:
        return f"Invalid value {value} for configuration {self.name}: {why}"

    def _check_integer(self, text: str) -> str:
        number = parse_integer(text)
        low = INT32_MIN if self.kind == INT else INT64_MIN
        high = INT32_MAX if self.kind == INT else INT64_MAX
        if number is None or number < low or number > high:
            return self._invalid(text, NOT_A_NUMBER + TYPE_NAMES[self.kind])
        if self.name == GZIP_LEVEL:
            # The one configuration with a valid value outside its range: -1 is the codec's default.
            if number != -1 and (number < 1 or number > 9):
                return self._invalid(text, "Value must be between 1 and 9 or equal to -1")
            return ""
        if number < self.minimum:
            return self._invalid(str(number), f"Value must be at least {self.minimum}")
        if number > self.maximum:
            return self._invalid(str(number), f"Value must be no more than {self.maximum}")
        return ""

    def _check_double(self, text: str) -> str:
        number = parse_double(text)
        if number is None:
            return self._invalid(text, NOT_A_NUMBER + TYPE_NAMES[self.kind])
        if number < self.minimum:
            return self._invalid(str(number), f"Value must be at least {self.minimum}")
        if number > self.maximum:
            return self._invalid(str(number), f"Value must be no more than {self.maximum}")
        return ""

    def _check_list(self, text: str) -> str:
        items = split_list(text)
        if self.name in THROTTLED:
            if items != ["*"]:
                for item in items:
                    # A broker accepts empty items here: `0:1,`.
                    if item and not is_replica_pair(item):
                        return self._invalid(
                            "[" + ", ".join(items) + "]",
                            f"{self.name} must be the literal '*' or a list of replicas in the following format: "
                            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
                        )
            return ""
        for item in items:
            if self.choices and item not in self.choices:
                return self._invalid(item, "String must be one of: " + ", ".join(self.choices))
        return ""


def parse_integer(text: str) -> int | None:
    """A decimal number in Java's format: an optional sign and ASCII digits. None if it is not one."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 40:
        return None
    return int(text)


def parse_double(text: str) -> float | None:
    """A finite decimal number; None if it is not one."""
    if not text or len(text) > 400:
        return None
    for ch in text:
        if ch not in "+-.eE0123456789":
            return None
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number in (float("inf"), float("-inf")) else number


def split_list(text: str) -> list[str]:
    """The items of a comma-separated list without surrounding spaces. "" is an empty list."""
    trimmed = text.strip()
    if not trimmed:
        return []
    return [item.strip() for item in trimmed.split(",")]


def is_replica_pair(item: str) -> bool:
    """Whether `item` is PARTITION:BROKER."""
    parts = item.split(":")
    if len(parts) != 2:
        return False
    for part in parts:
        if not part.isascii() or not part.isdigit():
            return False
    return True


GZIP_LEVEL: Final = "compression.gzip.level"
THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

_HOURS_MS: Final = 3600 * 1000

_TOPIC_DEFS: Final = (
    ConfigDef(
        "cleanup.policy", LIST, "delete",
        "What may be removed from the topic: `delete` drops old segments, `compact` keeps the latest record of each "
        "key. Both may be given; with neither, everything is kept.",
        choices=("compact", "delete"), broker_names=("log.cleanup.policy",),
    ),
    ConfigDef(
        GZIP_LEVEL, INT, "-1", "How hard gzip works when the server compresses; -1 is the codec's own default.",
        broker_names=(GZIP_LEVEL,),
    ),
    ConfigDef(
        "compression.lz4.level", INT, "9", "How hard lz4 works when the server compresses.", 1, 17,
        broker_names=("compression.lz4.level",),
    ),
    ConfigDef(
        "compression.type", STRING, "producer",
        "The codec in which batches are stored; `producer` leaves them as they were sent.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), broker_names=("compression.type",),
    ),
    ConfigDef(
        "compression.zstd.level", INT, "3", "How hard zstd works when the server compresses.", -131072, 22,
        broker_names=("compression.zstd.level",),
    ),
    ConfigDef(
        "delete.retention.ms", LONG, "86400000",
        "How long a compacted topic keeps tombstones, so that slow readers see them.", 0,
        broker_names=("log.cleaner.delete.retention.ms",),
    ),
    ConfigDef(
        "file.delete.delay.ms", LONG, "60000", "How long a removed file stays on the disk.", 0,
        broker_names=("log.segment.delete.delay.ms",),
    ),
    ConfigDef(
        "flush.messages", LONG, str(INT64_MAX), "After how many records the log is synced.", 1,
        broker_names=("log.flush.interval.messages",),
    ),
    ConfigDef(
        "flush.ms", LONG, str(INT64_MAX), "After how much time the log is synced.", 0,
        broker_names=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    ConfigDef(
        "follower.replication.throttled.replicas", LIST, "",
        "Followers whose replication is slowed down, as PARTITION:BROKER, or `*`.",
    ),
    ConfigDef(
        "index.interval.bytes", INT, "4096", "How many bytes of records lie between two entries of an index.", 0,
        broker_names=("log.index.interval.bytes",),
    ),
    ConfigDef(
        "leader.replication.throttled.replicas", LIST, "",
        "Leaders whose replication is slowed down, as PARTITION:BROKER, or `*`.",
    ),
    ConfigDef(
        "local.retention.bytes", LONG, "-2",
        "How many bytes stay on the local disk under tiered storage; -2 means as `retention.bytes`.", -2,
        broker_names=("log.local.retention.bytes",),
    ),
    ConfigDef(
        "local.retention.ms", LONG, "-2",
        "How long records stay on the local disk under tiered storage; -2 means as `retention.ms`.", -2,
        broker_names=("log.local.retention.ms",),
    ),
    ConfigDef(
        "max.compaction.lag.ms", LONG, str(INT64_MAX), "After how long a record must have been compacted.", 1,
        broker_names=("log.cleaner.max.compaction.lag.ms",),
    ),
    ConfigDef(
        "max.message.bytes", INT, "1048588", "The largest record batch that may be written.", 0,
        broker_names=("message.max.bytes",),
    ),
    ConfigDef(
        "message.timestamp.after.max.ms", LONG, "3600000",
        "How far ahead of the server's clock a record's timestamp may lie.", 0,
        broker_names=("log.message.timestamp.after.max.ms",),
    ),
    ConfigDef(
        "message.timestamp.before.max.ms", LONG, str(INT64_MAX),
        "How far before the server's clock a record's timestamp may lie.", 0,
        broker_names=("log.message.timestamp.before.max.ms",),
    ),
    ConfigDef(
        "message.timestamp.type", STRING, "CreateTime",
        "Whether the timestamp of a record is set by its producer or when it is appended.",
        choices=("CreateTime", "LogAppendTime"), broker_names=("log.message.timestamp.type",),
    ),
    ConfigDef(
        "min.cleanable.dirty.ratio", DOUBLE, "0.5", "How much of a log must be uncompacted before it is compacted.",
        0, 1, broker_names=("log.cleaner.min.cleanable.ratio",),
    ),
    ConfigDef(
        "min.compaction.lag.ms", LONG, "0", "How long a record is not compacted.", 0,
        broker_names=("log.cleaner.min.compaction.lag.ms",),
    ),
    ConfigDef(
        "min.insync.replicas", INT, "1", "How many replicas must have a record that was sent with acks=all.", 1,
        broker_names=("min.insync.replicas",),
    ),
    ConfigDef(
        "preallocate", BOOLEAN, "false",
        "Whether zeros are written behind the end of the log, so that its files are synced faster.",
        broker_names=("log.preallocate",),
    ),
    ConfigDef(
        "remote.log.copy.disable", BOOLEAN, "false",
        "Whether tiered storage only reads what is already remote.",
    ),
    ConfigDef(
        "remote.log.delete.on.disable", BOOLEAN, "false",
        "Whether remote data is deleted when tiered storage is switched off.",
    ),
    ConfigDef(
        "remote.storage.enable", BOOLEAN, "false", "Whether the topic uses tiered storage, which is not supported.",
    ),
    ConfigDef(
        "retention.bytes", LONG, "-1",
        "How large a partition may grow before its oldest segments are deleted; -1 means any size.",
        broker_names=("log.retention.bytes",),
    ),
    ConfigDef(
        "retention.ms", LONG, str(7 * 24 * _HOURS_MS),
        "The age at which records are deleted with their segments; -1 keeps them.", -1,
        broker_names=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    ConfigDef(
        "segment.bytes", INT, "1073741824", "The size at which a segment is closed and the next one started.",
        1048576, broker_names=("log.segment.bytes",),
    ),
    ConfigDef(
        "segment.index.bytes", INT, "10485760", "The largest size of a segment's index.", 4,
        broker_names=("log.index.size.max.bytes",),
    ),
    ConfigDef(
        "segment.jitter.ms", LONG, "0", "How much earlier a segment may be closed, at random.", 0,
        broker_names=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    ConfigDef(
        "segment.ms", LONG, str(7 * 24 * _HOURS_MS), "The age at which a segment is closed and the next one started.",
        1, broker_names=("log.roll.ms", "log.roll.hours"),
    ),
    ConfigDef(
        "unclean.leader.election.enable", BOOLEAN, "false",
        "Whether a replica that lacks records may become leader.",
        broker_names=("unclean.leader.election.enable",),
    ),
)  # fmt: skip

CONSUMER_ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
CONSUMER_HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
CONSUMER_SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"

# Consumer groups (KIP-848). The broker's settings restrict them further: core/topics/group_configs.py.
_GROUP_DEFS: Final = (
    ConfigDef(
        CONSUMER_ASSIGNMENT_INTERVAL, INT, "1000", "The least time between two assignments of a group.",
        0, broker_names=("group.consumer.assignment.interval.ms",),
    ),
    ConfigDef(
        CONSUMER_HEARTBEAT_INTERVAL, INT, "5000", "The interval at which members of the group send heartbeats.",
        1, broker_names=("group.consumer.heartbeat.interval.ms",),
    ),
    ConfigDef(
        CONSUMER_SESSION_TIMEOUT, INT, "45000", "How long a member without heartbeats stays in the group.",
        1, broker_names=("group.consumer.session.timeout.ms",),
    ),
)  # fmt: skip


def _by_name(defs: tuple[ConfigDef, ...]) -> dict[str, ConfigDef]:
    found: dict[str, ConfigDef] = {}
    for definition in defs:
        found[definition.name] = definition
    return found


def _by_broker_name(defs: tuple[ConfigDef, ...]) -> dict[str, ConfigDef]:
    """Topic defaults that can be changed on the running broker, by the first of the broker's names."""
    found: dict[str, ConfigDef] = {}
    for definition in defs:
        if definition.broker_names:
            found[definition.broker_names[0]] = definition
    return found


# Sorted by name.
TOPIC_CONFIGS: Final = _by_name(_TOPIC_DEFS)
GROUP_CONFIGS: Final = _by_name(_GROUP_DEFS)
TOPIC_DEFAULTS: Final = _by_broker_name(_TOPIC_DEFS)

# The one default of groups that can be set on the running broker, as in Kafka.
BROKER_ASSIGNMENT_INTERVAL: Final = "group.consumer.assignment.interval.ms"
BROKER_RETENTION: Final = "log.retention.ms"


def dynamic_definition(broker_name: str) -> ConfigDef | None:
    """The configuration that can be set on the running broker under this name; None if there is none."""
    if broker_name == BROKER_ASSIGNMENT_INTERVAL:
        return GROUP_CONFIGS[CONSUMER_ASSIGNMENT_INTERVAL]
    return TOPIC_DEFAULTS.get(broker_name)


# Accepted and ignored for topics, as in Kafka, where only tests use it.
INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"


def check_topic_configs(configs: dict[str, str]) -> str:
    """Check the configuration of a topic as a whole: an error message, or "" if it is valid."""
    for name in configs:
        if name not in TOPIC_CONFIGS and name != INTERNAL_SEGMENT_BYTES:
            return f"Unknown topic config name: {name}"
    for name in sorted(configs):
        definition = TOPIC_CONFIGS.get(name)
        if definition is not None:
            problem = definition.check(configs[name])
            if problem:
                return problem
    low = parse_integer(configs.get("min.compaction.lag.ms", "0").strip())
    high = parse_integer(configs.get("max.compaction.lag.ms", str(INT64_MAX)).strip())
    if low is not None and high is not None and low > high:
        return f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
    if configs.get("remote.storage.enable", "false").strip().lower() == "true":
        return (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return ""
