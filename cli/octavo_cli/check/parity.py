"""Greedy parity: the tokens and logprobs of the reference, position by position, up to a measured tie."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.client import Choice

from octavo_cli.check.reference import Greedy, Reference
from octavo_cli.check.result import Unjudged, Wrong
from octavo_cli.check.subject import Subject
from octavo_cli.check.texts import PROMPTS

TOKENS = 24


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a precision may be from the float32 reference, in natural logarithms."""

    mean: float
    worst: float
    tie: float
    """Best and second token this close may change places."""


TOLERANCES: Mapping[str, Tolerance] = {
    # measured on the shipped reference: float32 itself 1e-5; a zeroed row of a matrix 0.0016 to 0.03 on average (24 rows)
    "float32": Tolerance(0.0005, 0.01, 0.01),
    # bfloat16 against float32: 0.017 on average, 0.08 at worst, so a fault must move logprobs by more than that
    "bfloat16": Tolerance(0.03, 0.4, 0.25),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt: how far the ids agree, and the logprob differences up to there."""

    agreed: int
    differences: tuple[float, ...]
    fault: str = ""


def compare_greedy(reference: Greedy, ids: Sequence[int], logprobs: Sequence[float], tie: float) -> Compared:
    """What a run of the reference's prompt shows. A fault is a token that differs where the reference had no tie."""
    same = 0
    while same < min(len(ids), len(reference.ids)) and ids[same] == reference.ids[same]:
        same += 1
    differences = tuple(abs(a - b) for a, b in zip(logprobs[:same], reference.logprobs[:same], strict=True))
    fault = ""
    if same < len(reference.ids):
        if same >= len(ids):
            fault = f"ended after {same} of {len(reference.ids)} tokens"
        elif reference.margins[same] > tie:
            fault = (
                f"token {same} is {ids[same]}, the reference has {reference.ids[same]}"
                f" with a margin of {reference.margins[same]:.2f}"
            )
    return Compared(same, differences, fault)


def judge(compared: Sequence[Compared], tolerance: Tolerance) -> dict[str, Any]:
    """The figures of all prompts together. Raises Wrong."""
    differences = [value for item in compared for value in item.differences]
    facts = {
        "prompts": len(compared),
        "tokens_compared": len(differences),
        "logprob_mean_difference": round(statistics.fmean(differences), 5) if differences else None,
        "logprob_worst_difference": round(max(differences), 5) if differences else None,
    }
    faults = [item.fault for item in compared if item.fault]
    if faults:
        raise Wrong(f"{len(faults)} of {len(compared)} prompts left the reference, one: {faults[0]}", **facts)
    mean, worst = statistics.fmean(differences), max(differences)
    if mean > tolerance.mean:
        raise Wrong(f"logprobs differ by {mean:.4f} on average; at most {tolerance.mean}", **facts)
    if worst > tolerance.worst:
        raise Wrong(f"a logprob differs by {worst:.3f}; at most {tolerance.worst}", **facts)
    return facts


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Tokenizer, weights, kernels and greedy sampling at once."""
    if reference is None or not reference.parity:
        raise Unjudged("no reference for this model; record one on a trusted cluster with `octavo check --record FILE`")
    for item in reference.parity:
        ids = (await subject.client.tokenize(item.text)).token_ids
        if tuple(ids) != item.prompt_ids:
            raise Wrong(f"{item.text[:40]!r} has other tokens than in the reference: {list(ids)[:8]}")
    tolerance = TOLERANCES[subject.precision]
    done = await subject.all_of(subject.greedy(item.prompt_ids, len(item.ids), logprobs=2) for item in reference.parity)
    compared = [
        compare_greedy(
            item, run.choices[0].token_ids, [entry.logprob for entry in run.choices[0].logprobs], tolerance.tie
        )
        for item, run in zip(reference.parity, done, strict=True)
    ]
    return {"precision": subject.precision, **judge(compared, tolerance)}


async def record(subject: Subject) -> tuple[Greedy, ...]:
    """The served model's own answers, for a reference; one prompt at a time."""
    found = []
    for text in PROMPTS:
        ids = (await subject.client.tokenize(text)).token_ids
        choice = (await subject.greedy(ids, TOKENS, logprobs=2)).choices[0]
        logprobs = tuple(round(item.logprob, 5) for item in choice.logprobs)
        found.append(Greedy(text, tuple(ids), choice.token_ids, logprobs, _margins(choice)))
    return tuple(found)


def _margins(choice: Choice) -> tuple[float, ...]:
    return tuple(round(item.top[0].logprob - item.top[1].logprob, 5) for item in choice.logprobs)
