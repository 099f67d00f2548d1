"""Perplexity on shipped prose and accuracy on shipped questions, against the whole-precision reference.

Perplexity is exp of the mean negative log probability per token, each token forced in turn (`Subject.score`). A
question is answered by the ending with the highest log probability per token (as in lm-evaluation-harness, acc_norm).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_cli.check.reference import Quality, Reference
from octavo_cli.check.result import Unjudged, Wrong
from octavo_cli.check.subject import Subject
from octavo_cli.check.texts import PROSE, QUESTIONS

FIRST_SCORED = 16
"""Tokens of the prose that are only context."""
MAX_PERPLEXITY_RATIO = 1.03
MAX_LOST_QUESTIONS = 2


def judge(found: Quality, reference: Quality) -> dict[str, Any]:
    """Raises Wrong when the served variant is worse than the reference allows."""
    ratio = found.perplexity / reference.perplexity
    lost = round((reference.accuracy - found.accuracy) * found.questions)
    facts = {
        "perplexity": round(found.perplexity, 4),
        "perplexity_reference": round(reference.perplexity, 4),
        "perplexity_ratio": round(ratio, 4),
        "accuracy": round(found.accuracy, 4),
        "accuracy_reference": round(reference.accuracy, 4),
    }
    if (found.tokens, found.questions) != (reference.tokens, reference.questions):
        raise Unjudged("the reference was recorded on other texts; record it again with `octavo check --record FILE`")
    if ratio > MAX_PERPLEXITY_RATIO:
        raise Wrong(f"perplexity is {ratio:.3f} times the reference's; at most {MAX_PERPLEXITY_RATIO}", **facts)
    if lost > MAX_LOST_QUESTIONS:
        raise Wrong(f"{lost} questions fewer are answered than by the reference; at most {MAX_LOST_QUESTIONS}", **facts)
    return facts


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Against the reference's bfloat16."""
    if reference is None or reference.quality is None:
        raise Unjudged("no whole-precision reference for this model; record one with `octavo check --record FILE`")
    return judge(await measure(subject), reference.quality)


async def measure(subject: Subject) -> Quality:
    """The served variant's own figures."""
    ids = (await subject.client.tokenize(PROSE)).token_ids
    scores = await subject.score_all(ids, FIRST_SCORED)
    right = await subject.all_of(_answered(subject, beginning, endings) for beginning, endings in QUESTIONS)
    return Quality(
        round(math.exp(-statistics.fmean(scores)), 5), len(scores), round(sum(right) / len(right), 5), len(right)
    )


async def _answered(subject: Subject, beginning: str, endings: Sequence[str]) -> bool:
    prompt = (await subject.client.tokenize(beginning)).token_ids
    values = []
    for ending in endings:
        ids = (*prompt, *(await subject.client.tokenize(ending, add_bos=False)).token_ids)
        scores = [await subject.score(ids[:at], ids[at]) for at in range(len(prompt), len(ids))]
        values.append(statistics.fmean(scores))
    return values[0] == max(values)
