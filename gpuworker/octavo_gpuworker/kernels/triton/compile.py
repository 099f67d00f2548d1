"""Compiles kernels ahead of time for a GPU that need not be here, and reads registers, spills and memory off the binary.

`python -m octavo_gpuworker.kernels.triton.compile --target sm_90 --json FILE` (also `octavo doctor --kernels --compile sm_90`).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import triton
from octavo.figures import Figure, Figures, write_figures
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_gpuworker.kernels.triton.budget import Resources, over_budget, read_budget, update_budget
from octavo_gpuworker.kernels.triton.occupancy import DEVICES, occupancy
from octavo_gpuworker.kernels.triton.specialize import specialize
from octavo_gpuworker.kernels.triton.variant import Variant
from octavo_gpuworker.kernels.triton.variants import all_variants

MMA: Final = re.compile(r"\b(?:[HIQDB]MMA|HGMMA|IGMMA|QGMMA|UTC[A-Z]*MMA)\b")
"""Tensor core instructions: mma.sync (HMMA, ...), wgmma (HGMMA, ...), tcgen05 (UTCHMMA, ...)."""
LOCAL: Final = re.compile(r"\b(?:LDL|STL)\b")
"""Loads and stores of local memory: what a spilled register becomes."""
FIGURES: Final = {"registers": "count", "spills": "count", "shared_bytes": "B", "occupancy": "ratio", "mma": "count"}


class CompileError(RuntimeError):
    """A kernel that does not compile, or a binary whose resources cannot be read; the message names the row."""


def cuobjdump() -> Path:
    """The disassembler inside the triton wheel."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def _dump(flag: str, cubin: Path) -> str:
    return subprocess.run([cuobjdump(), flag, cubin], capture_output=True, text=True, check=True).stdout


def read_resources(cubin: bytes, shared_bytes: int, warps: int, capability: int) -> Resources:
    """Resources of a cubin. CompileError: cuobjdump prints no usage line, so a spill could go unseen."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage, sass = _dump("--dump-resource-usage", path), _dump("-sass", path)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    if found is None:
        raise CompileError(
            "cuobjdump --dump-resource-usage printed no REG/STACK/SHARED/LOCAL line; is the wheel whole?"
        )
    registers, stack, reserved, local = (int(number) for number in found.groups())
    shared = shared_bytes + reserved
    return Resources(
        registers,
        len(LOCAL.findall(sass)) + stack + local,
        shared,
        round(occupancy(capability, registers, shared, warps), 4),
        len(MMA.findall(sass)),
    )


def compile_variant(variant: Variant, capability: int) -> Resources:
    """Compiles for compute capability `capability` (80, 90, 100). CompileError names the row."""
    launch, row = variant.launch, f"{variant.path}/sm_{capability}"
    source = specialize(launch)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    try:
        compiled = triton.compile(
            ASTSource(launch.kernel, source.signature, source.constants, source.alignments),
            target=GPUTarget("cuda", capability, 32),
            options=options,
        )
        return read_resources(compiled.asm["cubin"], compiled.metadata.shared, launch.warps, capability)
    except CompileError as error:
        raise CompileError(f"{row}: {error}") from error
    except Exception as error:
        raise CompileError(f"{row} does not compile: {type(error).__name__}: {error}") from error


def supports(variant: Variant, capability: int) -> bool:
    """fp8 e4m3 exists from compute capability 8.9 on; the table refuses it below."""
    return capability >= 89 or not variant.fp8


def compile_all(variants: Iterable[Variant], capability: int) -> Iterator[tuple[str, Resources]]:
    """(KERNEL/VARIANT/sm_NN, resources) of each variant that the target supports, one after the other."""
    for variant in variants:
        if supports(variant, capability):
            yield f"{variant.path}/sm_{capability}", compile_variant(variant, capability)


def figures(rows: Mapping[str, Resources], target: str) -> Figures:
    """The rows in the form of design section 13: one result per KERNEL/VARIANT/sm_NN/figure."""
    results = tuple(
        Figure(f"{row}/{figure}", value, FIGURES[figure])
        for row, resources in rows.items()
        for figure, value in asdict(resources).items()
    )
    return Figures("kernels-compile", results, {"target": target, "triton": triton.__version__})


def version() -> str:
    """Triton's version as the budget names it, "3.6"."""
    return ".".join(triton.__version__.split(".")[:2])


def main(argv: Sequence[str]) -> int:
    """Compiles the chosen variants, one line each; 1 when one does not compile, spills, lacks its tensor cores or outgrew the budget."""
    parser = argparse.ArgumentParser(prog="kernels compile", description=__doc__)
    parser.add_argument("--target", default="sm_90", choices=[f"sm_{capability}" for capability in DEVICES])
    parser.add_argument("--json", type=Path, help="figures file for the rows")
    parser.add_argument("--only", action="append", help="pattern of KERNEL/VARIANT, may repeat; default: all")
    parser.add_argument("--list", action="store_true", help="print the variants and compile nothing")
    parser.add_argument("--check", type=Path, help="budget file to compare with")
    parser.add_argument("--budget", type=Path, help="budget file to write the rows into")
    options = parser.parse_args(argv)
    capability = int(options.target.removeprefix("sm_"))
    patterns = options.only or ["*"]
    variants = [v for v in all_variants(capability) if any(fnmatch(v.path, pattern) for pattern in patterns)]
    variants = [variant for variant in variants if supports(variant, capability)]
    if options.list:
        print("\n".join(variant.path for variant in variants))
        return 0
    rows: dict[str, Resources] = {}
    for row, resources in compile_all(variants, capability):
        rows[row] = resources
        print(row, *(f"{figure}={value}" for figure, value in asdict(resources).items()), flush=True)
    if options.json is not None:
        write_figures(options.json, figures(rows, options.target))
    if options.budget is not None:
        update_budget(options.budget, version(), rows, {options.target})
    budget = rows if options.check is None else read_budget(options.check, version())
    problems = over_budget(rows, budget, {variant.path for variant in variants if variant.mma})
    for problem in problems:
        print(f"OVER BUDGET {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
