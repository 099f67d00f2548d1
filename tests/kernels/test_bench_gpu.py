"""bench/gpu.py --dry: every row of the GPU benchmark runs tiny in the interpreter and equals its float32 answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from octavo.figures import read_figures

ROOT = Path(__file__).parents[2]
ROWS = {
    "decode/b3/c40", "decode_int8/b3/c40", "decode_fp8/b3/c40", "decode/b1/c70", "decode_smollm2", "verify4", "prefill/50",
    "prefill_chunk", "prefill_window", "mixed", "store_kv/2", "store_kv/9", "store_kv_int8/2", "store_kv_int8/9",
    "add_rms_norm/2", "add_rms_norm/3", "silu_mul/2", "silu_mul/3", "gelu_mul/2", "gelu_mul/3", "soft_cap",
    "gather_blocks", "scatter_blocks", "linear/1", "linear/17", "linear/70", "decode_step_8b/b1", "decode_step_8b/b2",
    "engine_3_steps_8b/b2",
    "sample/greedy", "sample/plain", "sample/top_p", "sample/top_k_p", "sample/everything",
    *(f"quant_linear/{form}/{rows}" for form in ("int4_g128", "int4_g32_zero", "int8_row") for rows in (1, 5, 17, 70)),
    "quant_linear/int8_int8/70", "quant_linear/fp8_fp8/70", "quantize_rows/int8/70", "moe/5", "moe/40",
    "mla_decode/b3/c40", "mla_decode/b1/c70",
}  # fmt: skip


def bench(*words: str, interpret: str = "1") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITON_INTERPRET": interpret, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, ROOT / "bench" / "gpu.py", *words], env=env, capture_output=True, text=True, timeout=110
    )


def test_every_row_runs_dry_and_is_right(tmp_path) -> None:
    done = bench("--dry", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = read_figures(tmp_path / "figures.json")
    errors = {item.name.removesuffix("/error"): item.value for item in figures.results}
    assert errors.keys() >= ROWS
    assert all(item.name.endswith("/error") for item in figures.results), "an interpreter's time means nothing"
    assert max(errors.values()) < 1e-2


@pytest.mark.parametrize(("words", "interpret"), [((), "0"), (("--dry",), "0"), ((), "1")])
def test_a_machine_that_cannot_run_it_is_told_how(words, interpret) -> None:
    done = bench(*words, interpret=interpret)
    assert done.returncode == 2
    assert "without one: TRITON_INTERPRET=1 python bench/gpu.py --dry" in done.stdout
