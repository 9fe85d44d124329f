"""The scripts about consumer groups (KIP-848), and the settings of the broker that each is asked of.

`PROFILES` lists them by broker, in the order in which they run against a fresh one. Names of topics and groups are
unique to their script, so that the records of a script can be told from those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.broker_scripts_consumer_admin import (
    ADMIN_SCRIPTS,
    assignment_interval,
    limits,
    limits_of_conversion,
    listings,
)
from tests.harness.broker_scripts_consumer_corners import CORNER_SCRIPTS
from tests.harness.broker_scripts_consumer_heartbeat import HEARTBEAT_SCRIPTS
from tests.harness.broker_scripts_consumer_migration import (
    MIGRATION_SCRIPTS,
    policy_disabled,
    policy_downgrade,
    policy_upgrade,
)
from tests.harness.broker_scripts_consumer_mixed import MIXED_SCRIPTS
from tests.harness.broker_scripts_consumer_offsets import OFFSET_SCRIPTS
from tests.harness.broker_scripts_consumer_subscriptions import SUBSCRIPTION_SCRIPTS, regex_refresh
from tests.harness.consumer_session import ConsumerSession

Script = Callable[[ConsumerSession], None]

# Assignments at once, and bounds that let timeouts be tried in seconds. Without lingering, every write of the broker's
# coordinator is a batch of its own.
COMMON = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "group.coordinator.append.linger.ms": "0",
}


class Profile:
    """Settings, in Kafka's names, and the scripts for a broker that has them."""

    def __init__(self, settings: dict[str, str], scripts: dict[str, Script]) -> None:
        self.settings = {**COMMON, **settings}
        self.scripts = scripts


PROFILES: dict[str, Profile] = {
    "main": Profile(
        {},
        {
            "consumer_listings": listings,
            **HEARTBEAT_SCRIPTS,
            **SUBSCRIPTION_SCRIPTS,
            **ADMIN_SCRIPTS,
            **OFFSET_SCRIPTS,
            **MIGRATION_SCRIPTS,
            **MIXED_SCRIPTS,
            **CORNER_SCRIPTS,
        },
    ),
    "interval": Profile(
        {"group.consumer.assignment.interval.ms": "4000", "group.consumer.regex.refresh.interval.ms": "10000"},
        {"consumer_assignment_interval": assignment_interval, "consumer_regex_refresh": regex_refresh},
    ),
    "two members": Profile({"group.consumer.max.size": "2", "group.max.size": "2"}, {"consumer_limits": limits}),
    "one classic member": Profile(
        {"group.consumer.max.size": "2", "group.max.size": "1"}, {"consumer_limits_of_conversion": limits_of_conversion}
    ),
    "upgrade": Profile({"group.consumer.migration.policy": "upgrade"}, {"consumer_policy_upgrade": policy_upgrade}),
    "downgrade": Profile(
        {"group.consumer.migration.policy": "downgrade"}, {"consumer_policy_downgrade": policy_downgrade}
    ),
    "disabled": Profile({"group.consumer.migration.policy": "disabled"}, {"consumer_policy_disabled": policy_disabled}),
}
SCRIPTS: dict[str, Profile] = {name: profile for profile in PROFILES.values() for name in profile.scripts}


def run(name: str, session: ConsumerSession) -> list[dict[str, Any]]:
    """Runs one script and returns its normalised steps. Ask the session for the batches after it."""
    try:
        SCRIPTS[name].scripts[name](session)
    finally:
        session.close()
    return session.steps()
