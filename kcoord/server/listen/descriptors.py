"""Divides the process's descriptors between the log and connections, so that connections never take the last one.

A log that cannot open a file ends the server, but a refused connection only costs one client a retry. So the log's
share is reserved first, and the rest bounds the connections.
"""

from __future__ import annotations

import os
import resource
from typing import Final, final

from kcoord.log.parallel import THREADS_MAX

# Descriptors for everything except segment files and connections: two for each thread that works on files, pipes to
# child processes, the control socket and its clients, a connection that is being refused, and the event loop.
RESERVE: Final = 2 * THREADS_MAX + 24
# The log's share of the rest, in quarters, if descriptors are scarce; then its minimum and maximum. Each open file
# saves a commit one open and one close, and costs the kernel about a kilobyte.
LOG_QUARTERS: Final = 1
LOG_FILES_MIN: Final = 32
LOG_FILES_MAX: Final = 16384
# Used if the limit is unlimited, or if the kernel allows fewer than the hard limit (macOS).
USUAL_LIMIT: Final = 10240
IN_USE_UNKNOWN: Final = 32


@final
class DescriptorBudget:
    """`limit` descriptors: `log_files` for segments' files, `connections` for connections."""

    def __init__(self, limit: int, log_files: int, connections: int) -> None:
        self.limit = limit
        self.log_files = log_files
        self.connections = connections


def raise_descriptor_limit() -> int:
    """Raise the limit on open files to the hard limit, and return it.

    The lower soft limit is meant for programs that use select(); kcoord does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    for limit in (hard, USUAL_LIMIT):
        if limit != resource.RLIM_INFINITY and limit <= soft != resource.RLIM_INFINITY:
            continue
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        return limit
    return soft


def plan_descriptors(limit: int, in_use: int, connections_max: int) -> DescriptorBudget:
    """Divide `limit` descriptors, of which `in_use` are taken, for at most `connections_max` connections."""
    left = max(limit - in_use - RESERVE, 0)
    log_files = min(max(left * LOG_QUARTERS // 4, left - connections_max, LOG_FILES_MIN), LOG_FILES_MAX)
    return DescriptorBudget(limit, log_files, min(max(left - log_files, 1), connections_max))


def descriptors_now(connections_max: int, is_in_memory: bool) -> DescriptorBudget:
    """The budget of this process, from its limit and its open descriptors. A log in memory needs none."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = USUAL_LIMIT
    in_use = _in_use()
    if is_in_memory:
        return DescriptorBudget(limit, 0, max(min(limit - in_use - RESERVE, connections_max), 1))
    return plan_descriptors(limit, in_use, connections_max)


def _in_use() -> int:
    for path in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(path))
        except OSError:
            continue
    return IN_USE_UNKNOWN
