"""Sampling rows: a batch of decodes over a large vocabulary, plain, truncated, and with everything on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from gpu_row import Row, Setting
from octavo_gpuworker.kernels.sampling_ops import Bias, Grammar, Penalties, SampleInputs, SampleOutputs, sample_torch
from octavo_gpuworker.kernels.triton import roofline
from octavo_gpuworker.kernels.triton.sampling import sample_triton
from torch import Tensor


def sample_inputs(setting: Setting, rows: int, top_k: int, top_p: float, temperature: float = 0.8) -> SampleInputs:
    """The same parameters for every row, another seed each."""

    def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=setting.device)

    seeds = torch.arange(rows, device=setting.device) * 7919
    return SampleInputs(full(temperature), full(top_k, torch.int32), full(top_p), full(0.0), seeds, seeds + 5)


def edits(setting: Setting, inputs: SampleInputs, rows: int, vocab_size: int) -> SampleInputs:
    """Adds 1024 tokens of history, 16 biases and a grammar per row, and log-probabilities of the 5 best."""

    def ints(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, dtype=torch.int32, device=setting.device)

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, device=setting.device)

    slots = torch.arange(rows, dtype=torch.int32, device=setting.device)
    lengths = (ones(rows) * 1024).int()
    inputs.penalties = Penalties(
        ones(rows) * 1.1, ones(rows) * 0.5, ones(rows) * 0.2, ints(vocab_size, rows, 1024), slots, lengths // 2, lengths,
        torch.zeros(rows, vocab_size, dtype=torch.int32, device=setting.device),
    )  # fmt: skip
    tokens = torch.stack([torch.randperm(vocab_size)[:16] for _ in range(rows)]).flatten().int().to(setting.device)
    starts = torch.arange(rows + 1, dtype=torch.int32, device=setting.device) * 16
    inputs.bias = Bias(starts, tokens, setting.randn(rows * 16, dtype=torch.float32), 16)
    inputs.grammar = Grammar(
        torch.randint(-(2**31), 2**31, (rows, -(-vocab_size // 32)), dtype=torch.int32, device=setting.device), slots
    )
    inputs.max_logprobs = 5
    return inputs


def sorted_draw(logits: Tensor, inputs: SampleInputs) -> Tensor:
    """What torch offers: sort, cumulative sum, multinomial."""
    ordered, tokens = (logits / inputs.temperature[:, None]).softmax(1).sort(dim=1, descending=True)
    ordered[ordered.cumsum(1) - ordered > inputs.top_p[:, None]] = 0.0
    return tokens.gather(1, torch.multinomial(ordered, 1))


def sampling_rows(setting: Setting) -> Iterator[Row]:
    """Tokens must be the sorting twin's, every one."""
    rows, vocab_size = setting.size(64, 2), setting.size(128256, 3000)
    logits = setting.randn(rows, vocab_size, dtype=torch.float32) * 3
    greedy = sample_inputs(setting, rows, 0, 1.0, temperature=0.0)
    cases = {
        "greedy": greedy,
        "plain": sample_inputs(setting, rows, 0, 1.0),
        "top_p": sample_inputs(setting, rows, 0, 0.95),
        "top_k_p": sample_inputs(setting, rows, 50, 0.95),
        "everything": edits(setting, sample_inputs(setting, rows, 50, 0.95), rows, vocab_size),
    }
    for name, inputs in cases.items():

        def tokens(draw: Callable[..., SampleOutputs], inputs: SampleInputs = inputs) -> Tensor:
            return draw(logits.clone(), inputs).tokens.float()

        # Edited logits are edited again by every timed call; the work stays the same.
        scratch = logits.clone()
        baseline = {"sort": lambda i=inputs: sorted_draw(logits, i)} if name == "top_p" else {}
        yield Row(
            f"sample/{name}",
            lambda t=tokens: t(sample_triton),
            lambda t=tokens: t(sample_torch),
            0.0,
            roofline.sample(rows, vocab_size),
            baseline,
            lambda i=inputs, s=scratch: sample_triton(s, i),
        )
