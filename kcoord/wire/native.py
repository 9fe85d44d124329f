"""Whether the hot modules run as native code."""

from __future__ import annotations

from kcoord.wire import primitives


def is_compiled() -> bool:
    return not str(primitives.__file__).endswith(".py")
