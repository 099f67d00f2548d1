"""Where an answer ends: stop strings, stop tokens, the end token, min_tokens and max_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.client import Completion

from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Wrong
from octavo_cli.check.subject import Subject

PROMPT = "The harbour was quiet when the last boat came in, and"
TOKENS = 20
QUESTION = "Say hello."
ROOM = 200


def expect(done: Completion, what: str, reason: str, tokens: int | None = None) -> None:
    """Raises Wrong unless an answer ended for this reason after this many tokens."""
    if done.finish_reason != reason:
        raise Wrong(f"{what}: the answer ended with {done.finish_reason!r}, {reason!r} belongs there")
    if tokens is not None and len(done.choices[0].token_ids) != tokens:
        raise Wrong(f"{what}: {len(done.choices[0].token_ids)} tokens came, {tokens} belong there")


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Every rule against the same greedy answer without it."""
    whole = await subject.greedy(PROMPT, TOKENS)
    expect(whole, "max_tokens", "length", TOKENS)
    await _stop_string(subject, whole)
    await _stop_token(subject, whole)
    return {"end_token": await _end_token(subject)}


async def _stop_string(subject: Subject, whole: Completion) -> None:
    word = whole.text.split()[5]
    before = whole.text[: whole.text.index(word)]
    cut = await subject.greedy(PROMPT, TOKENS, stop=[word])
    expect(cut, f"stop {word!r}", "stop")
    if cut.text != before:
        raise Wrong(f"stop {word!r}: the text is {cut.text!r}, {before!r} belongs there")
    if cut.choices[0].stop_hit != word:
        raise Wrong(f"stop {word!r}: stop_hit says {cut.choices[0].stop_hit!r}")
    kept = await subject.greedy(PROMPT, TOKENS, stop=[word], include_stop_str=True)
    if kept.text != before + word:
        raise Wrong(f"include_stop_str: the text is {kept.text!r}, {before + word!r} belongs there")
    if cut.usage.completion_tokens >= whole.usage.completion_tokens:
        raise Wrong(f"stop {word!r}: {cut.usage.completion_tokens} tokens were billed, as without it")


async def _stop_token(subject: Subject, whole: Completion) -> None:
    ids = whole.choices[0].token_ids
    at = next(k for k in range(6, TOKENS) if ids[k] not in ids[:k])
    cut = await subject.greedy(PROMPT, TOKENS, stop_token_ids=[ids[at]])
    expect(cut, f"stop_token_ids [{ids[at]}]", "stop", at + 1)
    late = await subject.greedy(PROMPT, at + 4, stop_token_ids=[ids[at]], min_tokens=at + 3)
    if len(late.choices[0].token_ids) < at + 3:
        raise Wrong(f"min_tokens {at + 3}: the answer ended after {len(late.choices[0].token_ids)} tokens")


async def _end_token(subject: Subject) -> str:
    """A chat answer ends by itself; the same with ignore_eos does not."""
    options: dict[str, Any] = {"temperature": 0.0, "cache_salt": subject.salt}
    ended = await subject.client.chat(QUESTION, max_tokens=ROOM, **options)
    if ended.finish_reason != "stop":
        return f"not seen: the model talked on for {ROOM} tokens"
    count = len(ended.choices[0].token_ids)
    on = await subject.client.chat(QUESTION, max_tokens=count + 5, ignore_eos=True, **options)
    expect(on, "ignore_eos", "length", count + 5)
    return f"seen after {count} tokens"
