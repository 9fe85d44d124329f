"""Sends answers that contain parts of files: the system copies those from the file to the socket (sendfile).

An event loop's transport takes only bytes. So while such answers wait, everything is written to the socket directly, in
order. If the socket takes no more, the transport gets the next few bytes: it writes them once it can, and reports that
its buffer is empty, and then this goes on. Nothing is written directly while the transport has bytes of its own.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from typing import Final, final

from kcoord.wire.file_range import FileRange

# What the transport gets to find out when the socket takes more.
PROBE_BYTES: Final = 16 << 10
# A file system without sendfile: the records are read instead.
NO_SENDFILE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# Whether this system has the call. Not Final, so that native code looks it up: a test replaces it.
IS_AVAILABLE = hasattr(os, "sendfile")


@final
class FileSender:
    """The answers of one connection from the first one with a part of a file on, until all of them are sent."""

    def __init__(self, transport: asyncio.Transport, fd: int) -> None:
        self.transport = transport
        # That of the socket, which the transport owns.
        self.fd = fd
        self.pieces: deque[bytes | FileRange] = deque()
        # Of the first piece, so much is sent.
        self.sent = 0
        self.unsent_bytes = 0

    def add(self, pieces: list[bytes | FileRange]) -> None:
        self.pieces.extend(pieces)
        for piece in pieces:
            self.unsent_bytes += len(piece)

    def send(self) -> bool:
        """Send what the socket takes. Returns whether nothing is left. Raises OSError.

        If something is left, the transport has bytes and will report when they are written.
        """
        pieces = self.pieces
        while pieces:
            # A write of the transport may have failed, and the descriptor may belong to another file by now.
            if self.transport.get_write_buffer_size() or self.transport.is_closing():
                return False
            piece = pieces[0]
            try:
                size = self._send_some(piece)
            except BlockingIOError:
                size = self._probe(piece)
            self.sent += size
            self.unsent_bytes -= size
            if self.sent == len(piece):
                pieces.popleft()
                self.sent = 0
        return True

    def _send_some(self, piece: bytes | FileRange) -> int:
        """Write a part of a piece to the socket. Returns its size. Raises BlockingIOError, and OSError."""
        if not isinstance(piece, FileRange):
            return os.write(self.fd, piece[self.sent :] if self.sent else piece)
        try:
            size = os.sendfile(self.fd, piece.file.fd, piece.position + self.sent, piece.size - self.sent)
        except OSError as error:
            if error.errno not in NO_SENDFILE:
                raise
            self.pieces[0] = piece.read()
            return 0
        if size == 0:
            raise OSError(errno.EIO, "a file ends before its records")
        return size

    def _probe(self, piece: bytes | FileRange) -> int:
        """Give the transport the next bytes. Returns their number. Raises OSError."""
        if isinstance(piece, FileRange):
            data = piece.part(self.sent, PROBE_BYTES)
        else:
            data = piece[self.sent : self.sent + PROBE_BYTES]
        self.transport.write(data)
        return len(data)

    def clear(self) -> None:
        """The connection ends: nothing more is sent."""
        self.pieces.clear()
        self.unsent_bytes = 0
