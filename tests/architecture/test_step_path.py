"""No module that a GPU step passes reads the device's memory back, but for the one place that waits for the drawn tokens."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "gpuworker/octavo_gpuworker"
STEP_PATH = (
    "backends/torch_backend.py",
    "batch.py",
    "device_sampler.py",
    "engine.py",
    "graphs.py",
    "kernels/attention_plan.py",
    "kernels/paged_batch.py",
    "kernels/table.py",
    "kernels/triton/*.py",
    "model/decoder.py",
    "model/inputs.py",
    "model/latent_attention.py",
    "model/projection.py",
    "pipeline.py",
    "sequence.py",
    "step_buffer.py",
)
WAITS = {"item", "cpu", "tolist", "numpy", "synchronize", "nonzero", "is_nonzero"}
"""Methods that make the host wait for the device (or, of a numpy array, look as if they did)."""
ALLOWED = {
    ("backends/torch_backend.py", "logits", "cpu"): "benchmarks and tests only",
    ("backends/torch_backend.py", "logits", "numpy"): "benchmarks and tests only",
    ("backends/torch_backend.py", "step_inputs", "tolist"): "numpy's, in host memory",
    ("device_sampler.py", "read_drawn", "synchronize"): "the one wait of a step, for the one copy of its result",
    ("device_sampler.py", "read_drawn", "numpy"): "of the copy in host memory",
    ("device_sampler.py", "read_drawn", "tolist"): "of the copy in host memory",
    ("graphs.py", "_moved", "numpy"): "inputs in host memory, before their copy",
    ("step_buffer.py", "pack", "numpy"): "the pinned source of a copy",
    ("kernels/attention_plan.py", "plan_attention", "tolist"): "where the caller gives no host copy of the lengths; the engine does",
    ("kernels/attention_plan.py", "_decode_group", "nonzero"): "the torch twin's groups; Triton does not ask for them",
}  # fmt: skip


OFF_THE_PATH = {"kernels/triton/interpreter.py", "kernels/triton/compile.py"}


def files() -> list[Path]:
    found = [path for pattern in STEP_PATH for path in sorted(WORKER.glob(pattern))]
    return [path for path in found if str(path.relative_to(WORKER)) not in OFF_THE_PATH]


def waits(source: str) -> list[tuple[str, str, int]]:
    """(function, method, line) of every call of a method in WAITS."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                found.append((function.name, node.func.attr, node.lineno))
    return found


def test_the_step_path_waits_in_one_place() -> None:
    unexpected, used = [], set()
    for path in files():
        name = str(path.relative_to(WORKER))
        for function, method, line in waits(path.read_text(encoding="utf-8")):
            key = (name, function, method)
            used.add(key)
            if key not in ALLOWED:
                unexpected.append(f"{name}:{line} {function} calls .{method}()")
    assert unexpected == []
    assert used == set(ALLOWED), "an allowance that nothing needs any more"


def test_every_pattern_names_a_file() -> None:
    assert all(list(WORKER.glob(pattern)) for pattern in STEP_PATH)


@pytest.mark.parametrize("line", ["x.item()", "y = f(x.cpu())", "torch.cuda.synchronize()", "x.sum().tolist()"])
def test_a_wait_is_found(line) -> None:
    assert len(waits(f"def step(x):\n    {line}\n")) == 1
