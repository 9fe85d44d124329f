"""Partitions are chosen as the Java client chooses them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kcoord.client.producer.partitioner import Sticky, partition_of_key

# Written by tests/interop/java/Partitions.java, which says how the keys are made.
GOLDEN = Path(__file__).parent / "partitions.txt"


def test_keys_go_where_the_java_client_sends_them() -> None:
    expected = [int(digit, 36) for digit in GOLDEN.read_text().replace("\n", "")]
    keys = [hashlib.sha256(str(i).encode()).digest()[: i % 33] for i in range(10_000)]
    assert [partition_of_key(key, 1 + i % 36) for i, key in enumerate(keys)] == expected


def test_records_without_a_key_fill_one_partition_after_the_other() -> None:
    sticky = Sticky(1000)
    chosen: list[int] = []
    for _ in range(3000):
        if not sticky.keeps({0: None, 1: None, 2: None}, 100):
            sticky.choose([0, 1, 2], [0, 1], 100)
        chosen.append(sticky.partition)
    runs = [chosen[start : start + 10] for start in range(0, len(chosen), 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert [run[0] for run in runs] == [runs[0][0], 1 - runs[0][0]] * (len(runs) // 2)


def test_a_partition_that_is_gone_is_left() -> None:
    sticky = Sticky(1000)
    assert sticky.choose([3], [], 10) == 3
    assert not sticky.keeps({0: None}, 10)
    assert sticky.choose([0], [0], 10) == 0
