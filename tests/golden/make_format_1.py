"""Writes tests/golden/format_1.tar.gz: a data directory as kcoord wrote it before record format 2.

    python -m tests.golden.make_format_1

This needs a checkout that still writes format 1, such as commit cf24293, with this file in it; the one here refuses.
A consumer group has a static member, a member with a regular expression and one of the classic protocol. A state
checkpoint holds the first two, more records come after it.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from kcoord.engine.state_checkpoint import write_state
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.harness.engine import finish_turn, run_jobs
from tests.unit.cli.rig import OFFSETS, LogRig, at, subscription

DIRECTORY = Path(__file__).resolve().parent / "format_1.tar.gz"
GROUP = "shop"
STATIC, REGEX, CLASSIC = "till-1", "^ord.*", "range"
MEMBERS = ("static-member", "regex-member")


def join(rig: LogRig, when: float, member: str, **more: Any) -> None:
    body = ConsumerGroupHeartbeatRequest(GROUP, member, 0, rebalance_timeout_ms=30_000, topic_partitions=[], **more)
    assert rig.client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, body, at(when)).error_code == 0
    run_jobs(rig.engine, at(when))


def write_checkpoint(rig: LogRig) -> None:
    state = rig.engine.states.logs[OFFSETS]
    state.records_min = 1
    plan = state.plan(False)
    assert plan is not None
    rig.engine.states.written(plan, write_state(state.log.storage, plan))


def write_history(path: Path) -> None:
    rig = LogRig(path)
    rig.create("orders", 4, 1)
    join(rig, 2, MEMBERS[0], instance_id=STATIC, subscribed_topic_names=["orders"])
    join(rig, 3, MEMBERS[1], subscribed_topic_regex=REGEX)
    write_checkpoint(rig)
    protocol = JoinGroupRequestProtocol(CLASSIC, subscription("orders"))
    body = JoinGroupRequest(GROUP, 45_000, 30_000, "", None, "consumer", [protocol])
    rig.client.send(apis.JOIN_GROUP, 3, body, at(4))
    finish_turn(rig.engine, at(4))
    rig.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_history(data)
        if "kcoord.format=1\n" not in (data / "meta.properties").read_text():
            sys.exit("this checkout writes another format")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(data.rglob("*")):
                entry = tarfile.TarInfo(str(path.relative_to(data)))
                entry.type = tarfile.DIRTYPE if path.is_dir() else tarfile.REGTYPE
                entry.mode = 0o755 if path.is_dir() else 0o644
                content = b"" if path.is_dir() else path.read_bytes()
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        DIRECTORY.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    print(f"{DIRECTORY.stat().st_size} bytes")


if __name__ == "__main__":
    main()
