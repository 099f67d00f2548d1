"""Sends a workload to a target and samples what the client sees. One asyncio loop; the only clock of the generator.

An open loop starts every session at its drawn time whatever became of the others; a closed loop keeps a number of
clients busy. A turn that follows another arrives when the one before has ended and its pause is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from octavo.errors import Cancelled, OctavoError

from octavo_cli.bench.sample import Run, Sample, ServerTimes
from octavo_cli.bench.target import Described, Request, Target, Usage, is_rejection
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, draw_tokens

QUIET_S = 0.02
"""An open loop's wait for the next arrival that is long enough to collect the youngest garbage in it."""
GIVE_UP_S = 600.0
"""After the last arrival of an open loop: what still runs is counted as failed."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How every request of a run is asked."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = True
    cache_salt: str = ""
    pause_s: float = 0.0
    """Of a closed loop's client between two sessions."""
    give_up_s: float = GIVE_UP_S


@contextlib.asynccontextmanager
async def _all_ended(tasks: list[asyncio.Task[None]]) -> AsyncIterator[None]:
    """No task outlives the block: an interrupted run must not go on sending through a target that is closed."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gc.unfreeze()
        gc.enable()


class _Ear:
    """Stamps what a target hands on; one per request."""

    def __init__(self, sample: Sample, zero_s: float, leave_after: int) -> None:
        self._sample = sample
        self._zero_s = zero_s
        self._leave_after = leave_after

    def part(self, tokens: int, token_ids: tuple[int, ...] = (), text: str = "") -> bool:
        sample = self._sample
        if tokens:
            sample.arrivals.append((time.perf_counter() - self._zero_s, tokens))
            sample.output_tokens += tokens
        sample.token_ids.extend(token_ids)
        sample.text += text
        left = 0 < self._leave_after <= sample.output_tokens
        if left:
            sample.outcome = "cancelled"
        return left

    def usage(self, usage: Usage, server: ServerTimes) -> None:
        sample = self._sample
        sample.server = server
        sample.prompt_tokens = usage.prompt_tokens if usage.prompt_tokens is not None else sample.prompt_tokens
        sample.cached_tokens = usage.cached_tokens
        sample.tokens_known = usage.output_tokens is not None
        if usage.output_tokens is not None:
            sample.output_tokens = usage.output_tokens


class Runner:
    """Runs workloads against one target that was described."""

    def __init__(self, target: Target, described: Described, asking: Asking) -> None:
        self._target = target
        self._described = described
        self._asking = asking
        self._zero_s = 0.0
        self._samples: list[Sample] = []

    async def open_loop(self, sessions: Sequence[Session], times_s: Sequence[float]) -> Run:
        """One session at each time, seconds from now, ascending. Raises BadPlan when a session cannot be sent."""
        self._check(sessions[: len(times_s)])
        began_cpu_s = self._start()
        tasks: list[asyncio.Task[None]] = []
        async with _all_ended(tasks):
            gc.disable()  # a collection would make the next request late: they take place between arrivals
            for session, at_s in zip(sessions, times_s, strict=False):
                tokens = self._tokens_of(session.turns[0])  # drawn before its time, which must not wait for it
                if at_s - self._now_s() > QUIET_S:
                    gc.collect(0)
                await self._until(at_s)
                tasks.append(asyncio.create_task(self._session(session, at_s, tokens)))
            return await self._finish(tasks, began_cpu_s, self._asking.give_up_s)

    async def closed_loop(self, sessions: Sequence[Session], concurrency: int) -> Run:
        """`concurrency` clients; each takes the next session when its own has ended. Raises BadPlan."""
        if concurrency < 1:
            raise BadPlan(f"--concurrency: {concurrency} is too few; give at least 1", field="concurrency")
        self._check(sessions)
        began_cpu_s = self._start()
        waiting = iter(sessions)
        clients = [asyncio.create_task(self._client(waiting)) for _ in range(concurrency)]
        async with _all_ended(clients):
            return await self._finish(clients, began_cpu_s, None)  # each request has its target's own limit

    def _start(self) -> float:
        self._samples = []
        gc.collect()
        gc.freeze()  # a collection of what was loaded long ago would show as the server's stall
        self._zero_s = time.perf_counter()
        return time.process_time()

    async def _finish(self, tasks: Sequence[asyncio.Task[None]], began_cpu_s: float, limit_s: float | None) -> Run:
        _done, late = await asyncio.wait(tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for sample in self._samples:
            if sample.outcome == "running":
                sample.outcome, sample.reason = "failed", f"no end {limit_s:g} s after the last arrival"
                sample.ended_s = self._now_s()
        return Run(tuple(self._samples), time.process_time() - began_cpu_s)

    async def _client(self, waiting: Iterable[Session]) -> None:
        for number, session in enumerate(waiting):
            tokens = self._tokens_of(session.turns[0])
            await asyncio.sleep(self._asking.pause_s if number else 0.0)
            await self._session(session, self._now_s(), tokens)

    async def _session(self, session: Session, at_s: float, first_tokens: list[int]) -> None:
        """All turns; a turn that got no whole answer ends the session."""
        history: list[int] = []
        said: list[tuple[str, str]] = []
        for number, turn in enumerate(session.turns):
            new = first_tokens if number == 0 else self._tokens_of(turn)
            if number:
                at_s = self._now_s() + turn.pause_s
                await self._until(at_s)
            history += new
            if turn.text:
                said.append(("user", turn.text))
            sample = Sample(session.name, number, at_s, session.duplicate, prompt_tokens=len(history))
            self._samples.append(sample)
            await self._ask(sample, turn, tuple(history), tuple(said))
            if sample.outcome != "ok":
                return
            # a server that sends no ids gets others in their place, so that the next prompt is as long
            stand_in = Piece(f"answer {session.name}/{number}", sample.output_tokens)
            history += sample.token_ids or draw_tokens([stand_in], self._described.vocab_size)
            said.append(("assistant", sample.text))

    async def _ask(
        self, sample: Sample, turn: Turn, tokens: tuple[int, ...], said: tuple[tuple[str, str], ...]
    ) -> None:
        asking = self._asking
        request = Request(
            max_tokens=turn.max_tokens,
            token_ids=() if turn.text else tokens,
            messages=said if turn.text else (),
            temperature=asking.temperature,
            top_p=asking.top_p,
            seed=asking.seed,
            ignore_eos=asking.ignore_eos,
            cache_salt=asking.cache_salt,
        )
        sample.sent_s = self._now_s()
        try:
            await self._target.send(request, _Ear(sample, self._zero_s, turn.cancel_after))
            if sample.outcome == "running":
                sample.outcome = "ok"
        except Cancelled as error:
            sample.outcome, sample.reason = "cancelled", error.reason
        except OctavoError as error:
            sample.outcome = "rejected" if is_rejection(error, bool(sample.arrivals)) else "failed"
            sample.reason = f"{error.reason}: {error}"
        sample.ended_s = self._now_s()

    def _tokens_of(self, turn: Turn) -> list[int]:
        return draw_tokens(turn.pieces, self._described.vocab_size)

    def _now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    async def _until(self, at_s: float) -> None:
        remaining_s = at_s - self._now_s()
        await asyncio.sleep(max(0.0, remaining_s))

    def _check(self, sessions: Sequence[Session]) -> None:
        """Refuses, before anything is sent, what the model's context cannot hold."""
        limit = self._described.max_model_len
        for session in sessions:
            total = sum(turn.new_tokens + turn.max_tokens for turn in session.turns)
            if total > limit:
                raise BadPlan(
                    f"workload: session {session.name} needs {total} tokens of context and {self._described.model} has"
                    f" {limit}; give shorter lengths, fewer turns, or --fit to leave such sessions out",
                    field="workload",
                )
