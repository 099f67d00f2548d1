from __future__ import annotations

import logging

import pytest
import torch
from octavo_gpuworker.kernels import OPERATIONS, describe, select_kernels
from octavo_gpuworker.kernels.needs import KernelNeeds
from octavo_gpuworker.kernels.table import Implementation, KernelTable


def only_on_gpu(needs: KernelNeeds) -> str:
    return "" if needs.device.type == "cuda" else "needs a GPU"


def small_heads(needs: KernelNeeds) -> str:
    return "" if needs.head_dim <= 64 else f"head dim {needs.head_dim} is more than 64"


ROWS = (
    Implementation("torch", lambda *_: "oracle"),
    Implementation("triton", lambda *_: "product", only_on_gpu, small_heads),
)
GPU = torch.device("cuda")


def test_every_operation_has_its_oracle() -> None:
    assert all("torch" in [row.name for row in rows] for rows in OPERATIONS.values())
    assert len(describe()) == len(OPERATIONS)


def test_selection_logs_one_line_per_operation_with_reasons(caplog) -> None:
    with caplog.at_level(logging.INFO):
        table = select_kernels("cpu")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(OPERATIONS)
    assert all("not triton: " in line and ": torch" in line for line in lines)
    assert [f"kernel {line}" for line in table.describe()] == lines


def test_auto_prefers_the_first_that_can_run_and_says_why_not() -> None:
    cpu = KernelTable({"linear": ROWS}, torch.device("cpu"), "auto")
    assert cpu.linear() == "oracle"
    assert cpu.describe() == ["linear: torch (not triton: needs a GPU; not native: not written for this operation)"]
    gpu = KernelTable({"linear": ROWS}, GPU, "auto")
    assert gpu.linear() == "product"
    assert gpu.describe() == ["linear: triton"]
    forced = KernelTable({"linear": ROWS}, GPU, "torch")
    assert forced.linear() == "oracle"
    assert "not triton: torch was asked for" in forced.describe()[0]
    assert forced.kernel_calls == {("linear", "torch"): 1}


@pytest.mark.parametrize("prefer", ["auto", "triton"])
def test_a_shape_that_is_not_taken_falls_back_with_one_warning(prefer, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        table = KernelTable({"linear": ROWS}, KernelNeeds(GPU, head_dim=80), prefer)
    assert [record.getMessage() for record in caplog.records] == [
        "kernel linear: torch (fallback; not triton: head dim 80 is more than 64; not native: not written for this operation)"
    ]
    assert table.linear() == "oracle"
    assert table.kernel_calls_by_reason == {("linear", "torch", "head dim 80 is more than 64"): 1}


def test_strict_refuses_a_fallback_by_name() -> None:
    with pytest.raises(ValueError, match="'strict', but linear would fall back: head dim 80 is more than 64"):
        KernelTable({"linear": ROWS}, KernelNeeds(GPU, head_dim=80), "strict")
    with pytest.raises(ValueError, match="'strict', but linear cannot use Triton: needs a GPU"):
        KernelTable({"linear": ROWS}, torch.device("cpu"), "strict")
    with pytest.raises(ValueError, match="would fall back: not written for this operation"):
        KernelTable({"linear": ROWS[:1]}, GPU, "strict")
    table = KernelTable({"linear": ROWS}, GPU, "strict")
    assert table.linear() == "product"
    assert table.kernel_calls_by_reason == {("linear", "triton", "chosen"): 1}


def test_a_row_that_gives_way_runs_only_when_asked_for() -> None:
    rows = (ROWS[0], Implementation("triton", lambda *_: "product", gives_way="slower"))
    for prefer, result in {"auto": "oracle", "strict": "oracle", "triton": "product"}.items():
        table = KernelTable({"linear": rows}, GPU, prefer)
        assert table.linear() == result
        assert not table.choices[0].fallback
    assert "not triton: slower" in KernelTable({"linear": rows}, GPU, "auto").describe()[0]


def test_a_function_named_by_path_is_imported_when_chosen() -> None:
    rows = (Implementation("torch", "math:hypot"), Implementation("triton", "no.such.module:kernel", only_on_gpu))
    assert KernelTable({"linear": rows}, torch.device("cpu"), "auto").linear(3, 4) == 5


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(ValueError, match="kernels is 'native', but linear cannot use it: not written"):
        select_kernels("cpu", "native")
    with pytest.raises(ValueError, match="kernels is 'magic'; expected auto, triton, native, torch, strict"):
        select_kernels("cpu", "magic")
