"""Imports that only some requests need: hashes, compression, patterns.

They take a start several milliseconds, so they come when the server already serves: soon, since an import takes a few
milliseconds of the event loop, and a file descriptor, which a server with too many connections does not have.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Final

# Used by kcoord.log.sieve, kcoord.core.topics.hash, kcoord.wire.compression and kcoord.core.topics.regex.
MODULES: Final = ("hashlib", "xxhash", "cramjam", "re2")
PAUSE_S: Final = 0.1


async def import_late() -> None:
    for name in MODULES:
        if name not in sys.modules:
            await asyncio.sleep(PAUSE_S)
            importlib.import_module(name)
