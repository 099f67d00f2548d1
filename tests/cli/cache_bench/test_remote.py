"""The figures of the remote stream."""

from __future__ import annotations

import pytest
from octavo_cli.cache_bench.remote import measure_remote, remote_figures


def test_the_ratio_is_taken_round_by_round() -> None:
    restore, floor = remote_figures([100.0, 300.0, 500.0], [200.0, 300.0, 400.0])
    assert (restore.name, restore.value, restore.unit, restore.n) == ("restore/remote", 300.0, "MB/s", 3)
    assert restore.floor_ratio == pytest.approx(1.0)
    assert (floor.name, floor.value) == ("floor/chunk_stream", 300.0)


def test_two_processes_measure_each_other() -> None:
    told: list[str] = []
    restore, floor = measure_remote(2, told.append)
    assert restore.value > 0 and floor.value > 0 and restore.n == floor.n == 2
    assert told == ["remote stream: 64 blocks of 368640 bytes, 2 rounds"]
