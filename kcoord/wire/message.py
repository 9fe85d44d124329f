"""The base class of the generated messages: comparison and `repr`, driven by the list of field names."""

from __future__ import annotations

from typing import ClassVar


class Message:
    """A plain record of typed fields. Subclasses are generated; FIELDS names their fields in schema order."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        for name in self.FIELDS:
            if getattr(self, name) != getattr(other, name):
                return False
        return True

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in self.FIELDS]
        return type(self).__name__ + "(" + ", ".join(parts) + ")"
