"""`engine.kernels: triton` under the interpreter: the same greedy tokens as the oracle, through decoder and engine, all on Triton."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial

import pytest
import torch
from octavo.step import StepBudget
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.device_sampler import draw_on_device, sampler_of
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.graphs import GraphedForward
from octavo_gpuworker.kernels import KernelTable, select_kernels
from octavo_gpuworker.metrics import WorkerMetrics
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.needs import needs_of
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.model.weights import LayerWeights, Weights
from octavo_gpuworker.orders import AdmitOrder, Report, Sampling
from octavo_gpuworker.pipeline import PipelinedEngine
from prometheus_client import CollectorRegistry, generate_latest

from tests.kernels.triton.test_graphs import FakeBackend

LLAMA = ModelConfig(
    architecture="llama", layers=2, d_model=96, q_heads=3, kv_heads=1, head_dim=32, ffn=128, vocab_size=97, max_position=512,
    norm_eps=1e-5, rope_theta=10000.0, tied_embeddings=True,
)  # fmt: skip
QWEN3 = dataclasses.replace(
    LLAMA, architecture="qwen3", q_heads=4, kv_heads=2, qk_norm=True, qkv_bias=True, tied_embeddings=False
)
MISTRAL = dataclasses.replace(
    LLAMA, architecture="mistral", q_heads=2, kv_heads=2, sliding_window=9, activation="gelu_tanh"
)
CONFIGS = {"llama": LLAMA, "qwen3": QWEN3, "mistral": MISTRAL}
PROMPTS = ([5, 9, 2], list(range(1, 38)), [11] * 16)


def weights_of(config: ModelConfig) -> Weights:
    torch.manual_seed(3)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns) * columns**-0.5

    def norm(width: int) -> torch.Tensor:
        return torch.rand(width) + 0.5

    d, dim = config.d_model, config.head_dim
    layers = [
        LayerWeights(
            attn_norm=norm(d),
            qkv=matrix(config.qkv_rows, d),
            qkv_bias=torch.randn(config.qkv_rows) if config.qkv_bias else None,
            q_norm=norm(dim) if config.qk_norm else None,
            k_norm=norm(dim) if config.qk_norm else None,
            o=matrix(d, config.q_heads * dim),
            o_bias=None,
            mlp_norm=norm(d),
            gate_up=matrix(2 * config.ffn, d),
            down=matrix(d, config.ffn),
        )
        for _ in range(config.layers)
    ]
    embedding = torch.randn(config.vocab_size, d)
    head = embedding if config.tied_embeddings else matrix(config.vocab_size, d)
    return Weights(embedding, layers, norm(d), head)


def table_of(config: ModelConfig, prefer: str, kv: torch.dtype = torch.float32) -> KernelTable:
    needs = needs_of(config, device=torch.device("cpu"), dtype=torch.float32, kv_dtype=kv, block_tokens=8)
    return select_kernels("cpu", torch.float32, prefer, needs)


def decoder_of(config: ModelConfig, prefer: str, kv: torch.dtype = torch.float32) -> Decoder:
    return Decoder(config, weights_of(config), table_of(config, prefer, kv), kv_dtype=kv, fingerprint=bytes(32))


def greedy(decoder: Decoder, new: int = 8) -> tuple[list[list[int]], int, list[Report]]:
    """Three sequences, the second chunked while the others decode: their tokens, the mixed steps, the reports."""
    pool = KvPool(decoder.config, 32, 8, decoder.kv_dtype)
    return run(Engine, TorchBackend(decoder, pool, sampler=sampler_of(decoder.kernels)), new)


def run(kind: type[Engine], backend: TorchBackend, new: int) -> tuple[list[list[int]], int, list[Report]]:
    engine = kind(backend, budget=StepBudget(14, 14, 8), start_transfer=lambda order: None)
    first = 1
    for slot, prompt in enumerate(PROMPTS):
        blocks = list(range(first, first + -(-(len(prompt) + new) // 8)))
        first += len(blocks)
        sampling = Sampling(temperature=0.0)
        engine.post(
            AdmitOrder(slot + 1, slot, prompt, len(prompt), 0, blocks, sampling, 0, len(prompt) + new, rank=slot)
        )
    tokens: list[list[int]] = [[] for _ in PROMPTS]
    reports = []
    while engine.run_once():
        for report in engine.take_reports(force=True):
            reports.append(report)
            for slot, new_tokens in zip(report.slots, report.tokens, strict=True):
                tokens[slot].extend(new_tokens)
    return tokens, engine.mixed_steps, reports


@pytest.mark.parametrize("name", CONFIGS)
def test_eight_greedy_tokens_equal_the_oracle_and_every_call_is_tritons(name) -> None:
    config = CONFIGS[name]
    oracle, _, _ = greedy(decoder_of(config, "torch"))
    decoder = decoder_of(config, "strict" if name == "qwen3" else "triton")
    tokens, mixed, reports = greedy(decoder)
    assert mixed >= 2, "prefill chunks and decodes shared steps"
    assert [len(row) for row in tokens] == [8, 8, 8]
    assert tokens == oracle
    act = "gelu_mul" if config.activation == "gelu_tanh" else "silu_mul"
    used = {key for key, calls in decoder.kernels.kernel_calls_by_reason.items() if calls}
    linear = ("linear", "triton", "chosen")
    if name == "qwen3":  # strict: cuBLAS' place is no fallback
        linear = next(key for key in used if key[0] == "linear")
        assert linear[1:] in (("torch", "chosen"), ("onednn", "chosen"))
    names = ("rms_norm", "add_rms_norm", "store_kv", "paged_attention", act, "sample")
    assert used == {linear, *((op, "triton", "chosen") for op in names)}
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry, 31, lambda: decoder.kernels.kernel_calls_by_reason, {})
    metrics.observe(reports[-1])
    calls = decoder.kernels.kernel_calls["paged_attention", "triton"]
    line = f'kernel_calls_total{{impl="triton",op="paged_attention",reason="chosen"}} {float(calls)}'
    assert line in generate_latest(registry).decode()


# Rows of padding compute on whatever their memory held; nobody reads them.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_captured_steps_one_ahead_give_the_same_tokens() -> None:
    """As a GPU runs it: graphs over static inputs, drawn tokens placed on the device, each step launched before the last is read."""
    oracle, _, _ = greedy(decoder_of(LLAMA, "torch"), 5)
    decoder = decoder_of(LLAMA, "triton")
    pool = KvPool(decoder.config, 32, 8, decoder.kv_dtype)
    graphs = GraphedForward(decoder, pool, FakeBackend(), max_model_len=64, batch_buckets=(4,))
    draw = partial(draw_on_device, decoder.kernels.sample)
    tokens, _, _ = run(PipelinedEngine, TorchBackend(decoder, pool, graphs=graphs, draw=draw), 5)
    assert tokens == oracle
    assert graphs.stats.replays.total() >= 3
    assert set(graphs.stats.eager) == {"prefill"}
    assert decoder.kernels.kernel_calls["sample", "triton"] >= 5


def test_a_quantized_cache_gives_the_twins_tokens() -> None:
    oracle, _, _ = greedy(decoder_of(LLAMA, "torch", torch.int8), 4)
    tokens, _, _ = greedy(decoder_of(LLAMA, "triton", torch.int8), 4)
    assert tokens == oracle


def test_a_head_dim_that_is_not_taken_falls_back_and_strict_refuses(caplog) -> None:
    config = dataclasses.replace(LLAMA, head_dim=48)
    with caplog.at_level(logging.WARNING):
        table = table_of(config, "triton")
    assert [record.getMessage().split("; not native")[0] for record in caplog.records] == [
        f"kernel {op}: torch (fallback; not triton: head dim 48 is not one of 32, 64, 128"
        for op in ("store_kv", "paged_attention")
    ]
    decoder = Decoder(config, weights_of(config), table, kv_dtype=torch.float32, fingerprint=bytes(32))
    assert greedy(decoder, 2)[0] == greedy(decoder_of(config, "torch"), 2)[0]
    reasons = {key[2] for key, calls in table.kernel_calls_by_reason.items() if calls and key[1] == "torch"}
    assert reasons == {"head dim 48 is not one of 32, 64, 128"}
    with pytest.raises(ValueError, match="'strict', but store_kv would fall back: head dim 48 is not one of"):
        table_of(config, "strict")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_tokens": 64}, "block size 64 is not one of 8, 16, 32 tokens"),
        ({"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}, "the interpreter computes garbage in bfloat16"),
        ({"dtype": torch.float64}, "KV dtype float32 is neither the activations' float64 nor int8 nor fp8"),
        ({"kv_dtype": torch.float16}, "KV dtype float16 is neither the activations' float32 nor int8 nor fp8"),
        ({"q_heads": 34, "kv_heads": 2}, "17 query heads per KV head are more than 16"),
        ({"kv_dtype": torch.int8, "soft_cap": 30.0}, "a soft cap over a quantized cache is not compiled"),
    ],
)
def test_each_refusal_names_its_reason(change, reason) -> None:
    needs = dataclasses.replace(needs_of(LLAMA, device=torch.device("cpu"), dtype=torch.float32, kv_dtype=torch.float32, block_tokens=8), **change)  # fmt: skip
    choices = {choice.operation: choice for choice in select_kernels("cpu", torch.float32, "triton", needs).choices}
    assert reason in choices["paged_attention"].fallback
    assert choices["paged_attention"].chosen == "torch"
