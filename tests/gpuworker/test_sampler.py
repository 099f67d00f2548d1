"""The sampler against a plain float64 reference, by distribution and bit for bit across batch compositions."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from octavo_gpuworker import draw as draw_module
from octavo_gpuworker.draw import Draws, draw
from octavo_gpuworker.orders import Sampling
from octavo_gpuworker.sampler import sample
from octavo_gpuworker.sequence import Sequence


def sequence(sampling: Sampling, tokens=(1, 2, 3), prompt_len: int = 3, seed: int = 1) -> Sequence:
    tokens = list(tokens)
    return Sequence(seed, 0, tokens, prompt_len, len(tokens), [], sampling, seed, 10_000, 0, len(tokens))


def reference(logits: list[float], seq: Sequence) -> list[float]:
    """Probabilities as the documentation of vLLM and OpenAI describe them, one token at a time, in float64."""
    s, vocab = seq.sampling, len(logits)
    x = [float(v) for v in logits]
    output = seq.tokens[seq.prompt_len :]
    for token in range(vocab):
        if token in seq.tokens and s.repetition_penalty != 1:
            x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
        if token in output:
            x[token] -= s.presence_penalty + s.frequency_penalty * output.count(token)
    for token, value in s.bias:
        x[token] += value
    if len(output) < s.min_tokens:
        for token in s.stop_ids:
            x[token] = -math.inf
    if s.temperature == 0:
        best = max(range(vocab), key=lambda t: (x[t], -t))
        return [1.0 if t == best else 0.0 for t in range(vocab)]
    x = [v / s.temperature for v in x]
    top = max(x)
    p = [math.exp(v - top) for v in x]
    p = [v if v >= s.min_p * max(p) else 0.0 for v in p]
    if s.top_k:
        least = sorted(p, reverse=True)[min(s.top_k, vocab) - 1]
        p = [v if v >= least else 0.0 for v in p]
    if s.top_p < 1:
        mass, total, least = 0.0, sum(p), 0.0
        for value in sorted(p, reverse=True):
            if mass >= s.top_p * total:
                break
            mass, least = mass + value, value
        p = [v if v >= least else 0.0 for v in p]
    return [v / sum(p) for v in p]


CASES = {
    "temperature": Sampling(temperature=0.7),
    "hot": Sampling(temperature=3.0),
    "top_k": Sampling(top_k=5),
    "top_k=1": Sampling(top_k=1),
    "top_k beyond the vocabulary": Sampling(top_k=10_000),
    "top_p": Sampling(top_p=0.8),
    "top_p tiny": Sampling(top_p=1e-9),
    "min_p": Sampling(min_p=0.2),
    "all": Sampling(temperature=1.4, top_k=9, top_p=0.7, min_p=0.05),
    "penalties": Sampling(presence_penalty=0.6, frequency_penalty=0.5, repetition_penalty=1.4),
    "negative penalties": Sampling(presence_penalty=-0.6, frequency_penalty=-0.5, repetition_penalty=0.8),
    "bias": Sampling(bias=((3, 4.0), (7, -100.0), (3, 1.0))),
    "min_tokens": Sampling(stop_ids=frozenset({0, 1, 2}), min_tokens=5),
    "min_tokens reached": Sampling(stop_ids=frozenset({0, 1, 2}), min_tokens=4),
    "everything": Sampling(
        temperature=0.9, top_k=12, top_p=0.9, min_p=0.02, presence_penalty=0.3, frequency_penalty=0.2,
        repetition_penalty=1.2, bias=((4, 1.5),), stop_ids=frozenset({2}), min_tokens=9,
    ),
}  # fmt: skip
TOKENS = [5, 6, 2, 9, 9, 11, 9]  # 3 of the prompt, 4 of output


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("candidates", [256, 4], ids=["candidates", "sorted"])
def test_distribution_is_the_references(name, candidates, monkeypatch) -> None:
    """Chi-square of 6,000 draws over the tokens that the reference keeps; no draw outside of them."""
    monkeypatch.setattr(draw_module, "CANDIDATES", candidates)
    vocab, draws = 24, 6_000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(3)) * 1.5
    rows = [sequence(CASES[name], TOKENS, 3, seed) for seed in range(draws)]
    expected = np.array(reference(logits.tolist(), rows[0]))
    found = np.bincount(sample(logits.repeat(draws, 1), rows).tokens, minlength=vocab)
    assert not found[expected == 0].any()
    likely = expected * draws >= 5
    chi2 = ((found[likely] - draws * expected[likely]) ** 2 / (draws * expected[likely])).sum()
    freedom = max(1, int(likely.sum()) - 1)
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom), f"chi2 {chi2:.0f} of {freedom} degrees of freedom"


def mixed_rows(count: int, vocab: int) -> list[Sequence]:
    rng = random.Random(5)
    kinds = [*CASES.values(), Sampling(temperature=0.0), Sampling(temperature=0.0, frequency_penalty=1.0)]
    return [
        sequence(kinds[i % len(kinds)], [rng.randrange(vocab) for _ in range(3 + i % 7)], 3, rng.getrandbits(64))
        for i in range(count)
    ]


@pytest.mark.parametrize("vocab", [211, 1000])
def test_a_row_draws_the_same_in_any_batch_and_order(vocab) -> None:
    rows = mixed_rows(60, vocab)
    logits = torch.randn(60, vocab, generator=torch.Generator().manual_seed(1)) * 2
    whole = sample(logits.clone(), rows).tokens
    assert [sample(logits[i : i + 1].clone(), rows[i : i + 1]).tokens[0] for i in range(60)] == whole
    order = random.Random(2).sample(range(60), 60)
    shuffled = sample(logits[order].clone(), [rows[i] for i in order]).tokens
    assert shuffled == [whole[i] for i in order]


def test_candidates_and_full_sort_draw_the_same(monkeypatch) -> None:
    vocab = 3000
    rows = mixed_rows(60, vocab)
    logits = torch.randn(60, vocab, generator=torch.Generator().manual_seed(1)) * 4
    few = sample(logits.clone(), rows).tokens
    monkeypatch.setattr(draw_module, "CANDIDATES", vocab)
    assert sample(logits.clone(), rows).tokens == few


def test_ties_at_the_cut_stay() -> None:
    """Equal logits beyond the candidates: the row is sorted whole, and all of them can be drawn."""
    logits = torch.zeros(4000, 2000)
    tokens = draw(logits, Draws([Sampling(top_k=3)] * 4000, range(4000), [5] * 4000))
    assert len(set(tokens.tolist())) > 1650  # 2000 * (1 - exp(-2)) = 1729 are expected


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0], [7.0, 7.0, 7.0]])
    assert sample(logits, [sequence(Sampling(temperature=0.0))] * 2).tokens == [1, 0]


@pytest.mark.parametrize("temperature", [1e-44, 1e-38, 1e-6, 1e-4])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_temperature_near_zero_is_greedy(temperature: float, top_p: float) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(1)) * 30
    rows = [sequence(Sampling(temperature=temperature, top_p=top_p), seed=seed) for seed in range(4)]
    assert sample(logits.clone(), rows).tokens == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(top_p=0.5), Sampling(min_p=0.5)])
def test_the_generators_largest_draw_does_not_win_over_a_token_that_was_cut(sampling: Sampling) -> None:
    """Seed 7 draws 1 - 2**-24 for token 46724 at position 410: once its noise was infinite."""
    logits = torch.zeros(1, 49152)
    logits[0, 5] = 50.0
    assert sample(logits, [sequence(sampling, [1] * 410, seed=7)]).tokens == [5]


def test_the_last_bits_of_logits_hardly_ever_change_a_draw() -> None:
    """A sequence that moves to another batch shape sees logits that differ by rounding."""
    rows = [sequence(Sampling(temperature=0.8, top_p=0.95), seed=seed) for seed in range(500)]
    logits = torch.randn(500, 1000, generator=torch.Generator().manual_seed(1)) * 3
    nudged = logits + torch.randn(500, 1000, generator=torch.Generator().manual_seed(2)) * 1e-5
    same = sum(a == b for a, b in zip(sample(logits, rows).tokens, sample(nudged, rows).tokens, strict=True))
    assert same >= 497


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_marked_alone(bad) -> None:
    kinds = [Sampling(temperature=0.0, logprobs=2), Sampling(logprobs=2), Sampling(top_p=0.9, top_k=3, logprobs=0)]
    rows = [sequence(kind, seed=i) for i, kind in enumerate(kinds * 2)]
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    clean = sample(logits.clone(), rows)
    logits[1, 17] = logits[2, 3] = logits[3, 0] = bad
    got = sample(logits, rows)
    assert [token < 0 for token in got.tokens] == [False, True, True, True, False, False]
    for i in (0, 4, 5):
        assert got.tokens[i] == clean.tokens[i] and got.logprobs[i] == clean.logprobs[i]
    assert got.logprobs[1] is got.logprobs[2] is got.logprobs[3] is None


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(9))
    raw = torch.log_softmax(logits.double(), dim=1)
    rows = [
        sequence(Sampling(temperature=0.1, top_k=2, bias=((7, 100.0),), logprobs=3)),
        sequence(Sampling(temperature=0.0)),
        sequence(Sampling(temperature=2.0, logprobs=0), seed=4),
    ]
    sampled = sample(logits.clone(), rows)
    first, none, last = sampled.logprobs
    assert none is None and sampled.tokens[0] == 7
    assert first.token == 7 and first.logprob == pytest.approx(raw[0, 7].item(), abs=1e-5)
    assert first.top_tokens == raw[0].topk(3).indices.tolist()
    assert first.top_logprobs == pytest.approx(raw[0].topk(3).values.tolist(), abs=1e-5)
    assert last.token == sampled.tokens[2] and last.top_tokens == [] == last.top_logprobs
    assert last.logprob == pytest.approx(raw[2, last.token].item(), abs=1e-5)


def test_no_rows() -> None:
    assert sample(torch.empty(0, 5), []).tokens == []


def test_seed_and_position_both_matter() -> None:
    logits = torch.zeros(1, 1000)
    by_seed = {sample(logits.clone(), [sequence(Sampling(), seed=s)]).tokens[0] for s in range(30)}
    by_position = {sample(logits.clone(), [sequence(Sampling(), range(3 + n))]).tokens[0] for n in range(30)}
    assert len(by_seed) > 25 and len(by_position) > 25
