"""Logs that are not on a disk of this machine: an object store, and what only fsspec knows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from kcoord.spark.reader.filesystem import FileBytes, Storage
from tests.unit.spark.log_rig import LogRig, rows

BUCKET = "archive"
KEYS = {"access_key": "testing", "secret_key": "testing", "region": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Address (host:port) of an object store."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"{host}:{port}"
    finally:
        server.stop()


def arrow_options(address: str) -> dict[str, str]:
    given = {**KEYS, "endpoint_override": address, "scheme": "http", "allow_bucket_creation": "true"}
    return {f"storage.{name}": value for name, value in given.items()}


def upload(address: str, root: Path, prefix: str) -> None:
    from pyarrow import fs

    to = fs.S3FileSystem(
        access_key="testing", secret_key="testing", region="us-east-1", endpoint_override=address, scheme="http",
        allow_bucket_creation=True,
    )  # fmt: skip
    to.create_dir(BUCKET)
    fs.copy_files(str(root), f"{BUCKET}/{prefix}", source_filesystem=fs.LocalFileSystem(), destination_filesystem=to)


def two_brokers(root: Path) -> None:
    for broker in ("broker-1", "broker-2"):
        log = LogRig(root / broker)
        for number in range(10):
            log.append((broker.encode(), b"%d" % number), (b"k", None))
        log.checkpoint("log-start-offset-checkpoint", 3)


def test_s3_through_arrow(tmp_path: Path, s3: str) -> None:
    two_brokers(tmp_path)
    upload(s3, tmp_path, "arrow")
    here = rows(tmp_path)
    there = rows("s3://archive/arrow", **arrow_options(s3))
    assert there == here
    assert {row["log"] for row in there} == {"broker-1", "broker-2"}
    assert len(there) == 34


def test_s3_through_fsspec(tmp_path: Path, s3: str) -> None:
    two_brokers(tmp_path)
    upload(s3, tmp_path, "fsspec")
    given = {
        "filesystem": "fsspec",
        "storage.key": "testing",
        "storage.secret": "testing",
        "storage.endpoint_url": f"http://{s3}",
    }
    assert rows("s3://archive/fsspec", **given) == rows(tmp_path)


def test_what_only_fsspec_knows(tmp_path: Path) -> None:
    import fsspec

    two_brokers(tmp_path)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/logs", recursive=True)
    assert rows("memory://logs") == rows(tmp_path)


def test_a_uri_of_the_disk(tmp_path: Path) -> None:
    two_brokers(tmp_path)
    assert rows(tmp_path.as_uri()) == rows(tmp_path)


def test_an_unknown_scheme() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        Storage("nowhere://there").open()


def test_hdfs_names_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hdfs-native nor, on this machine, libhdfs."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.setitem(sys.modules, "hdfs_native.fsspec", None)
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(OSError, match=r"kcoord\[hdfs\]"):
        Storage("hdfs://127.0.0.1:1/there").open()


def test_an_unreachable_hdfs() -> None:
    with pytest.raises(ConnectionRefusedError):
        Storage("hdfs://127.0.0.1:1/there").open()


def test_parts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    filesystem, root = Storage(str(tmp_path)).open()
    with FileBytes(filesystem, f"{root}/file", 50) as file:
        assert file.size == 50
        assert file.pread(10, 45) == bytes(range(45, 50))
        assert file.pread(10, 60) == b""
        assert file.pread(3, 0) == b"\0\1\2"
