"""sdk_storm: many SDK clients that ask, cancel, pause, leave and come back at random; every call must end, once, as it says."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster
from octavo.client import AsyncClient, Cancellation, Completion
from octavo.errors import Cancelled, DeadlineExceeded, NoToolCall, OctavoError, Overloaded, UnknownRequest

LOST_AFTER_S = 120.0
TOOLS = [{"name": name, "parameters": {"type": "object"}} for name in ("weather", "now")]


@dataclass
class Storm:
    """What came of it. `wrong`: whatever no caller should see."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    cancels: list[tuple[float, str]] = field(default_factory=list)
    """Seconds to the answer of a cancel, and whose it was; one that got none is told as wrong."""
    footprints: list[dict[str, tuple[float, int]]] = field(default_factory=list)


class Caller:
    """One client and its calls, one after the other with a few at once."""

    def __init__(self, cluster: Cluster, number: int, storm: Storm) -> None:
        self._cluster = cluster
        self._storm = storm
        self._rng = random.Random(number + 7000)
        self._name = f"c{number}"
        self._multiplex = number % 5 != 0
        self._client = self._new_client()
        self._ways: list[Callable[[str], Awaitable[str]]] = [
            self._whole, self._whole, self._streamed, self._left, self._cancelled_by_handle, self._cancelled_by_id,
            self._hurried, self._paused, self._dropped_task, self._attached, self._forced,
        ]  # fmt: skip

    async def run(self, calls: int, ends_s: float) -> None:
        clock = asyncio.get_running_loop().time
        done = 0
        try:
            while done < calls and clock() < ends_s:
                some = min(self._rng.choice([1, 1, 2, 4]), calls - done)
                await asyncio.gather(*(self._one(f"{self._name}-{done + i}") for i in range(some)))
                done += some
                if self._rng.random() < 0.03:
                    await self._reconnect(f"{self._name}-{done}-r")
        finally:
            await self._client.aclose()

    def _new_client(self) -> AsyncClient:
        return AsyncClient(f"grpc://{self._cluster.grpc_address}", multiplex=self._multiplex, deadline_s=100.0)

    async def _one(self, name: str) -> None:
        way = self._rng.choice(self._ways)
        try:
            async with asyncio.timeout(LOST_AFTER_S):
                end = await way(name)
        except TimeoutError:
            end = "lost"
            self._storm.wrong.append(f"{name} {way.__name__}: no end after {LOST_AFTER_S} s")
        except Overloaded as error:
            end = f"overloaded {error.reason}"
        except Exception as error:  # noqa: BLE001  collected: one failure must not hide the others
            end = "wrong"
            self._storm.wrong.append(f"{name} {way.__name__}: {type(error).__name__}: {error}")
        self._storm.ends[f"{way.__name__} {end}"] += 1

    def _asked(self, name: str) -> tuple[list[int], dict[str, Any]]:
        rng = self._rng
        shared = [1000 + k for k in range(rng.choice([0, 0, 48]))]
        own = [1000 + (hash(name) + 31 * k) % 40000 for k in range(rng.choice([4, 12, 40]))]
        options = {"max_tokens": rng.choice([1, 4, 8, 16]), "n": rng.choice([1, 1, 1, 2, 3]), "ignore_eos": True}
        return [*shared, *own], {**options, "temperature": rng.choice([0.0, 0.8]), "seed": 1, "request_id": name}

    def _check(self, done: Completion, prompt: list[int], options: dict[str, Any]) -> str:
        tokens = [len(choice.token_ids) for choice in done.choices]
        assert tokens == [options["max_tokens"]] * options["n"], tokens
        assert done.usage.completion_tokens == sum(tokens) and done.usage.prompt_tokens == len(prompt), done.usage
        assert 0 <= done.usage.cached_tokens <= len(prompt), done.usage
        assert {choice.finish_reason for choice in done.choices} == {"length"}
        assert done.request_id == options["request_id"]
        return "finished"

    async def _whole(self, name: str) -> str:
        prompt, options = self._asked(name)
        return self._check(await self._client.generate(prompt, **options), prompt, options)

    async def _streamed(self, name: str) -> str:
        prompt, options = self._asked(name)
        stream = self._client.generate_stream(prompt, **options)
        async for _chunk in stream:
            await asyncio.sleep(self._rng.choice([0, 0, 0.01]))
        return self._check(await stream.result(), prompt, options)

    async def _left(self, name: str) -> str:
        prompt, options = self._asked(name)
        async with self._client.generate_stream(prompt, **options) as stream:
            async for _chunk in stream:
                if self._rng.random() < 0.3:
                    return "left"
        return "finished"

    async def _cancelled_by_handle(self, name: str) -> str:
        prompt, options = self._asked(name)
        stream = self._client.generate_stream(prompt, **options)
        reading = asyncio.create_task(stream.result())
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        said = await self._timed(name, stream.cancel())
        return await self._end_of(reading, said.found, prompt, options)

    async def _cancelled_by_id(self, name: str) -> str:
        prompt, options = self._asked(name)
        asking = asyncio.create_task(self._client.generate(prompt, **options))
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        said = await self._timed(name, self._client.cancel(name))
        return await self._end_of(asking, said.found, prompt, options)

    async def _timed(self, name: str, cancelling: Awaitable[Cancellation]) -> Cancellation:
        began_s = asyncio.get_running_loop().time()
        try:
            return await cancelling
        except OctavoError as error:
            took_s = asyncio.get_running_loop().time() - began_s
            raise AssertionError(f"no answer of its cancel in {took_s:.1f} s") from error
        finally:
            self._storm.cancels.append((asyncio.get_running_loop().time() - began_s, name))

    async def _end_of(
        self, asking: asyncio.Task[Completion], found: bool, prompt: list[int], options: dict[str, Any]
    ) -> str:
        """A cancel that found nothing to stop may have come before its request, or after its end."""
        try:
            return self._check(await asking, prompt, options)
        except Cancelled:
            assert found, "nothing was cancelled, and it ended as cancelled"
            return "cancelled"

    async def _hurried(self, name: str) -> str:
        prompt, options = self._asked(name)
        try:
            done = await self._client.generate(prompt, **options, deadline_s=self._rng.uniform(0.01, 0.6))
        except DeadlineExceeded:
            return "late"
        return self._check(done, prompt, options)

    async def _paused(self, name: str) -> str:
        prompt, options = self._asked(name)
        options["n"] = 1
        first = await self._client.generate(prompt, **options)
        self._check(first, prompt, options)
        said = await self._client.pause(name, "search", 50)
        await asyncio.sleep(self._rng.uniform(0, 0.1))
        longer = [*prompt, *first.choices[0].token_ids, 7, 8, 9]
        options |= {"request_id": f"{name}-2", "resumes": name}
        self._check(await self._client.generate(longer, **options), longer, options)
        return f"resumed {said.decision}"

    async def _dropped_task(self, name: str) -> str:
        prompt, options = self._asked(name)
        asking = asyncio.create_task(self._client.generate(prompt, **options))
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        asking.cancel()
        (end,) = await asyncio.gather(asking, return_exceptions=True)
        if isinstance(end, Completion):
            return self._check(end, prompt, options)
        assert isinstance(end, asyncio.CancelledError), repr(end)
        return "dropped"

    async def _attached(self, name: str) -> str:
        prompt, options = self._asked(name)
        asking = asyncio.create_task(self._client.generate(prompt, **options))
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        try:
            again = await self._client.attach(name).result()
        except UnknownRequest:
            self._check(await asking, prompt, options)
            return "was not there yet"
        done = await asking
        assert [choice.token_ids for choice in again.choices] == [choice.token_ids for choice in done.choices]
        assert again.usage == done.usage
        return self._check(done, prompt, options)

    async def _forced(self, name: str) -> str:
        choice = self._rng.choice(["required", "function weather", "auto"])
        try:
            done = await self._client.chat(
                "How warm is Bern?", tools=TOOLS, tool_choice=choice, max_tokens=16, temperature=0, request_id=name
            )
        except NoToolCall:
            return "no call"
        assert choice == "auto" or done.tool_calls
        assert done.usage.completion_tokens == len(done.choices[0].token_ids)
        return f"{choice} {done.finish_reason}"

    async def _reconnect(self, name: str) -> None:
        """Goes away with calls under way, as a process that ends."""
        prompt, options = self._asked(name)
        asking = asyncio.create_task(self._client.generate(prompt, **options))
        await asyncio.sleep(self._rng.uniform(0, 0.1))
        await self._client.aclose()
        (end,) = await asyncio.gather(asking, return_exceptions=True)
        fine = isinstance(end, Completion | asyncio.CancelledError | OctavoError)
        self._storm.ends[f"_reconnect {type(end).__name__}"] += 1
        if not fine:
            self._storm.wrong.append(f"{name} _reconnect: {end!r}")
        self._client = self._new_client()


async def sdk_storm(cluster: Cluster, clients: int, calls: int, most_s: float, sample_s: float = 5.0) -> Storm:
    """Runs `calls` of each client, at most for so long; samples memory (MB) and open files of every process, this one included."""
    storm = Storm()
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + most_s

    async def watch() -> None:
        while True:
            storm.footprints.append(footprints(cluster))
            await asyncio.sleep(sample_s)

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(Caller(cluster, number, storm).run(calls, ends_s) for number in range(clients)))
    finally:
        watching.cancel()
    storm.footprints.append(footprints(cluster))
    return storm


def footprints(cluster: Cluster) -> dict[str, tuple[float, int]]:
    """Resident MB without shared memory, and open files, by process."""
    pids = {name: process.pid for name, process in cluster.processes.items()} | {"clients": os.getpid()}
    return {name: (_own_mb(pid), len(os.listdir(f"/proc/{pid}/fd"))) for name, pid in pids.items()}


def _own_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
