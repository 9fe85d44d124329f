"""CRC-32C (Castagnoli), the checksum of record batches."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, PathFinder
from typing import Final, cast

__all__ = ["crc32c"]

Checksum = Callable[[bytes | bytearray | memoryview, int], int]

PACKAGE: Final = "crc32c"


def find_checksum() -> Checksum:
    """`crc32c.crc32c`, from the extension module alone if it is where it usually is.

    The package around it looks up its own version among the installed packages, and imports a command line: a tenth of
    the time in which a server starts.
    """
    name = f"{PACKAGE}._{PACKAGE}"
    package = PathFinder.find_spec(PACKAGE)
    if package is not None and package.submodule_search_locations is not None:
        spec = PathFinder.find_spec(name, list(package.submodule_search_locations))
        if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
            module = spec.loader.create_module(spec)
            spec.loader.exec_module(module)
            found = getattr(module, PACKAGE, None)
            if found is not None:
                return cast(Checksum, found)
    from crc32c import crc32c as checksum

    return cast(Checksum, checksum)


_crc32c: Final = find_checksum()


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Checksum of `data`, continuing from `value`, as an unsigned 32-bit number."""
    return _crc32c(data, value)
