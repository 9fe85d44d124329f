"""Configurations of single groups (KIP-848, resource type GROUP): valid values, and those in use.

A group without a value uses the broker's, and the broker limits what a group may set. Limits can change between two
starts while a group's values stay in the log: the values in use are moved into the limits, and those that are shown
stay as they were set, as in Kafka. Text is parsed when a record is replayed, so that a look-up does not depend on the
number of groups.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.topics.config_defs import (
    CONSUMER_ASSIGNMENT_INTERVAL,
    CONSUMER_HEARTBEAT_INTERVAL,
    CONSUMER_SESSION_TIMEOUT,
    GROUP_CONFIGS,
    INT32_MAX,
    parse_integer,
)

NOT_SET: Final = -1


def _number(text: str | None) -> int:
    """A stored value as a number; NOT_SET for none, and for one from another server's log that is not valid here."""
    number = None if text is None else parse_integer(text.strip())
    return NOT_SET if number is None or number < 0 or number > INT32_MAX else number


def _within(number: int, low: int, high: int) -> int:
    return low if number < low else high if number > high else number


@final
class OwnValues:
    """The values that a group sets itself, as numbers; NOT_SET for all others."""

    def __init__(self, configs: dict[str, str]) -> None:
        self.session_timeout_ms = _number(configs.get(CONSUMER_SESSION_TIMEOUT))
        self.heartbeat_interval_ms = _number(configs.get(CONSUMER_HEARTBEAT_INTERVAL))
        self.assignment_interval_ms = _number(configs.get(CONSUMER_ASSIGNMENT_INTERVAL))


@final
class GroupConfig:
    """The values in use in a group: its own, or else the broker's."""

    def __init__(self, session_timeout_ms: int, heartbeat_interval_ms: int, assignment_interval_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        # The shortest time between two assignments; 0 for none.
        self.assignment_interval_ms = assignment_interval_ms


@final
class GroupConfigs:
    """Hard state of the registry, which passes every change on."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.by_group: dict[str, OwnValues] = {}
        # The value that was set on the running broker.
        self.dynamic_interval_ms = NOT_SET

    def replay_group(self, group_id: str, configs: dict[str, str]) -> None:
        """Set the group's configurations; empty if it has none any more."""
        if configs:
            self.by_group[group_id] = OwnValues(configs)
        else:
            self.by_group.pop(group_id, None)

    def replay_broker(self, value: str | None) -> None:
        """Set the assignment interval of the running broker; None if it is not set."""
        self.dynamic_interval_ms = _number(value)

    def in_force(self, group_id: str) -> GroupConfig:
        return GroupConfig(
            self.session_timeout_ms(group_id),
            self.heartbeat_interval_ms(group_id),
            self.assignment_interval_ms(group_id),
        )

    def session_timeout_ms(self, group_id: str) -> int:
        own = self.by_group.get(group_id)
        config = self.config
        if own is None or own.session_timeout_ms == NOT_SET:
            return config.group_consumer_session_timeout_ms
        return _within(
            own.session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        )

    def heartbeat_interval_ms(self, group_id: str) -> int:
        own = self.by_group.get(group_id)
        config = self.config
        if own is None or own.heartbeat_interval_ms == NOT_SET:
            return config.group_consumer_heartbeat_interval_ms
        return _within(
            own.heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        )

    def assignment_interval_ms(self, group_id: str) -> int:
        """The shortest time between two assignments of the group; 0 for none."""
        own = self.by_group.get(group_id)
        config = self.config
        interval_ms = NOT_SET if own is None else own.assignment_interval_ms
        if interval_ms == NOT_SET:
            interval_ms = self.dynamic_interval_ms
        if interval_ms == NOT_SET:
            return config.group_consumer_assignment_interval_ms
        return _within(
            interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        )

    def broker_value(self, name: str) -> int:
        """The value for a group that sets nothing, for one of the names in GROUP_CONFIGS."""
        if name == CONSUMER_SESSION_TIMEOUT:
            return self.config.group_consumer_session_timeout_ms
        if name == CONSUMER_HEARTBEAT_INTERVAL:
            return self.config.group_consumer_heartbeat_interval_ms
        return self.assignment_interval_ms("")

    def out_of_bounds(self) -> list[str]:
        """Groups with a value that is outside of the limits, sorted by name."""
        found: list[str] = []
        for group_id in sorted(self.by_group):
            own = self.by_group[group_id]
            if (
                (own.session_timeout_ms not in (NOT_SET, self.session_timeout_ms(group_id)))
                or (own.heartbeat_interval_ms not in (NOT_SET, self.heartbeat_interval_ms(group_id)))
                or (own.assignment_interval_ms not in (NOT_SET, self.assignment_interval_ms(group_id)))
            ):
                found.append(group_id)
        return found

    # --- checking --------------------------------------------------------------------------------------------

    def check(self, configs: dict[str, str]) -> str:
        """Check the configurations of a group: an error message, or "" if they are valid."""
        for name in configs:
            if name not in GROUP_CONFIGS:
                return f"Unknown group config name: {name}"
        for name in (CONSUMER_SESSION_TIMEOUT, CONSUMER_HEARTBEAT_INTERVAL, CONSUMER_ASSIGNMENT_INTERVAL):
            value = configs.get(name)
            problem = "" if value is None else GROUP_CONFIGS[name].check(value)
            if problem:
                return problem
        config = self.config
        own = OwnValues(configs)
        problem = _bounds_problem(
            CONSUMER_HEARTBEAT_INTERVAL,
            own.heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        )
        if not problem:
            problem = _bounds_problem(
                CONSUMER_SESSION_TIMEOUT,
                own.session_timeout_ms,
                config.group_consumer_min_session_timeout_ms,
                config.group_consumer_max_session_timeout_ms,
            )
        if not problem:
            problem = self.interval_problem(CONSUMER_ASSIGNMENT_INTERVAL, own.assignment_interval_ms)
        if problem:
            return problem
        session_ms = own.session_timeout_ms
        if session_ms == NOT_SET:
            session_ms = config.group_consumer_session_timeout_ms
        heartbeat_ms = own.heartbeat_interval_ms
        if heartbeat_ms == NOT_SET:
            heartbeat_ms = config.group_consumer_heartbeat_interval_ms
        if session_ms <= heartbeat_ms:
            return f"{CONSUMER_SESSION_TIMEOUT} must be greater than {CONSUMER_HEARTBEAT_INTERVAL}"
        return ""

    def interval_problem(self, name: str, interval_ms: int) -> str:
        """Check an assignment interval that is set under `name`: an error message, or "" if it is valid."""
        config = self.config
        return _bounds_problem(
            name,
            interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        )


def _bounds_problem(name: str, number: int, low: int, high: int) -> str:
    """Check a value against the broker's limits. A value that is not set is valid."""
    if number == NOT_SET:
        return ""
    what = name.removeprefix("group.").removeprefix("consumer.")
    if number < low:
        return f"{name} must be greater than or equal to group.consumer.min.{what}"
    if number > high:
        return f"{name} must be less than or equal to group.consumer.max.{what}"
    return ""
