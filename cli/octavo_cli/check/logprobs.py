"""Logprobs are logarithms of probabilities: they sum to one, rank as they choose, and agree with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.client import TokenLogprob

from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Wrong
from octavo_cli.check.subject import Subject

PROMPT = "A B C A B C A B C A B C A B C A B C A B C A"
TOKENS = 24
SLACK = 0.01
"""Above 1, for rounding."""
PEAKED = 0.97
"""In a text that repeats itself some position has nearly all probability in its twenty best tokens."""
AGREE = 0.1


def judge(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The logprobs of one greedy answer. Raises Wrong."""
    masses = []
    for at, entry in enumerate(entries):
        values = [item.logprob for item in entry.top]
        if values != sorted(values, reverse=True):
            raise Wrong(f"position {at}: the alternatives are not in order")
        if entry.token_id != entry.top[0].token_id:
            raise Wrong(
                f"position {at}: greedy chose {entry.token_id}, the best alternative is {entry.top[0].token_id}"
            )
        if abs(entry.logprob - entry.top[0].logprob) > 1e-4:
            raise Wrong(f"position {at}: the chosen token has {entry.logprob:.4f} and {entry.top[0].logprob:.4f}")
        if entry.logprob > 1e-4:
            raise Wrong(f"position {at}: a logprob of {entry.logprob:.4f} is a probability above 1")
        masses.append(sum(math.exp(value) for value in values))
    facts = {"mass_least": round(min(masses), 4), "mass_most": round(max(masses), 4)}
    if max(masses) > 1.0 + SLACK:
        raise Wrong(f"twenty alternatives have a probability of {max(masses):.3f} together", **facts)
    if max(masses) < PEAKED:
        raise Wrong(f"no position reaches a probability of {PEAKED}, the most is {max(masses):.3f}", **facts)
    return facts


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Normalisation and order, and the logprob of a forced token against the one it had as an alternative."""
    choice = (await subject.greedy(PROMPT, TOKENS, logprobs=20)).choices[0]
    if len(choice.logprobs) != len(choice.token_ids) or [item.token_id for item in choice.logprobs] != list(
        choice.token_ids
    ):
        raise Wrong(f"{len(choice.logprobs)} logprobs came for {len(choice.token_ids)} tokens, or of others")
    facts = judge(choice.logprobs)
    prompt_ids = (await subject.client.tokenize(PROMPT)).token_ids
    second = choice.logprobs[0].top[1]
    forced = await subject.score(prompt_ids, second.token_id)
    if abs(forced - second.logprob) > AGREE:
        raise Wrong(
            f"token {second.token_id} has {second.logprob:.3f} as an alternative and {forced:.3f} when chosen", **facts
        )
    return facts
