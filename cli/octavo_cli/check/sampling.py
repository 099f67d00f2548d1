"""Sampling: draws fall as the model's own probabilities say, seeds repeat them, and no other seed does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_cli.check.chi_square import chi_square
from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Wrong
from octavo_cli.check.subject import Subject

PROMPT = "My favourite animal is the"
REQUESTS, CHOICES = 40, 8
LEAST_P = 1e-4
TEMPERATURES = (1.0, 0.6)
SEEDS = (11, 22, 33, 44)


def small_vocabulary(logprobs: Sequence[float]) -> int:
    """k between 5 and 10 with the widest gap behind it: no rounding moves a token over that edge."""
    return max(range(5, 11), key=lambda k: logprobs[k - 1] - logprobs[k])


def shares_at(logprobs: Sequence[float], temperature: float) -> list[float]:
    """softmax(logprobs / temperature)."""
    weights = [math.exp((value - logprobs[0]) / temperature) for value in logprobs]
    return [weight / sum(weights) for weight in weights]


def judge_draws(draws: Sequence[int], tokens: Sequence[int], shares: Sequence[float]) -> float:
    """The p-value of the draws. Raises Wrong when a token came that cannot come, or the shares are not the model's."""
    counts = Counter(draws)
    strange = sorted(set(counts) - set(tokens))
    if strange:
        raise Wrong(f"top_k {len(tokens)} let token {strange[0]} through")
    statistic, p = chi_square([counts[token] for token in tokens], shares)
    if p < LEAST_P:
        raise Wrong(
            f"{len(draws)} draws do not fall as the model's probabilities: chi-square {statistic:.1f}, p {p:.2g}",
            expected=[round(share * len(draws), 1) for share in shares],
            observed=[counts[token] for token in tokens],
        )
    return p


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Chi-square over a small vocabulary at two temperatures, then seeds."""
    top = (await subject.greedy(PROMPT, 1, logprobs=20)).choices[0].logprobs[0].top
    k = small_vocabulary([item.logprob for item in top])
    tokens = [item.token_id for item in top[:k]]
    facts: dict[str, Any] = {"draws": REQUESTS * CHOICES, "vocabulary": k}
    for temperature in TEMPERATURES:
        runs = await subject.all_of(
            subject.greedy(PROMPT, 1, temperature=temperature, top_k=k, n=CHOICES, seed=1000 + seed)
            for seed in range(REQUESTS)
        )
        draws = [choice.token_ids[0] for run in runs for choice in run.choices]
        shares = shares_at([item.logprob for item in top[:k]], temperature)
        facts[f"p_at_{temperature:g}"] = round(judge_draws(draws, tokens, shares), 4)
    return {**facts, **await _seeds(subject)}


async def _seeds(subject: Subject) -> Mapping[str, Any]:
    rounds = []
    for _ in range(2):
        done = await subject.all_of(subject.greedy(PROMPT, 12, temperature=1.0, seed=seed) for seed in SEEDS)
        rounds.append([run.choices[0].token_ids for run in done])
    repeated = sum(first == second for first, second in zip(*rounds, strict=True))
    different = len(set(rounds[0]))
    # the last bits of logits may turn one draw in thousands, so one of four may differ
    if repeated < len(SEEDS) - 1:
        raise Wrong(f"the same seed gave the same answer {repeated} of {len(SEEDS)} times")
    if different < len(SEEDS) - 1:
        raise Wrong(f"{len(SEEDS)} seeds gave {different} different answers: the seed is ignored")
    return {"seeds_repeated": repeated, "seeds_different": different}
