"""octavo bench cache without a cluster: its rates against a real kvstore and a real worker's transfers, and its arithmetic."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo_cli.cache_bench.bench import CachePlan, check_parts, measure_cache, ttft_figures
from octavo_cli.cache_bench.rates import BLOCKS
from octavo_cli.cache_bench.stores import StoreProbe, cold_read_mb_per_s, drop_page_cache, lone_store
from octavo_cli.main import app
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def test_rates_come_from_the_tiers_they_name_with_floors_beside_them() -> None:
    said: list[str] = []
    figures, notes = measure_cache(CachePlan(("rates",), 1, 1), [], said.append)
    found = {item.name: item for item in figures.results}
    assert set(found) == {
        "restore/dram", "restore/nvme", "floor/memcpy", "floor/memcpy_shared", "floor/file_read", "store/dram",
    }  # fmt: skip
    assert all(item.value > 0 and item.unit == "MB/s" for item in figures.results)
    assert found["restore/dram"].floor_ratio and found["restore/nvme"].floor_ratio
    assert notes == [] and str(BLOCKS) in said[0]


def test_what_the_rows_are_held_against_each_other_for() -> None:
    ms = {
        "cold": [100.0, 102.0, 98.0],
        "off": [100.0, 100.0, 100.0],
        "hit/hbm": [10.0, 12.0, 11.0],
        "hit/dram": [12.0, 14.0, 13.2],
        "hit/nvme": [30.0, 36.0, 33.0],
        "thrash/tier": [20.0, 21.0, 22.0],
    }
    # 64 blocks of 109,375 bytes: 7 MB at 0.7 x 1,000 MB/s are 10 ms
    found = {item.name: item.value for item in ttft_figures(ms, {"floor/file_read": 1000.0}, 109_375)}
    assert found["ttft_p50/cold"] == 100.0 and found["ttft_p99/hit/hbm"] == pytest.approx(11.98)
    assert found["cold_overhead"] == pytest.approx(0.0, abs=1e-9)
    assert found["hbm_over_cold"] == pytest.approx(0.11) and found["dram_over_hbm"] == pytest.approx(1.2)
    assert found["nvme_over_bound"] == pytest.approx(33 / (11 + 10 + 5))
    assert found["thrash/tier"] == 21.0 and "ttft_p50/thrash/tier" not in found
    assert {item.name for item in ttft_figures({}, {}, 0)} == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "rates,tape"], "'tape' is unknown; use rates, "),
        (["--rounds", "0"], "rounds"),
        (["--json", "/nowhere/at/all.json"], "--json"),
    ],
)
def test_bad_arguments_end_with_code_2_and_the_fix(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "cache", *words])
    shown = result.output + str(result.exception)
    assert result.exit_code != 0 and said in shown


def test_parts_are_checked() -> None:
    assert check_parts(["rates"]) == ("rates",)
    with pytest.raises(OctavoError) as caught:
        check_parts(["x"])
    assert caught.value.field == "parts"


def test_a_store_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    no_folder = ["--cache.nvme_path", str(tmp_path / "file"), "--cache.nvme_bytes", str(2**26)]
    with (
        pytest.raises(OctavoError, match=r"(?s)did not start: .*cannot start: cache\.nvme_path"),
        lone_store(tmp_path, no_folder),
    ):
        pass


def test_a_store_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    with StoreProbe(f"unix:{tmp_path}/none.sock") as probe, pytest.raises(OctavoError, match=r"none\.sock"):
        probe.figures()


def test_cold_reads_read_everything(tmp_path: Path) -> None:
    assert cold_read_mb_per_s(tmp_path / "plain.bin", 3_000_000) > 0
    assert (tmp_path / "plain.bin").stat().st_size == 3_000_000
    (tmp_path / "slab-1.bin").write_bytes(b"x" * 5000)
    drop_page_cache(tmp_path)
    assert json.dumps((tmp_path / "slab-1.bin").read_bytes().decode()) == json.dumps("x" * 5000)
