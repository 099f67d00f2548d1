from __future__ import annotations

import logging

import pytest
import torch
from octavo_gpuworker.kernels import OPERATIONS, describe, select_kernels
from octavo_gpuworker.kernels.table import Implementation, KernelTable, everywhere

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ROWS = (
    Implementation("torch", lambda *_: "oracle", everywhere),
    Implementation(
        "triton",
        lambda *_: "product",
        lambda device, dtype: "" if device.type == "cuda" else "needs a GPU",
        lambda weight: weight * 2,
    ),
)


def table(device: torch.device, prefer: str) -> KernelTable:
    return KernelTable({"linear": ROWS}, device, torch.float32, prefer)


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
    assert all("not triton: not written for this operation" in line for line in lines)
    assert [f"kernel {line}" for line in chosen.describe()] == lines


def test_auto_prefers_the_first_that_can_run_and_says_why_not() -> None:
    cpu = table(CPU, "auto")
    assert cpu.linear() == "oracle"
    reason = "not written for this operation"
    assert cpu.describe() == [f"linear: torch (not triton: needs a GPU; not native: {reason}; not onednn: {reason})"]
    gpu = table(GPU, "auto")
    assert gpu.linear() == "product"
    assert gpu.describe() == ["linear: triton"]


def test_a_named_backend_is_taken_where_it_exists() -> None:
    forced = table(GPU, "torch")
    assert forced.linear() == "oracle"
    assert "not triton: torch was asked for" in forced.describe()[0]
    mixed = {"linear": ROWS, "rms_norm": (Implementation("native", lambda *_: "library", everywhere), *ROWS)}
    both = KernelTable(mixed, CPU, torch.float32, "native")
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


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(
        ValueError, match="kernels is 'triton', but linear cannot use it: needs a GPU; set kernels to auto"
    ):
        table(CPU, "triton")
    with pytest.raises(ValueError, match="kernels is 'native', but no operation has such an implementation yet"):
        table(CPU, "native")
    with pytest.raises(ValueError, match="kernels is 'magic'; expected auto, triton, native, onednn, torch"):
        table(CPU, "magic")
