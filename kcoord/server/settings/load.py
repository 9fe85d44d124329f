"""Reads settings from a file, the environment and flags, and checks them against the table.

Later sources win: defaults, profile, file, `KCOORD_*` variables, `--set`, the flags that have a name of their own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final, final

from kcoord.core.admin.broker_configs import SERVER_CONFIGS
from kcoord.core.config import PROTOCOL_CLASSIC, REBALANCE_PROTOCOLS, CoreConfig
from kcoord.server.listen.listener import (
    PLAINTEXT,
    Listener,
    format_address,
    parse_advertised,
    parse_listeners,
)
from kcoord.server.settings import table as settings
from kcoord.server.settings.table import BY_NAME, SETTINGS, Setting

ENVIRONMENT_PREFIX: Final = "KCOORD_"
# Variables that start like ours and are no settings: those that flags have, those of the project's own tools.
FLAG_VARIABLES: Final = {
    "KCOORD_LISTEN": "listeners",
    "KCOORD_ADVERTISE": "advertised.listeners",
    "KCOORD_DATA": "log.dirs",
}
FOREIGN_VARIABLES: Final = frozenset(
    {"KCOORD_CONFIG", "KCOORD_PROFILE", "KCOORD_INTERPRETED", "KCOORD_COMPILE", "KCOORD_OPT_LEVEL"}
    | {"KCOORD_EXPECT_COMPILED"}
)
# Kubernetes sets these for a service that is called "kcoord".
SERVICE_LINKS: Final = re.compile(r"KCOORD_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP)(_\w+)?)")


class ConfigError(Exception):
    """A setting that is unknown, malformed or out of range. The message names it and where it came from."""


@final
class ServerConfig:
    """The settings of the server itself; see the table for what they mean."""

    def __init__(self) -> None:
        self.listeners = ""
        self.advertised_listeners = ""
        self.controller_listener_names = ""
        self.max_connections = 0
        self.max_connections_per_ip = 0
        self.loopback_exempt = True
        self.connection_rate = 0
        self.listen_backlog = 0
        self.idle_ms = 0
        self.frame_deadline_ms = 0
        self.frame_bytes_max = 0
        self.frame_control_bytes_max = 0
        self.frame_group_bytes_max = 0
        self.frame_produce_bytes_max = 0
        self.queued_bytes_max = 0
        self.output_high_bytes = 0
        self.output_bytes_max = 0
        self.output_deadline_ms = 0
        self.turn_log_ms = 0
        self.shutdown_deadline_ms = 0
        self.data_dir = ""
        self.log_sync = ""
        self.reserve_bytes = 0
        self.retention_check_ms = 0
        self.cleaner_enable = True
        self.cleaner_backoff_ms = 0
        self.cleaner_buffer_bytes = 0
        self.background_silence_ms = 0
        self.history_ms = 0
        self.history_bytes = 0
        self.metadata_snapshot_bytes = 0
        self.metadata_snapshot_interval_ms = 0
        self.metadata_retention_bytes = 0
        self.metadata_retention_ms = 0
        self.logging_format = ""
        self.logging_level = ""


@final
class Config:
    """Everything that was configured. `explicit` has, by name, what was not left at its default, and where from."""

    def __init__(self) -> None:
        self.core = CoreConfig()
        self.server = ServerConfig()
        self.listeners: list[Listener] = []
        self.explicit: dict[str, tuple[str, str]] = {}
        self.warnings: list[str] = []

    def value(self, setting: Setting) -> int | bool | str:
        """The value of a setting in its own unit."""
        value = getattr(*_target(self, setting))
        if value is None:
            return ""
        return value // setting.scale if setting.scale != 1 else value  # type: ignore[no-any-return]


def _target(config: Config, setting: Setting) -> tuple[CoreConfig | ServerConfig, str]:
    room, attribute = setting.attribute.split(".")
    return (config.core if room == "core" else config.server), attribute


# ---- values


def _parse(setting: Setting, text: str, factor: int, source: str, name: str) -> int | bool | str:
    """The value for the setting's attribute. `factor` leads from the unit of the name that was used to that of it."""
    text = text.strip()
    if setting.kind == settings.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} = {text!r} ({source}): must be true or false")
        return text.lower() == "true"
    if setting.kind == settings.CHOICE:
        if text.lower() not in setting.choices:
            raise ConfigError(f"{name} = {text!r} ({source}): must be one of {', '.join(setting.choices)}")
        return text.lower()
    if setting.kind == settings.STRING:
        return text
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"{name} = {text!r} ({source}): must be a whole number") from None
    if number >= 0 or setting.minimum >= 0:  # -1 means "no limit" in every unit
        number *= factor
    lowest, highest = setting.minimum, setting.maximum
    if setting.scale != 1:
        lowest, highest = lowest * (setting.scale if factor == setting.scale else 1), highest * setting.scale
    if not lowest <= number <= highest:
        unit = f" {setting.unit}" if setting.unit else ""
        raise ConfigError(
            f"{name} = {text} ({source}): must be from {lowest // factor} to {highest // factor}"
            f"{unit if name == setting.name else ''}"
        )
    return number


def _assign(config: Config, setting: Setting, value: int | bool | str, source: str) -> None:
    target, attribute = _target(config, setting)
    setattr(target, attribute, value)
    text = str(value // setting.scale if setting.scale != 1 and isinstance(value, int) else value)
    config.explicit[setting.name] = (text.lower() if isinstance(value, bool) else text, source)


# ---- names


def _lookup_table() -> dict[str, tuple[Setting, int]]:
    """Every accepted name: the setting, and what a value under that name is multiplied by."""
    table: dict[str, tuple[Setting, int]] = {}
    for setting in SETTINGS:
        table[setting.name] = (setting, setting.scale)
        for alias, factor in setting.aliases:
            table[alias] = (setting, factor)
    return table


NAMES: Final = _lookup_table()


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no name is near."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def apply(config: Config, values: Mapping[str, str], source: str) -> None:
    """Set everything that one source gives. Raises ConfigError."""
    known: list[tuple[int, str, Setting]] = []
    for name in values:
        if name in NAMES:
            setting, factor = NAMES[name]
            known.append((-factor, name, setting))
        elif name.startswith(settings.REFUSED_PREFIXES):
            raise ConfigError(
                f"{name} ({source}): there is no TLS, authentication or authorisation yet, and a server that "
                "ignored this would be open"
            )
        elif name in settings.WITHOUT_EFFECT or name.startswith(settings.PREFIXES_WITHOUT_EFFECT):
            config.warnings.append(f"{name} ({source}) has no effect in kcoord")
        else:
            raise ConfigError(f"unknown setting {name} ({source}){nearest(name, NAMES)}")
    # The coarsest unit first, so that a finer one given beside it wins, as in Kafka.
    for negative_factor, name, setting in sorted(known, key=lambda item: item[:2]):
        value = _parse(setting, values[name], -negative_factor, source, name)
        _assign(config, setting, value, source)


# ---- sources


def _text(value: object, name: str, path: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(item, name, path) for item in value)
    raise ConfigError(f"{name} ({path}): must be a string, a whole number, true or false")


def _flatten(table: Mapping[str, object], prefix: str, path: str, found: dict[str, str]) -> None:
    """Nested TOML tables spell dotted names. A table's own value has the key `value` (`[log.retention]`)."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            _flatten(value, name + ".", path, found)
        else:
            found[name] = _text(value, name, path)


def _read_properties(text: str) -> dict[str, str]:
    """The plain part of Java's properties format: NAME=VALUE lines, comments, trailing backslashes."""
    found: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip()
    return found


def read_file(path: str) -> dict[str, str]:
    """Names and values of a TOML file, or of a Java properties file if it is called so. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: not UTF-8") from None
    if path.endswith(".properties"):
        return _read_properties(text)
    import tomllib  # only where a file is given: it takes 10 ms to load

    found: dict[str, str] = {}
    try:
        _flatten(tomllib.loads(text), "", path, found)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting: KCOORD_LOG_SYNC for log.sync."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Names and values of our variables. Raises ConfigError for one that is no setting."""
    variables = {variable_of(name): name for name in NAMES} | FLAG_VARIABLES
    found: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in FOREIGN_VARIABLES:
            continue
        if variable in variables:
            found[variables[variable]] = environ[variable]
        elif not SERVICE_LINKS.fullmatch(variable):
            raise ConfigError(f"unknown setting {variable} (environment){nearest(variable, variables)}")
    return found


def _read_assignments(assignments: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {assignment}: must be NAME=VALUE")
        found[name.strip()] = value
    return found


def load(
    *,
    config_file: str = "",
    environ: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    listen: Iterable[str] = (),
    advertise: Iterable[str] = (),
    data: str = "",
    profile: str = "",
) -> Config:
    """The configuration from all sources. Raises ConfigError."""
    environ = {} if environ is None else environ
    config = Config()
    for setting in SETTINGS:
        target, attribute = _target(config, setting)
        if setting.attribute.startswith("server."):
            setattr(target, attribute, setting.default)
    profile = profile or environ.get("KCOORD_PROFILE", "")
    if profile:
        if profile not in settings.PROFILES:
            raise ConfigError(f"unknown profile {profile}{nearest(profile, settings.PROFILES)}")
        apply(config, settings.PROFILES[profile], f"profile {profile}")
    config_file = config_file or environ.get("KCOORD_CONFIG", "")
    if config_file:
        apply(config, read_file(config_file), config_file)
    apply(config, read_environment(environ), "environment")
    apply(config, _read_assignments(assignments), "--set")
    flags = {"listeners": ",".join(listen), "advertised.listeners": ",".join(advertise), "log.dirs": data}
    for flag, (name, value) in zip(("--listen", "--advertise", "--data"), flags.items(), strict=True):
        if value:
            apply(config, {name: value}, flag)
    _finish(config)
    return config


def _check_consumer_groups(core: CoreConfig) -> None:
    """Bounds hold for the defaults too, and a member must be able to heartbeat within its session."""
    for what, low, value, high in (
        (
            "session.timeout.ms",
            core.group_consumer_min_session_timeout_ms,
            core.group_consumer_session_timeout_ms,
            core.group_consumer_max_session_timeout_ms,
        ),
        (
            "heartbeat.interval.ms",
            core.group_consumer_min_heartbeat_interval_ms,
            core.group_consumer_heartbeat_interval_ms,
            core.group_consumer_max_heartbeat_interval_ms,
        ),
        (
            "assignment.interval.ms",
            core.group_consumer_min_assignment_interval_ms,
            core.group_consumer_assignment_interval_ms,
            core.group_consumer_max_assignment_interval_ms,
        ),
    ):
        if low > high:
            raise ConfigError(f"group.consumer.min.{what} is larger than group.consumer.max.{what}")
        if value < low:
            raise ConfigError(f"group.consumer.{what} is less than group.consumer.min.{what} ({low})")
        if value > high:
            raise ConfigError(f"group.consumer.{what} is larger than group.consumer.max.{what} ({high})")
    if core.group_consumer_heartbeat_interval_ms >= core.group_consumer_session_timeout_ms:
        raise ConfigError("group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms")
    names = [name.strip() for name in core.group_consumer_assignors.split(",")]
    if "" in names:
        raise ConfigError(f"group.consumer.assignors = {core.group_consumer_assignors!r}: an empty name")
    if len(set(names)) < len(names):
        raise ConfigError(f"group.consumer.assignors = {core.group_consumer_assignors}: a name twice")
    core.group_consumer_assignors = ",".join(names)
    _check_rebalance_protocols(core)


def _check_rebalance_protocols(core: CoreConfig) -> None:
    """As a broker does: it takes no other names, and the classic protocol cannot be switched off."""
    name = "group.coordinator.rebalance.protocols"
    protocols = [protocol.strip() for protocol in core.group_coordinator_rebalance_protocols.split(",")]
    for protocol in protocols:
        if protocol not in REBALANCE_PROTOCOLS:
            raise ConfigError(f"{name}: {protocol!r} must be one of {', '.join(REBALANCE_PROTOCOLS)}")
    if PROTOCOL_CLASSIC not in protocols:
        raise ConfigError(f"{name} = {','.join(protocols)}: {PROTOCOL_CLASSIC} cannot be left out")
    core.group_coordinator_rebalance_protocols = ",".join(dict.fromkeys(protocols))


def _show_listeners(config: Config) -> None:
    """Have DescribeConfigs show addresses as a broker writes them; empty where each client is told its own."""
    shown: list[str] = []
    advertised: list[str] = []
    for listener in config.listeners:
        name = listener.name or PLAINTEXT
        shown.append(f"{name}://{format_address(listener.host, listener.port)}")
        if listener.advertised_host:
            port = listener.advertised_port or listener.port
            advertised.append(f"{name}://{format_address(listener.advertised_host, port)}")
    config.core.server_values["listeners"] = ",".join(shown)
    config.core.server_values["advertised.listeners"] = ",".join(advertised)


def _finish(config: Config) -> None:
    """What depends on several settings."""
    core, server = config.core, config.server
    core.rack = core.rack or None
    if core.group_min_session_timeout_ms > core.group_max_session_timeout_ms:
        raise ConfigError("group.min.session.timeout.ms is larger than group.max.session.timeout.ms")
    _check_consumer_groups(core)
    if "," in server.data_dir:
        raise ConfigError(f"log.dirs = {server.data_dir}: one data directory only")
    if not server.data_dir:
        raise ConfigError("log.dirs is empty")
    for name, _, _ in SERVER_CONFIGS:
        core.server_values[name] = str(getattr(server, BY_NAME[name].attribute.removeprefix("server.")))
    if server.idle_ms < 0:
        server.idle_ms = settings.INT64_MAX
    # A request is a batch and what stands around it.
    server.frame_produce_bytes_max = max(server.frame_produce_bytes_max, core.message_max_bytes + 64 * 1024)
    try:
        config.listeners = parse_listeners(server.listeners, server.controller_listener_names)
        parse_advertised(server.advertised_listeners, config.listeners)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _show_listeners(config)
    core.static_values = {name: text for name, (text, _) in config.explicit.items() if name in BY_NAME}
