"""Prefixes are shared within a namespace and never across: not between salts, not between tenants, not when cache is off."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from octavo.client import AsyncClient

from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Unjudged, Wrong
from octavo_cli.check.subject import Subject

PROMPT_TOKENS = 96
TOKENS = 8


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Who may find a prompt that was just sent, and who must not."""
    vocab_size = (await subject.model()).vocab_size
    draw = random.Random(subject.salt)
    low = vocab_size // 50
    ids = [draw.randrange(low, vocab_size) for _ in range(PROMPT_TOKENS)]
    own, other = f"{subject.salt}-a", f"{subject.salt}-b"
    cold, answer = await _ask(subject.client, ids, cache_salt=own)
    if cold:
        raise Wrong(f"a prompt nobody sent before found {cold} cached tokens")
    warm, again = await _ask(subject.client, ids, cache_salt=own)
    if not warm:
        raise Unjudged("the prefix cache keeps nothing here (cache.prefix is off, or the pool is too small)")
    for who, client, options in (
        ("another cache_salt", subject.client, {"cache_salt": other}),
        ("no cache_salt", subject.client, {}),
        ("another tenant", subject.stranger, {"cache_salt": own}),
    ):
        if client is None:
            continue
        found, same = await _ask(client, ids, **options)
        if found:
            raise Wrong(f"{who} found {found} tokens of a prompt in a namespace that is not its own")
        if same[:1] != answer[:1]:
            raise Wrong(f"{who} changed the answer")
    if again[:1] != answer[:1]:
        raise Wrong("a cached prompt has another answer than the same prompt uncached")
    secret = [draw.randrange(low, vocab_size) for _ in range(PROMPT_TOKENS)]
    await _ask(subject.client, secret, cache_salt=own, cache_off=True)
    kept, _answer = await _ask(subject.client, secret, cache_salt=own)
    if kept:
        raise Wrong(f"a prompt sent with cache_off left {kept} tokens in the cache")
    return {"cached_tokens": warm, "tenants": 2 if subject.stranger else 1}


async def _ask(client: AsyncClient, ids: list[int], **options: Any) -> tuple[int, tuple[int, ...]]:
    done = await client.generate(ids, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, **options)
    return done.usage.cached_tokens, done.choices[0].token_ids
