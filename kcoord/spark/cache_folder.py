"""The user's cache folder, for what a JVM runs: a launcher, an archive of classes.

Who can write there could put other code in its place. So a folder counts only if it belongs to this user, and nobody
else may write to it.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(*names: str) -> Path | None:
    """The folder `names` in kcoord's part of the cache folder, made if it is not there.

    None where it is not safe, and on Windows, which does not tell.
    """
    if sys.platform == "win32":
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not only_ours(folder.stat()):
            return None
        for name in ("kcoord", *names):
            folder = folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            if not only_ours(folder.stat()) or folder.is_symlink():
                return None
    except (OSError, RuntimeError):  # a RuntimeError: the user has no home
        return None
    return folder


def only_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MAY_WRITE
