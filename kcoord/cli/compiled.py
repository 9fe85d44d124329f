"""Whether the hot modules are native code."""

from __future__ import annotations


def is_compiled() -> bool:
    from kcoord.wire import primitives

    return not str(primitives.__file__).endswith(".py")
