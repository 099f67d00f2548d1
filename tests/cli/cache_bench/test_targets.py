"""Bounds beside figures: met, missed, and not measured are three things."""

from __future__ import annotations

from octavo.figures import Figure
from octavo_cli.cache_bench.targets import TARGETS, target_lines


def test_each_bound_has_a_verdict() -> None:
    figures = [
        Figure("hbm_over_cold", 0.1, "ratio", 6),
        Figure("dram_over_hbm", 1.4, "ratio", 6),
        Figure("restore/dram", 15_000.0, "MB/s", 9, floor_ratio=1.25),
        Figure("restore/nvme", 900.0, "MB/s", 9, floor_ratio=2.0),
        Figure("cold_overhead", -0.01, "ratio", 6),
    ]
    rows = {line.rpartition("(")[2].partition(")")[0]: line for line in target_lines(figures)[2:]}
    assert set(rows) == {target.figure for target in TARGETS}
    assert rows["hbm_over_cold"].endswith("| 0.100 | <= 0.15 | met |")
    assert rows["dram_over_hbm"].endswith("| 1.400 | <= 1.3 | MISSED |")
    assert rows["restore/dram"].endswith("| 0.800 | >= 0.7 | met |")
    assert rows["restore/nvme"].endswith("| 0.500 | >= 0.7 | MISSED |")
    assert rows["restore/remote"].endswith("| - | >= 0.7 | not measured |")
    assert rows["cold_overhead"].endswith("| met |")
