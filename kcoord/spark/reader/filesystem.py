"""Files on any storage: a local path, a URI that Arrow supports (file, s3, gs, abfs), hdfs, or one of fsspec.

Executors get a `Storage`: the path as given, and options. Each opens it again.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    import pyarrow.fs

ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss")
HDFS_SCHEMES = ("hdfs", "viewfs")
CONNECT_TIMEOUT_S = 20
# Hadoop's names for s3.
SAME_SCHEMES = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True)
class Storage:
    """`options` are passed to fsspec, or become the query of an Arrow URI (`endpoint_override`, `access_key`, ...).

    For HDFS they are settings of Hadoop (`dfs.client.use.datanode.hostname`, ...).
    """

    path: str
    options: tuple[tuple[str, str], ...] = ()
    use_fsspec: bool = False

    def open(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The filesystem, and the path in it. Raises OSError and ValueError."""
        import pyarrow.fs

        scheme, separator, rest = self.path.partition("://")
        if not separator:
            return pyarrow.fs.LocalFileSystem(), os.path.abspath(_without_scheme(self.path))
        scheme = SAME_SCHEMES.get(scheme, scheme)
        if scheme in HDFS_SCHEMES and not self.use_fsspec:
            return self._open_hdfs(scheme, rest)
        if scheme in ARROW_SCHEMES and not self.use_fsspec:
            return self._open_arrow(scheme, rest)
        return self._open_fsspec()

    def _open_hdfs(self, scheme: str, rest: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """With hdfs-native, which needs nothing else; otherwise with Hadoop's libhdfs and a JVM, through Arrow."""
        import pyarrow.fs

        try:
            import hdfs_native.fsspec as native
        except ImportError:
            pass
        else:
            kinds = {"hdfs": native.HdfsFileSystem, "viewfs": native.ViewfsFileSystem}
            url = urlsplit(self.path)
            if url.hostname and url.port:
                # By default it retries for minutes if nothing listens.
                socket.create_connection((url.hostname, url.port), CONNECT_TIMEOUT_S).close()
            filesystem = kinds[scheme](host=url.hostname, port=url.port, **dict(self.options))
            return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem)), unquote(url.path).rstrip("/")
        try:
            return self._open_arrow(scheme, rest)
        except OSError as error:
            raise OSError(
                f"{self.path}: HDFS needs hdfs-native (pip install 'kcoord[hdfs]'), or Hadoop's libhdfs, which is not "
                f"to be had: {error}"
            ) from None

    def _open_arrow(self, scheme: str, rest: str) -> tuple[pyarrow.fs.FileSystem, str]:
        import pyarrow.fs

        filesystem, path = pyarrow.fs.FileSystem.from_uri(_arrow_uri(scheme, rest, dict(self.options)))
        return filesystem, path.rstrip("/")

    def _open_fsspec(self) -> tuple[pyarrow.fs.FileSystem, str]:
        import pyarrow.fs

        try:
            import fsspec.core
        except ImportError:
            raise ValueError(f"{self.path}: this kind of path needs fsspec (pip install fsspec)") from None
        filesystem, path = fsspec.core.url_to_fs(self.path, **dict(self.options))
        # fsspec caches the instance with its listings, and a stream must see new files.
        filesystem.invalidate_cache()
        handler = pyarrow.fs.FSSpecHandler(filesystem)
        return pyarrow.fs.PyFileSystem(handler), str(path).rstrip("/")


def filesystem_of(path: str) -> str:
    """The name of a path's filesystem: its scheme, with host or bucket."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return "file"
    return f"{SAME_SCHEMES.get(scheme, scheme)}://{rest.partition('/')[0]}"


def _without_scheme(path: str) -> str:
    """The path in `file:/path`, as Hadoop writes it, without quoting."""
    return path.removeprefix("file:") if path.startswith("file:/") else path


def _arrow_uri(scheme: str, rest: str, options: dict[str, str]) -> str:
    """The URI with the options where Arrow expects them: keys of a store as its user, the others as the query."""
    if "access_key" in options and "secret_key" in options:
        user = quote(options.pop("access_key"), safe="")
        rest = f"{user}:{quote(options.pop('secret_key'), safe='')}@{rest}"
    uri = f"{scheme}://{rest}"
    if options:
        uri += ("&" if "?" in uri else "?") + urlencode(options)
    return uri


@dataclass(frozen=True)
class FileState:
    """What distinguishes two files of one name. A time or an inode of 0 is unknown."""

    size: int
    modified_ns: int
    inode: int = 0


def state_of(filesystem: Any, path: str) -> FileState | None:
    """The state of the file that has this name now; None if there is none. Raises OSError."""
    if filesystem.type_name == "local":
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return FileState(status.st_size, status.st_mtime_ns, status.st_ino)
    info = filesystem.get_file_info(path)
    return FileState(info.size, info.mtime_ns or 0) if info.is_file else None


def forget_listings(filesystem: Any) -> None:
    """Filesystems of fsspec may answer from cached listings."""
    of_fsspec = getattr(getattr(filesystem, "handler", None), "fs", None)
    if of_fsspec is not None:
        of_fsspec.invalidate_cache()


class FileBytes:
    """Any part of a file. `size` is what it had when it was opened; a smaller one may be given.

    On a local disk it stays the file that was opened, even if another file gets its name.
    """

    def __init__(self, filesystem: Any, path: str, size: int | None = None) -> None:
        self.file: Any
        self.local: os.stat_result | None = None
        if filesystem.type_name == "local":
            local = open(path, "rb", buffering=0)
            self.file, self.local = local, os.fstat(local.fileno())
            now = self.local.st_size
        else:
            self.file = filesystem.open_input_file(path)
            now = int(self.file.size())
        self.size = now if size is None else min(size, now)

    def state(self, filesystem: Any, path: str) -> FileState | None:
        """The state of the open file; on a store without open files, of the file with this name. Raises OSError."""
        if self.local is None:
            return state_of(filesystem, path)
        return FileState(self.local.st_size, self.local.st_mtime_ns, self.local.st_ino)

    def pread(self, size: int, position: int) -> bytes:
        """At most `size` bytes; fewer only at the end. Raises OSError."""
        wanted = min(size, self.size - position)
        if wanted <= 0:
            return b""
        self.file.seek(position)
        data: bytes = self.file.read(wanted)
        return data

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileTooLarge(ValueError):
    """A file beside the segments is larger than any that is written."""


def read_file(filesystem: Any, path: str, bytes_max: int) -> bytes:
    """A small file, whole; empty if there is none. Raises FileTooLarge."""
    try:
        with FileBytes(filesystem, path) as file:
            if file.size > bytes_max:
                raise FileTooLarge(f"{path} is larger than {bytes_max} bytes")
            return file.pread(file.size, 0)
    except FileNotFoundError:
        return b""
