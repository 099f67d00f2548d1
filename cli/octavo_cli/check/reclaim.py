"""Cancellation gives every block back: a cancel, a client that leaves, and a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import DeadlineExceeded

from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Unjudged, Wrong
from octavo_cli.check.subject import Blocks, Subject

PROMPT = "In the beginning there was a long list of numbers:"
LONG = 400
READ = 3
PATIENCE_S = 10.0


def judge(before: Blocks, after: Blocks) -> dict[str, Any]:
    """Raises Wrong when a block did not come back, Unjudged when others used the cluster meanwhile."""
    facts = {"blocks_total": after.total, "blocks_missing": after.total - after.free, "blocks_leaked": after.leaked}
    if after.audits_failed > before.audits_failed:
        raise Wrong("the scheduler's audit found blocks that nobody holds, and gave its worker up", **facts)
    if after.leaked:
        raise Wrong(f"{after.leaked} blocks are held by nobody that the scheduler knows", **facts)
    if after.running or after.waiting:
        raise Unjudged(f"{after.running + after.waiting} requests run or wait; repeat this on an idle cluster")
    if after.total != before.total:
        raise Wrong(f"the pool had {before.total} blocks and has {after.total}: a worker was lost", **facts)
    if after.free != after.total:
        raise Wrong(f"{after.total - after.free} blocks did not come back within {PATIENCE_S:g} s", **facts)
    return facts


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Three requests that are given up in three ways, then the scheduler's account."""
    before = await subject.settled(PATIENCE_S)
    if before is None:
        raise Unjudged("the scheduler's address is not known; give --scheduler HOST:PORT or --run-dir")
    if not before.settled:
        judge(before, before)
    latency_us = await _cancel(subject)
    await _leave(subject)
    await _deadline(subject)
    after = await subject.settled(PATIENCE_S)
    if after is None:
        raise Wrong("the scheduler no longer answers")
    return {**judge(before, after), "cancel_latency_ms": round(latency_us / 1000.0, 3)}


async def _cancel(subject: Subject) -> int:
    async with subject.client.generate_stream(PROMPT, max_tokens=LONG, ignore_eos=True, temperature=0.0) as stream:
        read = 0
        async for chunk in stream:
            read += len(chunk.token_ids)
            if read >= READ:
                break
        outcome = await stream.cancel()
    if not outcome.found or outcome.outcome != "cancelled":
        raise Wrong(f"a running request was cancelled, and the answer is found={outcome.found} {outcome.outcome!r}")
    if outcome.blocks_freed < 1:
        raise Wrong("a running request was cancelled, and no block came back")
    return outcome.latency_us


async def _leave(subject: Subject) -> None:
    async with subject.client.generate_stream(PROMPT, max_tokens=LONG, ignore_eos=True, temperature=0.0) as stream:
        await anext(stream)


async def _deadline(subject: Subject) -> None:
    try:
        done = await subject.client.generate(PROMPT, max_tokens=LONG, ignore_eos=True, temperature=0.0, deadline_s=0.3)
    except DeadlineExceeded:
        return
    if done.finish_reason not in ("deadline", "length"):
        raise Wrong(f"a deadline of 0.3 s ended with {done.finish_reason!r}")
