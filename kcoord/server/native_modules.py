"""The native modules of a server, imported at once: `kcoord.server.main` imports this module before all others.

Native modules import each other without looking for files. Interpreted code finds each by itself, which takes a start
0.1 ms for a module. Interpreted, this module has no effect.
"""

from __future__ import annotations

import kcoord.log.steps
import kcoord.server.assembly
import kcoord.server.assignors
import kcoord.server.event_loop
import kcoord.server.kernel_syncs
import kcoord.server.listen.descriptors
import kcoord.server.listen.pacing
import kcoord.server.listen.sockets
import kcoord.server.memory
import kcoord.server.pump  # noqa: F401  nothing here is used
