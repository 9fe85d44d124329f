"""The fixed-width integers of native code, for code that also runs interpreted.

`i64(x)` is a conversion that costs nothing in native code. Interpreted, the classes of mypy_extensions are functions in
Python around `int`, and a commit calls them some thirty times. There they are `int` itself.

This module is never compiled: mypyc looks only at the types.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i32, i64, u8
else:
    i32 = i64 = u8 = int

__all__ = ["i32", "i64", "u8"]
