"""A tiny random float32 decoder without files, and an engine over it that a test drives step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from octavo.step import StepBudget
from octavo_gpuworker import reporter
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.engine import Engine, SequenceEnd
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.model.weights import LayerWeights, Weights
from octavo_gpuworker.orders import AdmitOrder, LoadOrder, OffloadOrder, Order, Report, Sampling, SiblingOrder
from torch import Tensor

VOCAB = 97
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny_decoder(seed: int = 0) -> Decoder:
    """Two layers of random float32 weights, large enough that greedy tokens vary and never tie."""
    config = ModelConfig(
        architecture="llama", layers=2, d_model=32, q_heads=4, kv_heads=2, head_dim=8, ffn=48,
        vocab_size=VOCAB, max_position=512, norm_eps=1e-5, rope_theta=10000.0, tied_embeddings=True,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.4

    layers = [
        LayerWeights(
            attn_norm=1 + rand(32), qkv=rand(64, 32), qkv_bias=None, q_norm=None, k_norm=None, o=rand(32, 32),
            o_bias=None, mlp_norm=1 + rand(32), gate_up=rand(96, 32), down=rand(32, 48),
        )
        for _ in range(2)
    ]  # fmt: skip
    embedding = rand(VOCAB, 32)
    weights = Weights(embedding, layers, 1 + rand(32), embedding)
    kernels = select_kernels("cpu", torch.float32, "torch")
    return Decoder(config, weights, kernels, kv_dtype=torch.float32, fingerprint=b"f" * 32)


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    return tiny_decoder()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [random.Random(f"{seed}/{i}").randrange(VOCAB) for i in range(length)]


def alone(make_rig, tokens, sampling=GREEDY, max_new=8, seed=1, **more):
    """What the sequence gives in an engine of its own, prefilled whole."""
    rig = make_rig(budget=512)
    rig.admit(1, tokens, sampling=sampling, max_new=max_new, seed=seed, **more)
    rig.run()
    return rig.tokens[1]


@dataclass
class Rig:
    """An engine with a block allocator beside it, and everything it reported."""

    engine: Engine
    started: list[LoadOrder | OffloadOrder]
    ends: list[SequenceEnd]
    free: list[int]
    slots: dict[int, int] = field(default_factory=dict)
    """slot -> seq, as admitted"""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    released: dict[int, tuple[int, int]] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.engine.pool.block_tokens)

    def admit(
        self, seq: int, tokens: list[int], *, slot: int | None = None, max_new: int = 8, blocks: list[int] | None = None,
        cached: int = 0, seed: int = 1, sampling: Sampling = GREEDY, prompt_len: int = 0, siblings: list[int] | None = None,
        **more: Any,
    ) -> AdmitOrder:  # fmt: skip
        """Posts an Admit with blocks for all its tokens; siblings are (seq, ...) that share full prompt blocks."""
        slot = seq if slot is None else slot
        max_len = more.pop("max_len", len(tokens) + max_new)
        table = self.take(self.blocks_for(max_len)) if blocks is None else blocks
        self.slots[slot] = seq
        others = []
        shared = (prompt_len or len(tokens)) // self.engine.pool.block_tokens
        for other in siblings or ():
            self.slots[other] = other
            others.append(SiblingOrder(other, other, seed + other, table[:shared] + self.take(len(table) - shared)))
        order = AdmitOrder(
            seq, slot, list(tokens), prompt_len or len(tokens), cached, table, sampling, seed, max_len,
            siblings=tuple(others), **more,
        )  # fmt: skip
        self.engine.post(order)
        return order

    def post(self, *orders: Order | Any) -> None:
        for order in orders:
            self.engine.post(order)

    def step(self, *, force: bool = True) -> list[Report]:
        """One iteration; books its reports."""
        self.engine.run_once()
        reports = self.engine.take_reports(force=force)
        for report in reports:
            self.book(report)
        return reports

    def book(self, report: Report) -> None:
        self.reports.append(report)
        for slot, tokens, computed, logprobs in zip(
            report.slots, report.tokens, report.computed_len, report.logprobs, strict=True
        ):
            seq = self.slots[slot]
            self.tokens.setdefault(seq, []).extend(tokens)
            self.logprobs.setdefault(seq, []).extend(logprobs)
            assert computed >= self.computed.get(seq, 0)
            self.computed[seq] = computed
        for finish in report.finishes:
            assert finish.seq not in self.reasons, "two finishes"
            self.reasons[finish.seq] = finish.reason
        for item in report.released:
            assert item.seq not in self.released, "released twice"
            self.released[item.seq] = (item.length, item.computed_len)

    def run(self, limit: int = 500) -> None:
        """Steps until nothing is held."""
        self.step()
        for _ in range(limit):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} iterations")


@pytest.fixture
def make_rig(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    """make_rig(...) -> Rig; equal steps merge without a limit of time, so that no test depends on the machine's speed."""
    monkeypatch.setattr(reporter, "MERGE_NS", 10**12)

    def make(
        *, block_tokens: int = 4, num_blocks: int = 200, budget: int = 64, max_seqs: int = 32, model: Any = None,
        merge_ns: int | None = None,
    ) -> Rig:  # fmt: skip
        model = model or decoder
        pool = KvPool(model.config, num_blocks, block_tokens, torch.float32)
        # what an earlier owner left behind must never be read
        pool.tensor[1:].fill_(1e4)
        started: list[LoadOrder | OffloadOrder] = []
        ends: list[SequenceEnd] = []
        engine = Engine(
            TorchBackend(model, pool),
            budget=StepBudget(budget, budget, max_seqs),
            start_transfer=started.append,
            on_end=ends.append,
            merge_ns=merge_ns,
        )
        free = list(range(1, num_blocks))
        random.Random(0).shuffle(free)
        return Rig(engine, started, ends, free)

    return make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()
