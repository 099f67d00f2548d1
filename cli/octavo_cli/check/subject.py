"""The cluster that is checked: asked through the SDK as any client asks, its blocks counted by the scheduler's own account."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from octavo.client import AsyncClient, Completion, ModelInfo, RetryPolicy
from octavo.errors import InternalError

from octavo_cli.probe import Probe

AT_ONCE = 16
FORCED = 100.0
"""Logit bias that makes a token the choice; logprobs are of the logits before it."""
Precision = Literal["float32", "bfloat16"]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Blocks:
    """The cell's KV blocks and requests, by the scheduler's account."""

    total: int
    free: int
    leaked: int
    running: int
    waiting: int
    audits_failed: int = 0
    """Times the scheduler gave up a worker because their accounts differed; it comes back with an empty pool."""

    @property
    def settled(self) -> bool:
        """Nothing runs and everything is back."""
        return self.running == self.waiting == self.leaked == 0 and self.free == self.total > 0


class Subject:
    """One gateway, and the scheduler behind it where its address is known. Use `async with`."""

    def __init__(
        self,
        url: str,
        scheduler: str = "",
        api_key: str = "",
        other_api_key: str = "",
        precision: Precision = "bfloat16",
    ) -> None:
        self.precision = precision
        """Of the served activations: how close to the float32 reference they can be."""
        self._scheduler = scheduler
        retry = RetryPolicy(max_attempts=3)
        self.client = AsyncClient(url, api_key=api_key, retry=retry, deadline_s=120.0)
        self.stranger = (
            AsyncClient(url, api_key=other_api_key, retry=retry, deadline_s=120.0) if other_api_key else None
        )
        """Another tenant."""
        self.salt = f"check-{time.time_ns()}"

    async def __aenter__(self) -> Subject:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        if self.stranger is not None:
            await self.stranger.aclose()

    async def model(self) -> ModelInfo:
        """The served model. Raises OctavoError when there is none."""
        served = await self.client.models()
        if not served:
            raise InternalError("the gateway serves no model; see `octavo status`")
        return served[0]

    async def greedy(self, prompt: str | Sequence[int], max_tokens: int, **options: Any) -> Completion:
        """A greedy completion in the check's own cache namespace."""
        given: dict[str, Any] = {"temperature": 0.0, "cache_salt": self.salt, "ignore_eos": True, **options}
        return await self.client.generate(prompt, max_tokens=max_tokens, **given)

    async def score(self, prompt: Sequence[int], token: int) -> float:
        """log P(token | prompt): the token is forced by a bias, its logprob is that of the logits before."""
        done = await self.greedy(prompt, 1, logit_bias={token: FORCED}, logprobs=0)
        choice = done.choices[0]
        if choice.token_ids != (token,) or not choice.logprobs:
            raise InternalError(f"token {token} was forced by logit_bias and {choice.token_ids} came")
        return choice.logprobs[0].logprob

    async def score_all(self, ids: Sequence[int], start: int) -> list[float]:
        """log P of ids[start:], each given all before it."""
        # the whole text first, so that every position finds all but its last block in the cache
        await self.greedy(ids, 1)
        return await self.all_of(self.score(ids[:at], ids[at]) for at in range(start, len(ids)))

    async def all_of(self, calls: Iterable[Awaitable[_Answer]]) -> list[_Answer]:
        """The answers in order, AT_ONCE requests at a time."""
        room = asyncio.Semaphore(AT_ONCE)

        async def one(call: Awaitable[_Answer]) -> _Answer:
            async with room:
                return await call

        return await asyncio.gather(*(one(call) for call in calls))

    async def blocks(self) -> Blocks | None:
        """None when the scheduler's address is not known or it does not answer."""
        if not self._scheduler:
            return None
        async with Probe(self._scheduler, timeout_s=5.0) as probe:
            status = await probe.status()
        if status is None:
            return None
        return Blocks(
            status.blocks_total,
            status.blocks_free,
            status.blocks_leaked,
            status.requests_running,
            status.requests_waiting,
            int(status.counters["protocol_errors"]) if "protocol_errors" in status.counters else 0,
        )

    async def settled(self, patience_s: float) -> Blocks | None:
        """The blocks once they are settled, or as they stand when patience is over."""
        ends_s = time.monotonic() + patience_s
        while True:
            found = await self.blocks()
            if found is None or found.settled or time.monotonic() > ends_s:
                return found
            await asyncio.sleep(0.1)
