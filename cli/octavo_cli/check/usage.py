"""What is billed is what was sent and received."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Wrong
from octavo_cli.check.subject import Subject

PROMPT = "The recipe asks for two cups of flour, one cup of sugar and"


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Prompt tokens as the tokenizer counts them, completion tokens as they arrived, over all choices; chat too."""
    counted = (await subject.client.count_tokens(PROMPT)).tokens
    one = await subject.greedy(PROMPT, 9)
    _equal("prompt_tokens", one.usage.prompt_tokens, counted)
    _equal("completion_tokens", one.usage.completion_tokens, len(one.choices[0].token_ids))
    two = await subject.greedy(PROMPT, 7, n=2, temperature=1.0, seed=5)
    _equal("prompt_tokens of n 2", two.usage.prompt_tokens, counted)
    _equal("completion_tokens of n 2", two.usage.completion_tokens, sum(len(item.token_ids) for item in two.choices))
    if not 0 <= two.usage.cached_tokens <= counted:
        raise Wrong(f"cached_tokens: {two.usage.cached_tokens} of a prompt of {counted}")
    messages = [{"role": "user", "content": PROMPT}]
    chat = await subject.client.chat(messages, max_tokens=4, temperature=0.0, cache_salt=subject.salt)
    _equal("prompt_tokens of a chat", chat.usage.prompt_tokens, (await subject.client.count_tokens(messages)).tokens)
    return {"prompt_tokens": counted}


def _equal(what: str, billed: int, real: int) -> None:
    if billed != real:
        raise Wrong(f"{what}: {billed} were billed, {real} there were")
