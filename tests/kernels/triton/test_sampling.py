"""Sampling in the interpreter: Philox against numpy's bits, the draw against the sorting twin and the host's sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.kernels.sampling_ops import NO_TOKEN, Bias, Grammar, Penalties, SampleInputs, sample_torch
from octavo_gpuworker.kernels.triton.philox import log_precise, uniform
from octavo_gpuworker.kernels.triton.sampling import sample_triton
from octavo_gpuworker.philox import uniforms
from torch import Tensor

EXAMPLES = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VOCABULARIES = st.sampled_from([1, 31, 1024, 1025, 2500, 9000])


@triton.jit
def uniform_kernel(out, seed, position, first, COUNT: tl.constexpr):
    start = tl.program_id(0) * COUNT
    drawn = uniform(tl.load(seed), tl.load(position), start + first, COUNT)
    tl.store(out + start + tl.arange(0, COUNT), drawn)


@triton.jit
def log_kernel(out, x, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(out + index, log_precise(tl.load(x + index)))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
@pytest.mark.parametrize("position", [0, 7, 2**40])
def test_uniforms_are_numpys_bit_for_bit(seed, position) -> None:
    out = torch.empty(96)
    bits = torch.from_numpy(np.array([seed], dtype=np.uint64).view(np.int64))
    uniform_kernel[(3,)](out, bits, torch.tensor([position]), 0, COUNT=32)
    assert np.array_equal(out.numpy(), uniforms(seed, position, 96))


def test_philox_known_answer() -> None:
    """Random123's kat_vectors, philox4x64 10, counter and key of zeros: numpy starts one counter later, so step back."""
    out = torch.empty(8)
    zero = torch.zeros(1, dtype=torch.int64)
    uniform_kernel[(1,)](out, zero, zero, -8, COUNT=8)
    answer = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    halves = [half for word in answer for half in (word & 0xFFFFFFFF, word >> 32)]
    assert out.tolist() == [(half >> 8) / 2**24 for half in halves]


def test_precise_logarithm_stays_relative_near_one() -> None:
    near = 1 - torch.arange(1, 2049) / 2**24
    spread = torch.rand(2046) + 2**-24
    x = torch.cat((near, spread, torch.tensor([2.0**-25, 1.0])))
    out = torch.empty_like(x)
    log_kernel[(1,)](out, x, COUNT=4096)
    exact = x.double().log()
    error = (out.double() - exact).abs() / exact.abs().clamp(min=2.0**-26)
    assert error.max() < 2.0**-23


def inputs_of(rows: int, **changes) -> SampleInputs:
    given_values = {
        "temperature": torch.full((rows,), 1.0),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "seeds": torch.randint(-(2**63), 2**63 - 1, (rows,)),
        "positions": torch.randint(0, 100_000, (rows,)),
    }
    return SampleInputs(**{**given_values, **changes})


def same(logits: Tensor, inputs: SampleInputs) -> None:
    """Kernel and twin draw the same tokens and log-probabilities; a gap behind every row stays as it was."""
    rows, vocab_size = logits.shape
    wide = torch.full((rows, vocab_size + 16), 77.0)
    wide[:, :vocab_size] = logits
    found = sample_triton(wide[:, :vocab_size], inputs)
    assert (wide[:, vocab_size:] == 77.0).all()
    expected = sample_torch(logits.clone(), inputs)
    assert found.tokens.tolist() == expected.tokens.tolist()
    if inputs.max_logprobs >= 0:
        drawn = expected.tokens != NO_TOKEN
        assert torch.allclose(found.logprobs[drawn], expected.logprobs[drawn], atol=1e-5)
        assert found.top_tokens[drawn].equal(expected.top_tokens[drawn])
        assert torch.allclose(found.top_logprobs[drawn], expected.top_logprobs[drawn], atol=1e-5)


@st.composite
def parameters(draw, rows: int):
    def column(values) -> list:
        return [draw(st.sampled_from(values)) for _ in range(rows)]

    return {
        "temperature": torch.tensor(column([0.0, 0.2, 1.0, 1.7])),
        "top_k": torch.tensor(column([0, 1, 2, 40, 500, 10**6]), dtype=torch.int32),
        "top_p": torch.tensor(column([1e-6, 0.3, 0.95, 1.0])),
        "min_p": torch.tensor(column([0.0, 0.0, 0.05, 0.9])),
    }


@EXAMPLES
@given(data=st.data(), vocab_size=VOCABULARIES, rows=st.integers(0, 3), spread=st.sampled_from([0.0, 0.01, 1.0, 6.0]))
def test_truncated_draws(data, vocab_size, rows, spread) -> None:
    """From flat rows, where everything survives and all is tied, to peaked ones."""
    logits = torch.randn(rows, vocab_size) * spread
    same(logits, inputs_of(rows, **data.draw(parameters(rows))))


@EXAMPLES
@given(vocab_size=VOCABULARIES, best=st.sampled_from([0, 1, 5, 20]), levels=st.sampled_from([3, 10**6]))
def test_logprobs_of_the_drawn_and_the_best(vocab_size, best, levels) -> None:
    """Few levels make ties across tiles: the lower id comes first."""
    logits = torch.randint(0, levels, (2, vocab_size)).float() / levels * 9
    same(logits, inputs_of(2, max_logprobs=min(best, vocab_size)))


@EXAMPLES
@given(data=st.data(), vocab_size=VOCABULARIES, logprobs=st.sampled_from([-1, 0, 4]))
def test_penalties_bias_and_grammar(data, vocab_size, logprobs) -> None:
    rows, slots, longest = 3, 5, 1500
    history = torch.randint(0, vocab_size, (slots, longest), dtype=torch.int32)
    length = torch.tensor(data.draw(st.lists(st.integers(0, longest), min_size=slots, max_size=slots)))
    prompt = (length * torch.rand(slots)).int()
    history[torch.arange(longest) >= length[:, None]] = 2**30  # read, it would be a wild address
    counts = torch.zeros(rows + 1, vocab_size, dtype=torch.int32)
    penalties = Penalties(
        torch.tensor([1.0, 1.3, 0.8]),
        torch.tensor([0.0, 0.5, -0.5]),
        torch.tensor([0.0, 0.25, 0.1]),
        history,
        torch.tensor([4, 0, 2], dtype=torch.int32),
        prompt,
        length.int(),
        counts,
    )
    sizes = [min(n, vocab_size) for n in (0, 3, 1100)]
    bias = Bias(
        torch.tensor([0, *np.cumsum(sizes).tolist()], dtype=torch.int32),
        torch.cat([torch.randperm(vocab_size)[:size] for size in sizes]).int(),
        torch.where(torch.rand(sum(sizes)) < 0.2, -torch.inf, torch.randn(sum(sizes)) * 5),
        max(sizes),
    )
    grammar = Grammar(
        torch.randint(-(2**31), 2**31 - 1, (2, -(-vocab_size // 32)), dtype=torch.int32),
        torch.tensor([1, -1, 0], dtype=torch.int32),
    )
    inputs = inputs_of(rows, penalties=penalties, bias=bias, grammar=grammar, top_p=torch.tensor([1.0, 0.9, 0.5]))
    inputs.max_logprobs = min(logprobs, vocab_size)
    same(torch.randn(rows, vocab_size) * 2, inputs)
    assert not counts.any(), "the workspace must be zero again"


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # what a GPU does without a word
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1024, 2499])
def test_a_broken_row_draws_nothing_and_spares_the_others(poison, place) -> None:
    logits = torch.randn(3, 2500)
    logits[1, place] = poison
    inputs = inputs_of(3, top_p=torch.full((3,), 0.9))
    assert sample_triton(logits.clone(), inputs).tokens.tolist()[1] == NO_TOKEN
    same(logits, inputs)


def test_a_grammar_that_allows_nothing() -> None:
    nothing = Grammar(torch.zeros(1, 79, dtype=torch.int32), torch.tensor([0, -1], dtype=torch.int32))
    inputs = inputs_of(2, grammar=nothing)
    assert sample_triton(torch.randn(2, 2500), inputs).tokens.tolist()[0] == NO_TOKEN
    same(torch.randn(2, 2500), inputs)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(4, 2500) * 2
    inputs = inputs_of(4, top_p=torch.full((4,), 0.8), top_k=torch.tensor([0, 50, 0, 3], dtype=torch.int32))
    together = sample_triton(logits.clone(), inputs).tokens.tolist()
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    for row, token in enumerate(together):
        alone = SampleInputs(**{name: getattr(inputs, name)[row : row + 1] for name in names})
        assert sample_triton(logits[row : row + 1].clone(), alone).tokens.tolist() == [token]
