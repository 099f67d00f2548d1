"""The runner over a tiny decoder: counts that must be exact, limits that are told, floors out of made-up machines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from octavo.errors import OctavoError
from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.bench.bench import floor_s
from octavo_gpuworker.bench.quality import score
from octavo_gpuworker.bench.row import parse_row
from octavo_gpuworker.bench.runner import Runner, Sample, prompt_of
from octavo_gpuworker.model.pool import KvPool


@pytest.fixture
def backend(decoder) -> TorchBackend:
    return TorchBackend(decoder, KvPool(decoder.config, 120, 4, torch.float32))


def test_a_sample_counts_what_was_timed(backend) -> None:
    runner = Runner(backend, 512)
    decode = runner.measure(parse_row("decode/f32/b3/ctx20"), 6)
    assert (decode.tokens, decode.steps, decode.context) == (15, 5, 25.0)
    prefill = runner.measure(parse_row("prefill/f32/33"), 6)
    assert (prefill.tokens, prefill.steps) == (33, 1)
    run = runner.measure(parse_row("run/f32/b2/ctx9"), 7)
    assert (run.tokens, run.steps) == (14, 7)
    assert not runner.engine.busy and min(decode.seconds, prefill.seconds, run.seconds) > 0
    assert runner.measure(parse_row("decode/f32/b3/ctx20/sampled"), 6).tokens == 15


def test_another_seed_is_other_prompts(backend) -> None:
    runner = Runner(backend, 512)
    asked: list[list[int]] = []
    post = runner.engine.post
    runner.engine.post = lambda order: (asked.append(order.tokens), post(order))[1]
    for seed in (0, 1, 1):
        runner.measure(parse_row("run/f32/b2/ctx9"), 1, seed)
    (a, b), (c, d), again = asked[:2], asked[2:4], asked[4:]
    assert len({tuple(prompt) for prompt in (a, b, c, d)}) == 4 and again == [c, d]


def test_what_does_not_fit_is_told(backend) -> None:
    with pytest.raises(OctavoError, match=r"needs 129 blocks, the pool has 120; raise --engine\.kv_pool_bytes"):
        Runner(backend, 512).measure(parse_row("decode/f32/b16/ctx20"), 8)
    with pytest.raises(OctavoError, match="needs 601 positions, the model has 512"):
        Runner(TorchBackend(backend.decoder, KvPool(backend.decoder.config, 200, 4, torch.float32)), 512).measure(
            parse_row("prefill/f32/600"), 8
        )


def test_prompts_differ_and_stay_inside_the_vocabulary() -> None:
    prompts = [prompt_of(seed, 64, 97) for seed in range(8)]
    assert all(0 <= token < 97 for prompt in prompts for token in prompt)
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 8


def test_the_floor_is_the_slower_of_reading_and_computing() -> None:
    def machine(bytes_per_s: float, macs_per_s: float) -> Limits:
        return Limits(1000, 10, 50, 20, 2, lambda: bytes_per_s, lambda: macs_per_s)

    sample = Sample(tokens=8, steps=4, seconds=1.0, context=30.0)
    row = parse_row("decode/bf16/b2")
    assert floor_s(row, sample, machine(100.0, 1e9)) == pytest.approx(4 * (1000 + 2 * 30 * 10) / 100)
    assert floor_s(row, sample, machine(1e9, 10.0)) == pytest.approx(4 * 2 * 70 / 10)
    prefill = parse_row("prefill/bf16/16")
    assert floor_s(prefill, sample, machine(1e9, 10.0)) == pytest.approx((16 * 50 + 20) / 10)
    assert floor_s(prefill, sample, machine(100.0, 1e9)) == pytest.approx(10)


def test_scores_are_the_log_likelihoods_of_one_forward_over_the_window(backend) -> None:
    """Chunks and blocks must not show: the sum over a text of more than a chunk equals a forward over all of it."""
    from octavo_gpuworker.model.inputs import StepInputs

    ids = prompt_of(3, 150, 97)
    nll, top = score(backend, ids)
    n = len(ids)
    pool = KvPool(backend.decoder.config, 2, 160, torch.float32)
    logits = backend.decoder.forward(
        StepInputs(
            torch.tensor(ids), torch.arange(n), torch.arange(n) + 160, torch.tensor([0, n], dtype=torch.int32),
            torch.tensor([n], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32), torch.arange(n - 1),
        ),
        pool,
    )  # fmt: skip
    expected = torch.nn.functional.cross_entropy(logits.double(), torch.tensor(ids[1:]), reduction="none")
    assert len(nll) == len(top) == n - 1
    assert np.allclose(nll, expected.numpy(), atol=1e-4) and top == logits.argmax(dim=1).tolist()
    assert math.isfinite(sum(nll))
