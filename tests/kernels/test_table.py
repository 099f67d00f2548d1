from __future__ import annotations

import logging

import pytest
import torch
from octavo_gpuworker.kernels import OPERATIONS, describe, select_kernels
from octavo_gpuworker.kernels.table import Implementation, KernelTable, everywhere


def only_on_gpu(device: torch.device) -> str:
    return "" if device.type == "cuda" else "needs a GPU"


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
    rows = (
        Implementation("torch", lambda *_: "oracle", everywhere),
        Implementation("triton", lambda *_: "product", only_on_gpu),
    )
    cpu = KernelTable({"linear": rows}, torch.device("cpu"), "auto")
    assert cpu.linear() == "oracle"
    assert cpu.describe() == ["linear: torch (not triton: needs a GPU; not native: not written for this operation)"]
    gpu = KernelTable({"linear": rows}, torch.device("cuda"), "auto")
    assert gpu.linear() == "product"
    assert gpu.describe() == ["linear: triton"]
    forced = KernelTable({"linear": rows}, torch.device("cuda"), "torch")
    assert forced.linear() == "oracle"
    assert "not triton: torch was asked for" in forced.describe()[0]
    assert forced.kernel_calls == {("linear", "torch"): 1}


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(ValueError, match="kernels is 'triton', but linear cannot use it: not written"):
        select_kernels("cpu", "triton")
    with pytest.raises(ValueError, match="kernels is 'magic'; expected auto, triton, native, torch"):
        select_kernels("cpu", "magic")
