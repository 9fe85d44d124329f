"""Reads settings from a file, the environment and flags, and checks them against the table.

Later sources override earlier ones: defaults, profile, file, `KCOORD_*` variables, `--set`, the named flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, final

from kcoord.core.choices import PROTOCOL_CLASSIC, REBALANCE_PROTOCOLS
from kcoord.core.config import CoreConfig
from kcoord.server.settings import table as settings
from kcoord.server.settings.config import ServerConfig
from kcoord.server.settings.listeners import (
    PLAINTEXT,
    Listener,
    format_address,
    parse_advertised,
    parse_listeners,
)
from kcoord.server.settings.table import BY_NAME, SETTINGS, Setting

ENVIRONMENT_PREFIX: Final = "KCOORD_"
# Variables with the prefix KCOORD_ that are not settings: those of flags and of the project's tools.
FLAG_VARIABLES: Final = {
    "KCOORD_LISTEN": "listeners",
    "KCOORD_ADVERTISE": "advertised.listeners",
    "KCOORD_DATA": "log.dirs",
}
FOREIGN_VARIABLES: Final = frozenset(
    {"KCOORD_CONFIG", "KCOORD_PROFILE", "KCOORD_INTERPRETED", "KCOORD_COMPILE"} | {"KCOORD_EXPECT_COMPILED"}
)
# Kubernetes sets these variables for services whose names begin with "kcoord", such as "kcoord-ui".
SERVICE_LINKS: Final = r"KCOORD_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)"
SERVICE_ADDRESS: Final = r"(tcp|udp|sctp)://.*"


class ConfigError(Exception):
    """A setting is unknown, malformed or out of range. The message names the setting and its source."""


@final
class Config:
    """The complete configuration. `explicit` maps the names of settings that were given to their source."""

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
    owner, attribute = setting.attribute.split(".")
    return (config.core if owner == "core" else config.server), attribute


# ---- values


def _parse(setting: Setting, text: str, factor: int, source: str, name: str) -> int | bool | str:
    """The value for the setting's attribute. `factor` converts the unit of the given name to its unit."""
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
    setattr(target, attribute, None if setting.is_optional and not value else value)
    text = str(value // setting.scale if setting.scale != 1 and isinstance(value, int) else value)
    config.explicit[setting.name] = (text.lower() if isinstance(value, bool) else text, source)


# ---- names


def _lookup_table() -> dict[str, tuple[Setting, int]]:
    """Every accepted name with its setting and the factor for its values."""
    table: dict[str, tuple[Setting, int]] = {}
    for setting in SETTINGS:
        table[setting.name] = (setting, setting.scale)
        for alias, factor in setting.aliases:
            table[alias] = (setting, factor)
    return table


NAMES: Final = _lookup_table()


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty string if no name is similar."""
    import difflib

    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def apply(config: Config, values: Mapping[str, str], source: str) -> None:
    """Apply all settings of one source. Raises ConfigError."""
    known: list[tuple[int, str, Setting]] = []
    for name in values:
        if name in NAMES:
            setting, factor = NAMES[name]
            known.append((-factor, name, setting))
        elif name.startswith(settings.REFUSED_PREFIXES):
            raise ConfigError(
                f"{name} ({source}): TLS, authentication and authorisation are not supported yet, and a server that "
                "ignored this setting would be open"
            )
        elif name in settings.WITHOUT_EFFECT or name.startswith(settings.PREFIXES_WITHOUT_EFFECT):
            config.warnings.append(f"{name} ({source}) has no effect in kcoord")
        else:
            raise ConfigError(f"unknown setting {name} ({source}){nearest(name, NAMES)}")
    # The coarsest unit first, so that a finer one in the same source wins, as in Kafka.
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
    """Convert nested TOML tables to dotted names. The key `value` is for the table's own name (`[log.retention]`)."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            _flatten(value, name + ".", path, found)
        else:
            found[name] = _text(value, name, path)


def _read_properties(text: str) -> dict[str, str]:
    """Parse a subset of Java's properties format: NAME=VALUE lines, comments, trailing backslashes."""
    found: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip()
    return found


def read_file(path: str) -> dict[str, str]:
    """Names and values of a TOML file, or of a Java properties file by its suffix. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: not UTF-8") from None
    if path.endswith(".properties"):
        return _read_properties(text)
    import tomllib  # imported only if there is a file: it takes 10 ms to load

    found: dict[str, str] = {}
    try:
        _flatten(tomllib.loads(text), "", path, found)
    except tomllib.TOMLDecodeError as malformed:
        raise ConfigError(f"{path} is not valid TOML: {malformed}") from None
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting: KCOORD_LOG_SYNC for log.sync."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Names and values of the KCOORD_* variables. Raises ConfigError for an unknown one."""
    variables = {variable_of(name): name for name in NAMES} | FLAG_VARIABLES
    found: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in FOREIGN_VARIABLES:
            continue
        if variable in variables:
            found[variables[variable]] = environ[variable]
        elif not _is_service_link(variable, environ[variable]):
            raise ConfigError(f"unknown setting {variable} (environment){nearest(variable, variables)}")
    return found


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes has set the variable, and so nobody meant a setting."""
    has_address = variable.endswith("_PORT") and re.fullmatch(SERVICE_ADDRESS, value) is not None
    return has_address or re.fullmatch(SERVICE_LINKS, variable) is not None


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
    data: str | None = None,
    profile: str = "",
) -> Config:
    """The configuration from all sources. Raises ConfigError."""
    environ = {} if environ is None else environ
    config = Config()
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
    if data is not None and not data.strip():
        raise ConfigError("--data: the name of the directory is empty")
    flags = {"listeners": ",".join(listen), "advertised.listeners": ",".join(advertise), "log.dirs": data or ""}
    for flag, (name, value) in zip(("--listen", "--advertise", "--data"), flags.items(), strict=True):
        if value:
            apply(config, {name: value}, flag)
    _finish(config)
    return config


def _check_consumer_groups(core: CoreConfig) -> None:
    """Defaults must be within their bounds, and the heartbeat interval must be below the session timeout."""
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
        raise ConfigError(f"group.consumer.assignors = {core.group_consumer_assignors!r}: a name is empty")
    if len(set(names)) < len(names):
        raise ConfigError(f"group.consumer.assignors = {core.group_consumer_assignors}: a name is listed twice")
    core.group_consumer_assignors = ",".join(names)
    _check_rebalance_protocols(core)


def _check_rebalance_protocols(core: CoreConfig) -> None:
    """As in a broker, other names are errors, and the classic protocol cannot be disabled."""
    name = "group.coordinator.rebalance.protocols"
    protocols = [protocol.strip() for protocol in core.group_coordinator_rebalance_protocols.split(",")]
    for protocol in protocols:
        if protocol not in REBALANCE_PROTOCOLS:
            raise ConfigError(f"{name}: {protocol!r} must be one of {', '.join(REBALANCE_PROTOCOLS)}")
    if PROTOCOL_CLASSIC not in protocols:
        raise ConfigError(f"{name} = {','.join(protocols)}: {PROTOCOL_CLASSIC} is required")
    core.group_coordinator_rebalance_protocols = ",".join(dict.fromkeys(protocols))


def _show_listeners(config: Config) -> None:
    """Let DescribeConfigs show addresses in a broker's form; empty if the address depends on the connection."""
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
    """Check and derive values that depend on several settings."""
    core, server = config.core, config.server
    if core.group_min_session_timeout_ms > core.group_max_session_timeout_ms:
        raise ConfigError("group.min.session.timeout.ms is larger than group.max.session.timeout.ms")
    _check_consumer_groups(core)
    if core.log_retention_ms == 0:
        raise ConfigError("log.retention.ms must be -1 (unlimited), or 1 or more")
    if "," in server.data_dir:
        raise ConfigError(f"log.dirs = {server.data_dir}: only one data directory is supported")
    if not server.data_dir:
        raise ConfigError("log.dirs is empty")
    for setting in SETTINGS:
        if setting.shown and setting.attribute.startswith("server."):
            core.server_values[setting.name] = str(config.value(setting))
    if server.idle_ms < 0:
        server.idle_ms = settings.INT64_MAX
    # A request is a batch plus the fields around it.
    server.frame_produce_bytes_max = max(server.frame_produce_bytes_max, core.message_max_bytes + 64 * 1024)
    try:
        config.listeners = parse_listeners(server.listeners, server.controller_listener_names)
        parse_advertised(server.advertised_listeners, config.listeners)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _show_listeners(config)
    core.static_values = {name: text for name, (text, _) in config.explicit.items() if name in BY_NAME}
