"""From a launch to what Triton compiles for it: the same signature, constants and alignments as its JIT would derive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.triton.launch import Launch

POINTERS: Final = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}
ALIGNED: Final = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True)
class Specialized:
    """Arguments of triton.compiler.ASTSource."""

    signature: dict[str, str]
    constants: dict[str, Any]
    alignments: dict[tuple[int], list[list[Any]]]

    @property
    def key(self) -> str:
        """Equal for launches that share a binary (together with kernel, warps and stages)."""
        aligned = sorted(index for (index,) in self.alignments)
        return f"{self.signature} {self.constants} {aligned}"


def specialize(launch: Launch) -> Specialized:
    """What the JIT derives from the arguments; tensors count as 16-byte aligned, as torch allocates them.

    TypeError: an argument's type is unknown here, or the launch names an argument that the kernel lacks.
    """
    found = Specialized({}, {}, {})
    left = {**launch.arguments, **launch.constants}
    for index, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, left.pop(parameter.name)
        if parameter.is_constexpr or value is None or (_specializes(parameter, value) and value == 1):
            found.signature[name] = "constexpr"
            found.constants[name] = value
        elif isinstance(value, Tensor):
            found.signature[name] = POINTERS[value.dtype]
            found.alignments[(index,)] = ALIGNED
        elif isinstance(value, bool):
            found.signature[name] = "u1"
        elif isinstance(value, int):
            found.signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if _specializes(parameter, value) and value % 16 == 0:
                found.alignments[(index,)] = ALIGNED
        elif isinstance(value, float):
            found.signature[name] = "fp32"
        else:
            raise TypeError(f"{launch.name}: argument {name} is a {type(value).__name__}")
    if left:
        raise TypeError(f"{launch.name}: the kernel has no argument {', '.join(sorted(left))}")
    return found


def _specializes(parameter: Any, value: object) -> bool:
    return type(value) is int and not parameter.do_not_specialize


def binary_key(launch: Launch) -> str:
    """Equal exactly for launches that run the same binary."""
    return f"{launch.name} {launch.warps} {launch.stages} {specialize(launch).key}"
