"""Histograms, percentiles, spreads and ratios of `kcoord bench`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kcoord.cli.bench.compare import compare, ratios
from kcoord.cli.bench.load import added, figures
from kcoord.cli.bench.results import NoResults, load, percentile, save, spread
from kcoord.cli.bench.workers import merged
from kcoord.client.load.histogram import BUCKETS, Histogram, bucket_of, middle_of


def test_buckets_are_in_order_and_close_to_what_is_in_them() -> None:
    values = sorted({*range(2000), *(1 << n for n in range(42)), *((1 << n) - 1 for n in range(1, 42))})
    buckets = [bucket_of(one) for one in values]
    assert buckets == sorted(buckets)
    for value, bucket in zip(values, buckets, strict=True):
        assert abs(middle_of(bucket) - value) <= value * 0.008


def test_latencies_out_of_range_are_in_the_outer_buckets() -> None:
    assert bucket_of(-1) == 0
    assert bucket_of(1 << 60) == BUCKETS - 1


def test_percentiles_of_a_histogram_are_those_of_the_values() -> None:
    seed = 7
    values = [round(random.Random(seed + number).expovariate(1e-6)) for number in range(10_000)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.9, 0.99, 0.999, 1.0):
        exact = percentile([float(one) for one in values], share) / 1e6
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.01)
    assert Histogram().percentile(0.5) == 0


def test_nearest_rank() -> None:
    values = [float(one) for one in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0, 0.0)] == [50, 99, 100, 100, 1]
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([], 0.99) == 0.0


def test_spread() -> None:
    assert spread([90.0, 100.0, 130.0]) == pytest.approx(0.2)
    assert spread([]) == spread([5.0]) == 0


def part(answered: int, seconds: float, latencies: list[int], errors: dict[str, int]) -> dict[str, Any]:
    histogram = Histogram()
    for one in latencies:
        histogram.add(one)
    made = figures(answered, seconds, [histogram], [errors], 2_000_000, 0.5)
    found: dict[str, Any] = json.loads(json.dumps(made))
    return found


def test_the_rates_of_processes_are_added_and_their_latencies_merged() -> None:
    first = part(100, 2.0, [1_000_000] * 100, {"NOT_COORDINATOR": 1})
    second = part(300, 2.0, [3_000_000] * 300, {"NOT_COORDINATOR": 2, "NO_ANSWER": 1})
    found = merged([first, second])
    assert found.per_second == 200
    assert found.answered == 400
    assert found.errors == {"NOT_COORDINATOR": 3, "NO_ANSWER": 1}
    assert found.p50_ms == pytest.approx(3, rel=0.01)
    assert found.histogram.percentile(0.25) == pytest.approx(1, rel=0.01)
    assert found.megabytes_per_second == 2
    assert found.generator_cores == 0.5


def test_added() -> None:
    assert added([{"A": 1}, {}, {"A": 2, "B": 3}]) == {"A": 3, "B": 3}


# --- comparisons


def test_ratios_of_pairs_and_of_all() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0], paired=True) == [2, 3]
    assert sorted(ratios([2.0, 9.0], [1.0, 3.0], paired=False)) == [2 / 3, 2, 3, 9]
    assert ratios([1.0], [0.0], paired=True) == []


def row(name: str, rates: list[float], skipped: str | None = None, errors: dict[str, int] | None = None) -> Any:
    rounds = [{"per_second": one, "p50_ms": 1000 / one, "p99_ms": 2000 / one} for one in rates]
    return {"workload": name, "skipped": skipped, "errors": errors or {}, "rounds": rounds}


def test_a_comparison_has_the_median_and_the_extremes() -> None:
    first = {"workloads": [row("heartbeat", [100.0, 220.0, 90.0])]}
    second = {"workloads": [row("heartbeat", [100.0, 110.0, 100.0], errors={"NO_ANSWER": 2})]}
    rate, p50, p99 = compare(first, second, paired=True)
    assert (rate["figure"], rate["a"], rate["b"]) == ("req/s", 100, 100)
    assert (rate["ratio"], rate["ratio_min"], rate["ratio_max"]) == (1.0, 0.9, 2.0)
    assert (p50["ratio"], p50["ratio_min"], p50["ratio_max"]) == (1.0, 0.5, 1.111)
    assert p99["figure"] == "p99 ms"
    assert rate["note"] == "B: NO_ANSWER 2"


def test_a_comparison_names_what_one_side_lacks() -> None:
    first = {"workloads": [row("heartbeat", []), row("fetch", [1.0]), row("produce", [], "no leader")]}
    second = {"workloads": [row("heartbeat", [], "no API"), row("produce", [1.0]), row("commit-1", [1.0])]}
    found = {one["workload"]: one["note"] for one in compare(first, second, paired=False)}
    assert found == {
        "heartbeat": "B: no API", "fetch": "B: not measured", "produce": "A: no leader",
        "commit-1": "A: not measured",
    }  # fmt: skip


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(str(path), {"format": "kcoord-bench", "version": 1, "workloads": []})
    assert load(str(path))["workloads"] == []
    for text in ("", "[]", "{}", "\ufffd"):
        path.write_text(text)
        with pytest.raises(NoResults, match="is no file of"):
            load(str(path))
    save(str(path), {"format": "kcoord-bench", "version": 2})
    with pytest.raises(NoResults, match="another version"):
        load(str(path))
