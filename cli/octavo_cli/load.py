"""A closed loop of load on a gateway through the SDK: `concurrency` clients, each asks again when its answer is there.

TTFT: call to first token on the client's clock. ITL: gaps between chunks after the first, a gap before k tokens counted
as k gaps of 1/k, pooled over requests. TPOT: (last token - first token) / (tokens - 1) per request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.client import AsyncClient, RetryPolicy
from octavo.errors import InternalError, OctavoError
from octavo.figures import Figure, Figures, figure_of

SHARES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is sent. Prompts are random token ids, all different, so that no prefix is shared."""

    concurrency: int
    requests: int
    prompt_tokens: int
    max_tokens: int
    seed: int = 0


@dataclass(slots=True)
class Measured:
    """What the clients saw; times in milliseconds."""

    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    e2e_ms: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    wall_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def prompts(plan: LoadPlan, vocab_size: int) -> list[list[int]]:
    """One prompt per request, drawn from the middle of the vocabulary; the same for the same seed."""
    draw = random.Random(plan.seed)
    low, high = vocab_size // 50, vocab_size - 1
    return [[draw.randint(low, high) for _ in range(plan.prompt_tokens)] for _ in range(plan.requests)]


async def run_load(url: str, plan: LoadPlan, api_key: str = "") -> Measured:
    """Sends the plan and waits for its end; a request that failed is counted, not raised."""
    async with AsyncClient(url, api_key=api_key, retry=RetryPolicy(max_attempts=1, resume_window_s=0)) as client:
        models = await client.models()
        if not models:
            raise InternalError("the gateway serves no model; see `octavo status`")
        waiting = prompts(plan, models[0].vocab_size or 32000)
        await client.generate(prompts(plan, models[0].vocab_size or 32000)[0][:8], max_tokens=2, ignore_eos=True)
        measured = Measured()
        began_s = time.perf_counter()
        await asyncio.gather(*(_client(client, plan, waiting, measured) for _ in range(plan.concurrency)))
        measured.wall_s = time.perf_counter() - began_s
    return measured


async def _client(client: AsyncClient, plan: LoadPlan, waiting: list[list[int]], measured: Measured) -> None:
    while waiting:
        try:
            await _ask(client, plan, waiting.pop(), measured)
        except OctavoError as error:
            measured.failures.append(f"{error.reason}: {error}")


async def _ask(client: AsyncClient, plan: LoadPlan, prompt: Sequence[int], measured: Measured) -> None:
    began_s = time.perf_counter()
    first_s = last_s = 0.0
    gaps: list[float] = []
    tokens = 0
    stream = client.generate_stream(prompt, max_tokens=plan.max_tokens, temperature=0.0, ignore_eos=True)
    async for chunk in stream:
        count = len(chunk.token_ids)
        if count == 0:
            continue
        now_s = time.perf_counter()
        if first_s == 0.0:
            first_s = now_s
        else:
            gaps += [(now_s - last_s) * 1000.0 / count] * count
        last_s = now_s
        tokens += count
    done = await stream.result()
    if first_s == 0.0:
        raise InternalError("a request ended without a token")
    measured.ttft_ms.append((first_s - began_s) * 1000.0)
    measured.e2e_ms.append((last_s - began_s) * 1000.0)
    measured.itl_ms += gaps
    if tokens > 1:
        measured.tpot_ms.append((last_s - first_s) * 1000.0 / (tokens - 1))
    measured.prompt_tokens += done.usage.prompt_tokens
    measured.cached_tokens += done.usage.cached_tokens
    measured.completion_tokens += done.usage.completion_tokens


def figures_of(plan: LoadPlan, measured: Measured) -> Figures:
    """The measured values in the house's form. Raises InternalError when every request failed."""
    if not measured.ttft_ms:
        raise InternalError(f"all {plan.requests} requests failed, the first with {measured.failures[0]}")
    point = f"c{plan.concurrency}"
    results: list[Figure] = []
    for name, samples in (("ttft", measured.ttft_ms), ("itl", measured.itl_ms), ("tpot", measured.tpot_ms)):
        if samples:
            results += [figure_of(f"{name}_{word}/{point}", samples, "ms", share) for share, word in SHARES]
    results.append(figure_of(f"e2e_p50/{point}", measured.e2e_ms, "ms"))
    count = len(measured.ttft_ms)
    for name, amount, unit in (
        ("output_rate", measured.completion_tokens, "tokens/s"),
        ("total_rate", measured.completion_tokens + measured.prompt_tokens, "tokens/s"),
        ("request_rate", count, "requests/s"),
    ):
        results.append(Figure(f"{name}/{point}", amount / measured.wall_s, unit, n=count))
    results.append(Figure(f"failures/{point}", len(measured.failures), "requests", n=plan.requests))
    results.append(Figure(f"cached_tokens/{point}", measured.cached_tokens, "tokens", n=count))
    config = {
        "concurrency": plan.concurrency,
        "requests": plan.requests,
        "prompt_tokens": plan.prompt_tokens,
        "max_tokens": plan.max_tokens,
        "seed": plan.seed,
        "loop": "closed",
    }
    return Figures("serve", tuple(results), config)
