"""Triton's interpreter: whether this process uses it, and the repairs that triton 3.6 and 3.9 need beside numpy 2.4."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
from numpy.typing import NDArray


def interpreted() -> bool:
    """True when kernels of this process run in numpy (TRITON_INTERPRET=1 before triton was imported)."""
    return bool(triton.knobs.runtime.interpret)


def _high_product(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Upper halves of 128-bit products; the interpreter's own makes a Python integer of each element."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    crossed = (a0 * b0 >> half) + (a1 * b0 & low) + (a0 * b1 & low)
    result: NDArray[np.uint64] = a1 * b1 + (a1 * b0 >> half) + (a0 * b1 >> half) + (crossed >> half)
    return result


def repair_interpreter() -> None:
    """Lets a loop bound be a tensor, and a mask be integers. Idempotent.

    numpy 2.4 refuses int() of a [1] array, which triton before 3.9 relies on; 3.9 refuses masks that are 0 and 1 in an integer type,
    which its own `&` of a block and a scalar makes.
    """
    from triton.runtime import interpreter

    interpreter.np_umulhi_u64 = _high_product
    original = interpreter._patch_lang_tensor
    if getattr(original, "repairs_index", False):
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        return load(self, ptrs, _boolean(mask), *rest)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, ptrs, value, _boolean(mask), *rest)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    patch.repairs_index = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch


def _boolean(mask: Any) -> Any:
    mask.data = mask.data.astype(bool, copy=False)
    return mask
