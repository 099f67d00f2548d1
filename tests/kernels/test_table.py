from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from octavo_gpuworker.kernels import OPERATIONS, describe, select_kernels
from octavo_gpuworker.kernels.needs import KernelNeeds
from octavo_gpuworker.kernels.table import Implementation, KernelTable


def only_on_gpu(needs: KernelNeeds) -> str:
    return "" if needs.device.type == "cuda" else "needs a GPU"


def small_heads(needs: KernelNeeds) -> str:
    return "" if needs.head_dim <= 64 else f"head dim {needs.head_dim} is more than 64"


CPU, GPU = KernelNeeds(torch.device("cpu")), KernelNeeds(torch.device("cuda"))
ROWS = (
    Implementation("torch", lambda *_: "oracle"),
    Implementation("triton", lambda *_: "product", only_on_gpu, small_heads, lambda weight: weight * 2),
)
NOT_WRITTEN = "not native: not written for this operation; not onednn: not written for this operation"


def table(needs: KernelNeeds, prefer: str) -> KernelTable:
    return KernelTable({"linear": ROWS}, needs, prefer)


def test_every_operation_has_its_oracle() -> None:
    assert all("torch" in [row.name for row in rows] for rows in OPERATIONS.values())
    assert len(describe()) == len(OPERATIONS)
    forced = select_kernels("cpu", prefer="torch")
    assert {name for _, name in forced.kernel_calls} == {"torch"}


def test_selection_logs_one_line_per_operation_with_reasons(caplog) -> None:
    with caplog.at_level(logging.INFO):
        chosen = select_kernels("cpu", torch.float32)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(OPERATIONS)
    assert all("not triton: it needs a CUDA device, this is cpu" in line for line in lines)
    assert not any("fallback" in line for line in lines), "a CPU is no place for Triton, so this is no fallback"
    assert [f"kernel {line}" for line in chosen.describe()] == lines


def test_auto_prefers_the_first_that_can_run_and_says_why_not() -> None:
    cpu = table(CPU, "auto")
    assert cpu.linear() == "oracle"
    assert cpu.describe() == [f"linear: torch (not triton: needs a GPU; {NOT_WRITTEN})"]
    gpu = table(GPU, "auto")
    assert gpu.linear() == "product"
    assert gpu.describe() == ["linear: triton"]


def test_a_named_backend_is_taken_where_it_exists() -> None:
    forced = table(GPU, "torch")
    assert forced.linear() == "oracle"
    assert "not triton: torch was asked for" in forced.describe()[0]
    mixed = {"linear": ROWS, "rms_norm": (Implementation("native", lambda *_: "library"), *ROWS)}
    both = KernelTable(mixed, CPU, "native")
    assert both.rms_norm() == "library"
    assert both.linear() == "oracle", "no native row: the next that can run"


def test_calls_are_counted_per_table() -> None:
    first, second = table(CPU, "auto"), table(CPU, "auto")
    first.linear()
    first.linear()
    assert first.kernel_calls == {("linear", "torch"): 2}
    assert second.kernel_calls == {("linear", "torch"): 0}


def test_weights_are_prepared_for_the_chosen_row() -> None:
    weight = torch.ones(2)
    assert table(CPU, "auto").prepare("linear", weight) is weight
    assert table(GPU, "auto").prepare("linear", weight).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("prefer", ["auto", "triton"])
def test_a_shape_that_is_not_taken_falls_back_with_one_warning(prefer, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        fallen = table(replace(GPU, head_dim=80), prefer)
    assert [record.getMessage() for record in caplog.records] == [
        "kernel linear: torch (fallback; not triton: head dim 80 is more than 64; " + NOT_WRITTEN + ")"
    ]
    assert fallen.linear() == "oracle"
    assert fallen.kernel_calls_by_reason == {("linear", "torch", "head dim 80 is more than 64"): 1}


def test_strict_refuses_a_fallback_by_name() -> None:
    with pytest.raises(ValueError, match="'strict', but linear would fall back: head dim 80 is more than 64"):
        table(replace(GPU, head_dim=80), "strict")
    with pytest.raises(ValueError, match="'strict', but linear cannot use it: needs a GPU"):
        table(CPU, "strict")
    with pytest.raises(ValueError, match="would fall back: not written for this operation"):
        KernelTable({"linear": ROWS[:1]}, GPU, "strict")
    strict = table(GPU, "strict")
    assert strict.linear() == "product"
    assert strict.kernel_calls_by_reason == {("linear", "triton", "chosen"): 1}


def test_a_row_that_gives_way_runs_only_when_asked_for() -> None:
    rows = (ROWS[0], Implementation("triton", lambda *_: "product", gives_way="slower"))
    for prefer, result in {"auto": "oracle", "strict": "oracle", "triton": "product"}.items():
        selected = KernelTable({"linear": rows}, GPU, prefer)
        assert selected.linear() == result
        assert not selected.choices[0].fallback
    assert "not triton: slower" in KernelTable({"linear": rows}, GPU, "auto").describe()[0]


def test_a_function_named_by_path_is_imported_when_chosen() -> None:
    rows = (Implementation("torch", "math:hypot"), Implementation("triton", "no.such.module:kernel", only_on_gpu))
    assert KernelTable({"linear": rows}, CPU, "auto").linear(3, 4) == 5


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(ValueError, match="'triton', but linear cannot use it: needs a GPU; set kernels to auto"):
        table(CPU, "triton")
    with pytest.raises(ValueError, match="kernels is 'native', but no operation has such an implementation yet"):
        table(CPU, "native")
    with pytest.raises(ValueError, match="kernels is 'magic'; expected auto, triton, native, onednn, torch, strict"):
        table(CPU, "magic")
