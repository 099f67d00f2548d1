"""Rows of everything between the attentions, of the block movers, and of whole decode steps behind a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from gpu_attention_rows import TOLERANCES
from gpu_row import Row, Setting
from octavo_gpuworker.graphs import CudaCapture, GraphedForward
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.kernels.activation import gelu_mul_torch, silu_mul_torch, soft_cap_torch
from octavo_gpuworker.kernels.rms_norm import add_rms_norm_torch
from octavo_gpuworker.kernels.triton import roofline
from octavo_gpuworker.kernels.triton.activation import gelu_mul_triton, silu_mul_triton, soft_cap_triton
from octavo_gpuworker.kernels.triton.block_moves import gather_blocks_triton, scatter_blocks_triton
from octavo_gpuworker.kernels.triton.linear import linear_triton
from octavo_gpuworker.kernels.triton.rms_norm import add_rms_norm_triton
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.needs import needs_of
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.model.weights import LayerWeights, Weights
from torch import Tensor
from torch.nn import functional as F


def compiled(setting: Setting, function: Callable[..., object]) -> Callable[..., object]:
    """torch.compile on a GPU; the interpreter's machine has no use for it."""
    return function if setting.dry else torch.compile(function)


def row_wise(setting: Setting) -> Iterator[Row]:
    """Norm with residual, gated activations, soft cap."""
    width, ffn, size = setting.size(4096, 96), setting.size(14336, 80), setting.dtype.itemsize
    tolerance = TOLERANCES[setting.dtype]
    for tokens in (setting.size(32, 2), setting.size(4096, 3)):
        x, weight = setting.randn(tokens, width), setting.randn(width)
        residual = setting.randn(tokens, width, dtype=torch.float32)
        kept, other = residual.clone(), residual.clone()
        add_norm = compiled(setting, add_rms_norm_torch)
        yield Row(
            f"add_rms_norm/{tokens}",
            lambda x=x, r=residual, w=weight: add_rms_norm_triton(x, r.clone(), w, 1e-5)[0],
            lambda x=x, r=residual, w=weight: add_rms_norm_torch(x.float(), r.clone(), w.float(), 1e-5)[0],
            tolerance,
            roofline.rms_norm(tokens, width, size, 4),
            {"compile": lambda x=x, r=other, w=weight, f=add_norm: f(x, r, w, 1e-5)},
            lambda x=x, r=kept, w=weight: add_rms_norm_triton(x, r, w, 1e-5),
        )
        gate_up = setting.randn(tokens, 2 * ffn)
        for name, kernel, twin in (
            ("silu", silu_mul_triton, silu_mul_torch),
            ("gelu", gelu_mul_triton, gelu_mul_torch),
        ):
            chain = compiled(setting, twin)
            yield Row(
                f"{name}_mul/{tokens}",
                lambda g=gate_up, k=kernel: k(g),
                lambda g=gate_up, t=twin: t(g.float()),
                tolerance,
                roofline.gated_mul(tokens, ffn, size),
                {"compile": lambda g=gate_up, f=chain: f(g)},
            )
    logits = setting.randn(setting.size(64, 2), setting.size(128256, 1100))
    cap_chain = compiled(setting, soft_cap_torch)
    yield Row(
        "soft_cap",
        lambda: soft_cap_triton(logits, 30.0),
        lambda: soft_cap_torch(logits.float(), 30.0),
        tolerance,
        roofline.soft_cap(logits.numel(), size),
        {"compile": lambda: cap_chain(logits, 30.0)},
    )


def block_rows(setting: Setting) -> Iterator[Row]:
    """2 MB blocks (8B, 16 tokens, bf16) between pool and staging."""
    words, count = setting.size(2**20, 64), setting.size(256, 3)
    pool, staging = setting.randn(2 * count, words), setting.randn(count, words)
    ids = torch.randperm(2 * count, device=setting.device)[:count]

    def gather() -> Tensor:
        gather_blocks_triton(pool, ids, staging)
        return staging

    def scatter() -> Tensor:
        scatter_blocks_triton(staging, ids, pool)
        return pool[ids]

    work = roofline.move_blocks(count, words * setting.dtype.itemsize)
    yield Row("gather_blocks", gather, lambda: pool[ids].float(), 0.0, work, {"index": lambda: torch.index_select(pool, 0, ids, out=staging)})  # fmt: skip
    yield Row("scatter_blocks", scatter, lambda: staging.float(), 0.0, work, {"index": lambda: pool.index_copy_(0, ids, staging)}, lambda: scatter_blocks_triton(staging, ids, pool))  # fmt: skip


def linear_rows(setting: Setting) -> Iterator[Row]:
    """The gate-up projection of 8B: one row, a decode batch, a chunk. The table keeps cuBLAS unless this says otherwise."""
    depth, columns = setting.size(4096, 64), setting.size(28672, 80)
    weight = setting.randn(columns, depth)
    for rows in (1, setting.size(32, 17), setting.size(2048, 70)):
        x = setting.randn(rows, depth)
        yield Row(
            f"linear/{rows}",
            lambda x=x: linear_triton(x, weight, None),
            lambda x=x: x.float() @ weight.float().T,
            TOLERANCES[setting.dtype],
            roofline.linear(rows, depth, columns, setting.dtype.itemsize),
            {"mm": lambda x=x: F.linear(x, weight)},
        )


class Again:
    """What a graph does, where there is none: the captured call again, into the same memory."""

    def capture(self, run: Callable[[], Tensor]) -> tuple[Again, Tensor]:
        self._run, self._result = run, run().clone()
        return self, self._result

    def replay(self) -> None:
        self._result.copy_(self._run())


def step_config(setting: Setting) -> ModelConfig:
    """Llama-3.1-8B's shape."""
    size = setting.size
    return ModelConfig(
        architecture="llama", layers=size(32, 1), d_model=size(4096, 64), q_heads=size(32, 2), kv_heads=size(8, 1),
        head_dim=size(128, 32), ffn=size(14336, 64), vocab_size=size(128256, 48), max_position=8192, norm_eps=1e-5,
        rope_theta=500000.0,
    )  # fmt: skip


def step_decoder(setting: Setting, config: ModelConfig, prefer: str) -> Decoder:
    """A decoder of random weights."""
    torch.manual_seed(11)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, device=setting.device, dtype=setting.dtype).mul_(columns**-0.5)

    d, one = config.d_model, torch.ones(config.d_model, device=setting.device, dtype=setting.dtype)
    layers = [
        LayerWeights(
            one, matrix(config.qkv_rows, d), None, None, None, matrix(d, config.q_heads * config.head_dim), None, one,
            matrix(2 * config.ffn, d), matrix(d, config.ffn),
        )
        for _ in range(config.layers)
    ]  # fmt: skip
    needs = needs_of(config, device=setting.device, dtype=setting.dtype, kv_dtype=setting.dtype, block_tokens=16)
    table = select_kernels(setting.device, setting.dtype, prefer, needs)
    weights = Weights(matrix(config.vocab_size, d), layers, one, matrix(config.vocab_size, d))
    return Decoder(config, weights, table, kv_dtype=setting.dtype, fingerprint=bytes(32))


def step_cost(setting: Setting, config: ModelConfig, batch: int, context: int) -> roofline.Work:
    """What one decode step of `batch` sequences over `context` tokens must move and compute."""
    size = setting.dtype.itemsize
    heads = roofline.Heads(config.q_heads, config.kv_heads, config.head_dim, size, size)
    layer = roofline.linear(batch, config.d_model, config.qkv_rows, size)
    layer += roofline.linear(batch, config.q_heads * config.head_dim, config.d_model, size)
    layer += roofline.linear(batch, config.d_model, 2 * config.ffn, size)
    layer += roofline.linear(batch, config.ffn, config.d_model, size)
    layer += roofline.paged_attention(heads, [(1, context)] * batch)
    total = roofline.linear(batch, config.d_model, config.vocab_size, size)
    for _ in range(config.layers):
        total += layer
    return total


def step_rows(setting: Setting) -> Iterator[Row]:
    """Whole decode steps, replayed; the answer is the torch twins' step. On a GPU any hidden wait for it is an error."""
    config = step_config(setting)
    context = setting.size(1024, 20)
    decoder = step_decoder(setting, config, "triton" if setting.dry else "strict")
    twin = Decoder(config, decoder.weights, select_kernels(setting.device, setting.dtype, "torch"), kv_dtype=setting.dtype, fingerprint=bytes(32))  # fmt: skip
    for batch in (1, setting.size(32, 2)):
        width = -(-context // 16)
        pool = KvPool(config, batch * width + 1, 16, setting.dtype, setting.device)
        pool.tensor.normal_()
        tables = torch.arange(1, batch * width + 1, dtype=torch.int32).view(batch, width)
        position = torch.full((batch,), context - 1)
        slots = tables[:, -1].long() * 16 + (context - 1) % 16
        starts, rows = torch.arange(batch + 1, dtype=torch.int32), torch.arange(batch)
        inputs = StepInputs(
            rows + 1, position, slots, starts, (position + 1).int(), tables, rows, [1] * batch, [context] * batch
        )  # fmt: skip
        backend = Again() if setting.dry else CudaCapture(setting.device)
        graphs = GraphedForward(decoder, pool, backend, max_model_len=context, batch_buckets=(batch,))
        graphs.warm_up(batch)  # capturing waits for the device

        def eager(inputs: StepInputs = inputs, pool: KvPool = pool) -> Tensor:
            moved = StepInputs(*(getattr(inputs, name).to(setting.device) for name in inputs.__slots__[:7]), inputs.new_tokens, inputs.contexts)  # fmt: skip
            return twin.forward(moved, pool)

        def replay(inputs: StepInputs = inputs, pool: KvPool = pool, graphs: GraphedForward = graphs) -> Tensor:
            with no_hidden_waits(setting):
                return graphs.forward(inputs, pool)

        total = step_cost(setting, config, batch, context)
        yield Row(f"decode_step_8b/b{batch}", replay, eager, 3 * TOLERANCES[setting.dtype], total, {"eager": eager})


class no_hidden_waits:
    """torch.cuda.set_sync_debug_mode("error") inside the block, on a GPU."""

    def __init__(self, setting: Setting) -> None:
        self._on = not setting.dry

    def __enter__(self) -> None:
        if self._on:
            torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *error: object) -> None:
        if self._on:
            torch.cuda.set_sync_debug_mode("default")
