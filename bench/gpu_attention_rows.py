"""Attention and KV write rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from gpu_row import Row, Setting
from octavo_gpuworker.kernels.paged_batch import paged_batch
from octavo_gpuworker.kernels.store_kv import KvWrite, quantize, store_kv_torch
from octavo_gpuworker.kernels.triton import roofline
from octavo_gpuworker.kernels.triton.attention import attend_triton
from octavo_gpuworker.kernels.triton.store_kv import store_kv_triton
from torch import Tensor
from torch.nn import functional as F

LLAMA_8B, SMOLLM2 = (32, 8, 128), (9, 3, 64)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def attention_row(
    setting: Setting,
    name: str,
    heads: tuple[int, int, int],
    work: list[tuple[int, int]],
    *,
    block: int = 16,
    kv: torch.dtype | None = None,
    window: int | None = None,
    splits: int | None = None,
) -> Row:
    """`work` = (new, context) per sequence over blocks scattered in one layer of a pool."""
    q_heads, kv_heads, dim = heads
    counts = [-(-context // block) for _, context in work]
    total = sum(counts)
    held = setting.randn(total + 1, 2, kv_heads, block, dim)
    scales = None
    if kv is not None:
        values, scales = quantize(held.float(), kv)
        held, plain = values, values.float() * scales[..., None]
    else:
        plain = held
    order = (torch.randperm(total) + 1).tolist()
    tables = torch.zeros(len(work), max(counts), dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([order.pop() for _ in range(count)])
    starts = [0, *itertools.accumulate(new for new, _ in work)]
    queries = setting.randn(starts[-1], q_heads, dim)
    processors = 132 if setting.dry else torch.cuda.get_device_properties(setting.device).multi_processor_count
    batch = paged_batch(
        torch.tensor(starts, dtype=torch.int32, device=setting.device),
        torch.tensor([context for _, context in work], dtype=torch.int32, device=setting.device),
        tables.to(setting.device),
        [new for new, _ in work],
        [context for _, context in work],
        block_tokens=block,
        scale=dim**-0.5,
        window=window,
        processors=processors,
    )
    batch.splits = splits

    def gathered(row: int, context: int, source: Tensor) -> Tensor:
        blocks = tables[row, : counts[row]].long().to(setting.device)
        return source[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]

    def expected() -> Tensor:
        return torch.cat(
            [
                _attend(queries[start : start + new].float(), gathered(row, context, plain).float(), window)
                for row, ((new, context), start) in enumerate(zip(work, starts, strict=False))
            ]
        )

    baselines = {}
    if window is None and kv is None and len(set(work)) == 1 and work[0][0] in (1, work[0][1]):
        new, context = work[0]
        keys, values = torch.stack([gathered(row, context, plain) for row in range(len(work))], 1)
        by_head = queries.view(len(work), new, q_heads, dim).transpose(1, 2)
        baselines["sdpa"] = lambda: F.scaled_dot_product_attention(
            by_head, keys, values, is_causal=new > 1, enable_gqa=True
        )
    shape = roofline.Heads(*heads, setting.dtype.itemsize, held.dtype.itemsize, 0 if scales is None else 4)
    return Row(
        name,
        lambda: attend_triton(queries, held, scales, batch),
        expected,
        TOLERANCES[setting.dtype],
        roofline.paged_attention(shape, work, window),
        baselines,
    )


def _attend(queries: Tensor, kv: Tensor, window: int | None) -> Tensor:
    """queries [n, q_heads, D], kv [2, kv_heads, c, D] float32 -> [n, q_heads * D], a few heads and queries at a time."""
    new, q_heads, dim = queries.shape
    context, group = kv.shape[2], q_heads // kv.shape[1]
    out = torch.empty_like(queries)
    for head, first in itertools.product(range(q_heads), range(0, new, 2048)):
        chunk = queries[first : first + 2048, head]
        at = torch.arange(context - new + first, context - new + first + len(chunk), device=kv.device)[:, None]
        keys = torch.arange(context, device=kv.device)
        seen = keys <= at if window is None else (keys <= at) & (keys > at - window)
        scores = (chunk @ kv[0, head // group].T * dim**-0.5).masked_fill_(~seen, float("-inf"))
        out[first : first + 2048, head] = scores.softmax(-1) @ kv[1, head // group]
    return out.flatten(1)


def attention_rows(setting: Setting) -> Iterator[Row]:
    """Decode, split decode, verification, prefill, a chunk, a window, a mixed step."""
    many, long, chunk = setting.size(32, 3), setting.size(4096, 40), setting.size(512, 20)
    yield attention_row(setting, f"decode/b{many}/c{long}", LLAMA_8B, [(1, long)] * many)
    for kv in (torch.int8, torch.float8_e4m3fn):
        tag = "int8" if kv == torch.int8 else "fp8"
        yield attention_row(setting, f"decode_{tag}/b{many}/c{long}", LLAMA_8B, [(1, long)] * many, kv=kv)
    far = setting.size(32768, 70)
    yield attention_row(setting, f"decode/b1/c{far}", LLAMA_8B, [(1, far)], splits=3 if setting.dry else None)
    yield attention_row(setting, "decode_smollm2", SMOLLM2, [(1, setting.size(1024, 20))] * setting.size(64, 2))
    yield attention_row(setting, "verify4", LLAMA_8B, [(4, long)] * setting.size(8, 2))
    whole = setting.size(16384, 50)
    yield attention_row(setting, f"prefill/{whole}", LLAMA_8B, [(whole, whole)])
    yield attention_row(setting, "prefill_chunk", LLAMA_8B, [(chunk, setting.size(8192, 60))])
    yield attention_row(setting, "prefill_window", LLAMA_8B, [(whole, whole)], window=setting.size(4096, 9))
    yield attention_row(setting, "mixed", LLAMA_8B, [(1, long)] * many + [(chunk, chunk + 30)])


def store_rows(setting: Setting) -> Iterator[Row]:
    """A decode batch and a chunk, plain and with int8."""
    q_heads, kv_heads, dim = LLAMA_8B
    for tokens, kv in itertools.product((setting.size(32, 2), setting.size(4096, 9)), (None, torch.int8)):
        qkv = setting.randn(tokens, (q_heads + 2 * kv_heads) * dim)
        blocks = -(-tokens // 16) + 1
        pool = setting.randn(blocks, 2, kv_heads, 16, dim).to(kv or setting.dtype)
        scales = torch.zeros(blocks, 2, kv_heads, 16, device=setting.device) if kv else None
        angles = setting.randn(tokens, dim // 2, dtype=torch.float32)
        sin = angles.sin()
        slots = torch.randperm((blocks - 1) * 16, device=setting.device)[:tokens] + 16
        write = KvWrite(
            angles.cos()[:, None, None], torch.stack((-sin, sin), 1)[:, None], slots // 16, slots % 16,
            q_heads, kv_heads, dim, 1e-5,
        )  # fmt: skip

        def run(store, pool=pool, scales=scales, qkv=qkv, write=write):
            queries = store(qkv, write, None, None, pool, scales)
            held = pool[write.blocks, :, :, write.offsets].float()
            if scales is not None:
                held = held * scales[write.blocks, :, :, write.offsets][..., None]
            return torch.cat((queries.float().flatten(), held.flatten()))

        shape = roofline.Heads(*LLAMA_8B, setting.dtype.itemsize, pool.dtype.itemsize, 4 if kv else 0)
        yield Row(
            f"store_kv{'_int8' if kv else ''}/{tokens}",
            lambda run=run: run(store_kv_triton),
            lambda run=run: run(store_kv_torch),
            1e-2 if kv else TOLERANCES[setting.dtype],
            roofline.store_kv(shape, tokens),
            {"torch": lambda a=(qkv, write, None, None, pool, scales): store_kv_torch(*a)},
            lambda a=(qkv, write, None, None, pool, scales): store_kv_triton(*a),
        )
