"""Triton's interpreter: whether this process uses it, and a repair that triton 3.6 needs beside numpy 2.4."""

from __future__ import annotations

from typing import Any

import triton


def interpreted() -> bool:
    """True when kernels of this process run in numpy (TRITON_INTERPRET=1 before triton was imported)."""
    return bool(triton.knobs.runtime.interpret)


def repair_interpreter() -> None:
    """Lets a loop bound be a tensor: numpy 2.4 refuses int() of a [1] array, which triton before 3.9 relies on. Idempotent."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if getattr(original, "repairs_index", False):
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch.repairs_index = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch
