"""The scripted questions that are asked of a real broker and of kcoord alike.

Each script is a function over a `Session`; SCRIPTS lists them in the order in which they run against one fresh broker
(the listings come first, while it is empty). Names of topics and groups are unique to their script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.broker_scripts_admin import ADMIN_SCRIPTS, LISTING_SCRIPTS
from tests.harness.broker_scripts_data import DATA_SCRIPTS
from tests.harness.broker_scripts_groups import GROUP_LISTING_SCRIPTS, GROUP_SCRIPTS
from tests.harness.broker_scripts_transactions import TRANSACTION_SCRIPTS
from tests.harness.session import Session

Script = Callable[[Session], None]

SCRIPTS: dict[str, Script] = {
    **LISTING_SCRIPTS,
    **GROUP_LISTING_SCRIPTS,
    **GROUP_SCRIPTS,
    **ADMIN_SCRIPTS,
    **DATA_SCRIPTS,
    **TRANSACTION_SCRIPTS,
}


def run(name: str, session: Session) -> list[dict[str, Any]]:
    """Runs one script and returns its normalised steps."""
    try:
        SCRIPTS[name](session)
    finally:
        session.close()
    return session.steps()
