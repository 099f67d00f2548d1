"""Every Triton kernel on this machine's GPU in one call: correctness against float32 first, then median time, share of the
roofline, ratio to torch. `--dry` runs every row tiny in Triton's interpreter on a CPU and times nothing.

    python bench/gpu.py --json FILE            # on a GPU, under ten minutes
    TRITON_INTERPRET=1 python bench/gpu.py --dry
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import torch
import triton
from gpu_attention_rows import attention_rows, store_rows
from gpu_engine_rows import engine_rows
from gpu_model_rows import block_rows, linear_rows, row_wise, step_rows
from gpu_quant_rows import both_sides_rows, mla_rows, moe_rows, weight_only_rows
from gpu_row import Row, Setting, median_us, relative_error
from gpu_sampling_rows import sampling_rows
from octavo.figures import Figure, Figures, figure_of, write_figures
from octavo_gpuworker.kernels.triton.interpreter import interpreted, repair_interpreter

FAMILIES: tuple[Callable[[Setting], Iterator[Row]], ...] = (
    attention_rows,
    store_rows,
    row_wise,
    block_rows,
    linear_rows,
    sampling_rows,
    weight_only_rows,
    both_sides_rows,
    moe_rows,
    mla_rows,
    step_rows,
    engine_rows,
)


def check(row: Row) -> Figure:
    """The row's relative error. AssertionError when it is beyond the row's tolerance: a wrong kernel is not timed."""
    error = relative_error(row.kernel(), row.expected())
    if not error <= row.tolerance:
        raise AssertionError(f"{row.name}: relative error {error:.3g}, at most {row.tolerance:.3g}")
    return Figure(f"{row.name}/error", error, "ratio")


def measure(row: Row) -> list[Figure]:
    """Median time with its share of the floor, and how many times longer each of torch's ways takes."""
    samples = median_us(row.timed or row.kernel)
    timed = figure_of(f"{row.name}/time", samples, "us")
    ratio = timed.value / row.work.floor_us
    figures = [Figure(timed.name, timed.value, "us", timed.n, timed.spread, ratio)]
    for name, call in row.baselines.items():
        other = figure_of(f"{row.name}/{name}", median_us(call), "us")
        figures += [other, Figure(f"{row.name}/vs_{name}", other.value / timed.value, "ratio")]
    return figures


def main(argv: Sequence[str]) -> int:
    """Runs the rows; 1 when a kernel is wrong, 2 when the machine cannot run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dry", action="store_true", help="tiny, on the CPU, under TRITON_INTERPRET=1; correctness only"
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="default: bfloat16, dry: float32")
    parser.add_argument("--only", default="*", help="pattern of row names")
    parser.add_argument("--json", type=Path, help="figures file")
    options = parser.parse_args(argv)
    if options.dry != interpreted() or (not options.dry and not torch.cuda.is_available()):
        print("bench/gpu.py needs a CUDA device; without one: TRITON_INTERPRET=1 python bench/gpu.py --dry")
        return 2
    if options.dry:
        repair_interpreter()
    dtype = getattr(torch, options.dtype or ("float32" if options.dry else "bfloat16"))
    setting = Setting(torch.device("cpu" if options.dry else "cuda"), dtype, options.dry)
    torch.manual_seed(0)
    results: list[Figure] = []
    wrong = 0
    for row in (row for family in FAMILIES for row in family(setting) if fnmatch(row.name, options.only)):
        try:
            figures = [check(row)]
        except AssertionError as error:
            print(f"WRONG {error}", flush=True)
            wrong += 1
            continue
        if not options.dry:
            figures += measure(row)
        results += figures
        print(_line(row, figures), flush=True)
    device = "interpreter" if options.dry else torch.cuda.get_device_name()
    config = {"device": device, "dtype": str(dtype), "torch": torch.__version__, "triton": triton.__version__}
    if options.json is not None:
        write_figures(options.json, Figures("gpu-kernels", tuple(results), config))
    return 1 if wrong else 0


def _line(row: Row, figures: Sequence[Figure]) -> str:
    cells = [
        f"{figure.name.rsplit('/', 1)[1]} {figure.value:.4g}{' us' if figure.unit == 'us' else ''}"
        for figure in figures
    ]
    floors = [f"{100 / figure.floor_ratio:.0f}% of floor" for figure in figures if figure.floor_ratio]
    return f"{row.name:28} floor {row.work.floor_us:9.2f} us  " + "  ".join(cells + floors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
