"""Ahead-of-time compile: what the table can choose is what is compiled, and no binary outgrows its committed budget."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from octavo_gpuworker.kernels.triton.budget import Resources, over_budget, read_budget, update_budget
from octavo_gpuworker.kernels.triton.occupancy import occupancy

# Shapes that no list names: each launch of the other families must run a listed binary too.
OTHER_SHAPES = """
import sys, torch
from octavo_gpuworker.kernels.moe import MoeWeights
from octavo_gpuworker.kernels.triton import model_variants, sampling_variants, variants
from octavo_gpuworker.kernels.triton.moe import moe_launches
from octavo_gpuworker.kernels.triton.quant_gemm import weight_only_launch
from octavo_gpuworker.kernels.triton.sampling import sample_launches
from octavo_gpuworker.kernels.triton.specialize import binary_key
listed = {binary_key(v.launch) for v in variants.all_variants(90)}
launches = []
for vocab in (32000, 49152, 151936, 262144, 151643):
    for edited, logprobs in ((False, -1), (True, 1), (True, 20)):
        inputs = sampling_variants.sample_inputs(7, vocab, edited, logprobs)
        launches += sample_launches(torch.empty(7, vocab, device="meta"), inputs)[1]
for dtype in variants.HALVES:
    def empty(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")
    for rows in (1, 2, 3, 5, 8, 9, 16, 17, 64, 65, 5000):
        for form in ("int4", "int4_zero", "int8", "int8_row"):
            weight = model_variants._weight(28672, 4096, form)
            launches += [weight_only_launch(empty(rows, 28672), empty(rows, 4096), weight, bias) for bias in (None, empty(28672))]
    for experts, top_k in ((8, 2), (60, 4), (64, 6), (128, 8), (256, 8)):
        for tokens in (1, 33, 4096):
            weights = MoeWeights(empty(experts, 2816, 2048), empty(experts, 2048, 1408), top_k)
            launches += moe_launches(empty(tokens, 2048), empty(tokens, 2048), empty(tokens, experts, dtype=torch.float32), weights)
missing = sorted({launch.name for launch in launches if binary_key(launch) not in listed})
assert not missing, missing
print(len(launches), "launches")
"""

BUDGET = Path(__file__).with_name("budget.json")
INSTALLED = ".".join(version("triton").split(".")[:2])
TARGETS = ("sm_80", "sm_90", "sm_100")
SUBSET = {
    "sm_90": (
        "paged_decode/bf16-d64-m16*", "paged_decode/bf16-d128-m16*", "paged_decode/bf16-kv_int8-d128-m16-split",
        "paged_decode/bf16-kv_fp8-d128-m64", "paged_decode_reduce/bf16-d128", "paged_prefill/bf16-d128-m128*",
        "paged_prefill/bf16-kv_int8-d64-m128", "store_kv/bf16-d128-t1*", "store_kv/bf16-kv_fp8-d64-t8",
        "rms_norm/bf16-w4096*", "gated_mul/bf16*", "soft_cap/bf16", "move_blocks/*", "linear/bf16-m16", "linear/bf16-m128",
        "sample_search/any", "sample_draw/any", "quant_gemv/bf16-int4-m1", "quant_gemm/bf16-int4-m128", "scaled_gemm/fp8-bf16-m128",
        "moe_grouped_gemm/bf16-m64-gather", "mla_decode/bf16-d512-h16-split",
    ),
    "sm_80": ("paged_decode/bf16-d128-m16", "paged_prefill/bf16-d128-m128", "paged_decode/fp16-kv_int8-d64-m32"),
    "sm_100": ("paged_decode/bf16-d128-m16", "paged_prefill/bf16-d128-m128", "store_kv/bf16-kv_fp8-d64-t8"),
}  # fmt: skip
"""What every run compiles; `make soak` compiles all."""

# Each accepted shape, GQA ratio, block size and dtype makes launches; each launch must be of a listed variant, and one
# variant must be one binary.
LISTED = """
import sys
from octavo_gpuworker.kernels.needs import KernelNeeds
from octavo_gpuworker.kernels.triton import requirements, variants
from octavo_gpuworker.kernels.triton.specialize import binary_key
capability = int(sys.argv[1])
listed = {binary_key(v.launch): v.path for v in variants.all_variants(capability)}
assert len(set(listed.values())) == len(listed), "two binaries share a name"
seen = set()
for needs in variants.choosable(groups=(1, 2, 3, 4, 5, 6, 7, 8, 12, 16)):
    needs = variants.replace(needs, capability=capability)
    families = [variants.attention_variants(needs, capability)] if not requirements.attention(needs) else []
    families += [variants.store_kv_variants(needs)] if not requirements.paged(needs) and not needs.soft_cap else []
    for variant in (v for family in families for v in family):
        key = binary_key(variant.launch)
        assert listed.get(key) == variant.path, variant.path
        seen.add(variant.path)
for dtype in variants.HALVES:
    # The latent attention's reduce is paged_decode's at another width.
    seen |= {v.path for v in variants.mla_variants(dtype) if v.launch.name == "paged_decode_reduce"}
paged = {p for p in listed.values() if p.split("/")[0] in ("paged_decode", "paged_prefill", "paged_decode_reduce", "store_kv")}
supported = {v.path for v in variants.all_variants(capability) if capability >= 89 or not v.fp8}
assert seen == paged & supported, paged & supported ^ seen
import itertools, torch
accepted = set()
dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.float8_e4m3fn)
for dtype, kv, dim, group, block in itertools.product(dtypes, dtypes, range(16, 272, 16), (1, 3, 4, 8), (8, 16, 32, 64)):
    needs = KernelNeeds(torch.device("cuda"), dtype, kv, dim, 2 * group, 2, block, capability=capability)
    if not requirements.attention(needs):
        accepted.add((dtype, kv, dim, group, block))
names = ("dtype", "kv_dtype", "head_dim", "group", "block_tokens")
choosable = {tuple(getattr(n, name) for name in names) for n in variants.choosable() if not n.soft_cap}
assert accepted == {c for c in choosable if capability >= 89 or c[1] != torch.float8_e4m3fn}, "the table takes other shapes"
print(len(accepted), "shapes")
"""


def python(*words: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """A process without the interpreter that other tests of this session switch on."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=timeout)


def compile_kernels(*words: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    return python("-m", "octavo_gpuworker.kernels.triton.compile", *words, timeout=timeout)


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_table_can_choose_is_what_is_listed(target) -> None:
    done = python("-c", LISTED, target.removeprefix("sm_"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 3 * 4 * 3 * 5


def test_other_shapes_run_listed_binaries() -> None:
    done = python("-c", OTHER_SHAPES)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 300


@pytest.mark.parametrize("target", TARGETS)
def test_the_budget_has_exactly_the_listed_rows(target) -> None:
    listed = compile_kernels("--list", "--target", target).stdout.split()
    budget = read_budget(BUDGET, INSTALLED)
    assert {row for row in budget if row.endswith(f"/{target}")} == {f"{path}/{target}" for path in listed}


def test_nothing_spills_under_the_reference_compiler() -> None:
    """Triton 3.6 is what tiles were chosen with; a newer one may move a register to memory, and its rows say how often."""
    assert not [row for row, held in read_budget(BUDGET, "3.6").items() if held.spills]
    newer = read_budget(BUDGET, "3.9")
    spilling = [held.spills for held in newer.values() if held.spills]
    assert len(spilling) <= 0.03 * len(newer) and max(spilling) < 40


@pytest.mark.parametrize("target", TARGETS)
def test_a_part_of_the_kernels_stays_within_its_budget(target) -> None:
    only = [word for pattern in SUBSET[target] for word in ("--only", pattern)]
    done = compile_kernels("--target", target, "--check", str(BUDGET), *only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= len(SUBSET[target])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_all_kernels_stay_within_their_budget(target) -> None:
    done = compile_kernels("--target", target, "--check", str(BUDGET), timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr


ROW = "paged_decode/bf16-d64-m16/sm_90"
HELD = Resources(registers=110, spills=0, shared_bytes=20000, occupancy=0.25, mma=16)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"registers": 111}, f"{ROW}/registers: 111, the budget is 110"),
        ({"spills": 1}, f"{ROW}/spills: 1, the budget is 0"),
        ({"shared_bytes": 20016}, f"{ROW}/shared_bytes: 20016, the budget is 20000"),
        ({"occupancy": 0.1875}, f"{ROW}/occupancy: 0.1875, the budget is 0.25"),
        ({"mma": 0}, f"{ROW}/mma: 0, its product must use tensor cores"),
    ],
)
def test_the_row_that_grew_is_named(change, line) -> None:
    now = dataclasses.replace(HELD, **change)
    assert over_budget({ROW: now}, {ROW: HELD}, {"paged_decode/bf16-d64-m16"})[0] == line


def test_a_row_within_its_budget_and_one_without() -> None:
    better = dataclasses.replace(HELD, registers=96, occupancy=0.3125)
    assert over_budget({ROW: better}, {ROW: HELD}, {ROW}) == []
    assert over_budget({ROW: HELD}, {}, set()) == [f"{ROW}: not in the budget; measure it with --budget"]


def test_an_update_keeps_other_versions_and_targets(tmp_path) -> None:
    path, other = tmp_path / "budget.json", ROW.replace("sm_90", "sm_80")
    update_budget(path, "3.6", {ROW: HELD, other: HELD}, {"sm_80", "sm_90"})
    update_budget(path, "3.9", {ROW: HELD}, {"sm_90"})
    changed = dataclasses.replace(HELD, registers=90)
    update_budget(path, "3.6", {ROW: changed, other: changed}, {"sm_90"})
    assert read_budget(path, "3.6") == {ROW: changed, other: HELD}
    assert read_budget(path, "3.9") == {ROW: HELD}


@pytest.mark.parametrize(
    ("capability", "registers", "shared_bytes", "warps", "share"),
    [
        (90, 32, 0, 4, 1.0),
        (90, 128, 0, 4, 0.25),
        (90, 255, 0, 8, 0.125),
        (80, 64, 40 * 1024, 4, 0.25),
        (90, 64, 40 * 1024, 4, 5 * 4 / 64),
        (90, 255, 0, 16, 0.0),
        (90, 32, 0, 1, 0.5),
    ],
)
def test_occupancy(capability, registers, shared_bytes, warps, share) -> None:
    """Limits by registers, by shared memory, by blocks; a block that does not fit."""
    assert occupancy(capability, registers, shared_bytes, warps) == share


def test_a_binary_without_a_usage_line_is_an_error() -> None:
    done = python(
        "-c",
        "from octavo_gpuworker.kernels.triton import compile\n"
        "compile._dump = lambda flag, cubin: ''\n"
        "compile.read_resources(b'', 0, 4, 90)",
    )
    assert "CompileError: cuobjdump --dump-resource-usage printed no REG/STACK/SHARED/LOCAL line" in done.stderr
