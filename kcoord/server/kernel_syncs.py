"""Syncs of single files that the kernel does on its own: Linux AIO (io_submit(2) with IOCB_CMD_FDSYNC).

A thread that syncs needs the interpreter's lock (GIL) to begin and to report, and a busy event loop rarely lets go of
it. Here the loop itself gives the kernel the file, and hears from it through a descriptor that it watches like a
socket.

The kernel keeps the file open until it is through, whoever closes it meanwhile. The result is that of `fdatasync`.
Where this is not to be had (another system, a sandbox that forbids the calls, a file system without them), `submit`
refuses, and the caller takes a thread.

Python has no calls for this, so they are made with ctypes, which takes 2 ms to import. The library caio has them, and
takes tens of milliseconds of the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

from kcoord.log.journal import sync_error
from kcoord.wire.causes import caused_by

# How many syncs may be under way. The pump has one at a time.
SLOTS: Final = 4
# The numbers of io_setup, io_destroy, io_getevents and io_submit, with 64 bits.
CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
# struct iocb (64 bytes, little-endian): data, key, flags, command, priority, file, buffer, size, offset, reserved,
# flags, and the descriptor that is told of the end.
IOCB: Final = struct.Struct("<QIIHhIQQqQII")
COMMAND_FDSYNC: Final = 3
TELLS_DESCRIPTOR: Final = 1
# struct io_event: data, the iocb's address, the result (negative: an error number), another one.
EVENT: Final = struct.Struct("<QQqq")

Done = Callable[[BaseException | None], None]


@final
class KernelSyncs:
    """See the module docstring. Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError, KeyError (a processor that is not in CALLS)."""
        import ctypes

        setup, destroy, getevents, submit = CALLS[platform.machine()]
        self._call: Any = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        # The kernel's sign that a sync has ended.
        self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(setup), ctypes.c_long(SLOTS), ctypes.byref(context)) != 0:
            os.close(self._told)
            raise OSError(ctypes.get_errno(), "io_setup")
        # The memory that the kernel reads and writes, and the calls with their arguments.
        self._requests: Any = ctypes.create_string_buffer(IOCB.size * SLOTS)
        self._events: Any = ctypes.create_string_buffer(EVENT.size * SLOTS)
        first = ctypes.addressof(self._requests)
        self._pointers: list[Any] = [ctypes.c_void_p(first + IOCB.size * slot) for slot in range(SLOTS)]
        one = ctypes.c_long(1)
        self._submits: list[Any] = [
            (ctypes.c_long(submit), context, one, ctypes.byref(pointer)) for pointer in self._pointers
        ]
        least, most = ctypes.c_long(0), ctypes.c_long(SLOTS)
        self._getevents: Any = (ctypes.c_long(getevents), context, least, most, self._events, None)
        self._destroy: Any = (ctypes.c_long(destroy), context)
        if self._call(*self._getevents) != 0:
            # A sandbox may allow some calls and forbid others.
            os.close(self._told)
            raise OSError(ctypes.get_errno(), "io_getevents")
        # Who waits for the sync in each slot.
        self._waiting: list[Done | None] = [None] * SLOTS
        self.is_usable = True
        # How many syncs were begun.
        self.begun = 0
        self.loop = loop
        loop.add_reader(self._told, self._on_end)

    def submit(self, fd: int, done: Done) -> bool:
        """Begin to sync a file; then `done(SyncFailed or None)` on the loop. False: it was not begun."""
        if not self.is_usable or None not in self._waiting:
            return False
        slot = self._waiting.index(None)
        at = IOCB.size * slot
        IOCB.pack_into(
            self._requests, at, slot, 0, 0, COMMAND_FDSYNC, 0, fd, 0, 0, 0, 0, TELLS_DESCRIPTOR, self._told
        )  # fmt: skip
        if self._call(*self._submits[slot]) != 1:
            # It will not be better the next time.
            self.is_usable = False
            return False
        self._waiting[slot] = done
        self.begun += 1
        return True

    def _on_end(self) -> None:
        try:
            os.eventfd_read(self._told)
        except BlockingIOError:
            return
        ended: list[tuple[Done, int]] = []
        count: int = self._call(*self._getevents)
        if count < 0:
            # Nobody will ever tell how these syncs ended, so they count as failed.
            count = 0
            self.is_usable = False
            ended = [(done, -errno.EIO) for done in self._waiting if done is not None]
            self._waiting = [None] * SLOTS
        for number in range(count):
            slot, _, result, _ = EVENT.unpack_from(self._events, EVENT.size * number)
            done = self._waiting[slot]
            self._waiting[slot] = None
            if done is not None:
                ended.append((done, result))
        for done, result in ended:
            done(failure_of(result))

    def stop(self) -> None:
        """Let go of the loop and of the kernel, which first ends the syncs that are under way."""
        if self._told < 0:
            return
        self.is_usable = False
        self.loop.remove_reader(self._told)
        os.close(self._told)
        self._told = -1
        # The kernel takes some milliseconds for it, and for ever if the disk hangs. The process's end does it, too.
        with suppress(RuntimeError):
            threading.Thread(target=self._call, args=self._destroy, name="kcoord-sync-end", daemon=True).start()


def failure_of(result: int) -> BaseException | None:
    """What a result of the kernel means: a negative one is an error number."""
    if result >= 0:
        return None
    error = OSError(-result, os.strerror(-result))
    return caused_by(sync_error(error), error)


def kernel_syncs(loop: asyncio.AbstractEventLoop) -> KernelSyncs | None:
    """None if this system does not have it."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize != (1 << 63) - 1:
        return None
    try:
        return KernelSyncs(loop)
    except (OSError, KeyError, AttributeError, ImportError):
        return None
