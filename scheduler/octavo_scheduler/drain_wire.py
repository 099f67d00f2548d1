"""DrainWorker: orders the drain, then tells how far it is until the worker has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from octavo.errors import InvalidRequest
from octavo.v1 import scheduler_pb2 as pb

from octavo_scheduler.driver import Driver
from octavo_scheduler.events import DrainRequested
from octavo_scheduler.fleet import Worker

TELL_S = 0.5
LOOK_S = 0.05
"""How soon after the worker's end the last message leaves."""


async def drain(driver: Driver, request: pb.DrainWorkerRequest) -> AsyncIterator[pb.DrainWorkerResponse]:
    """Orders the drain and yields its progress. Raises InvalidRequest for an unknown worker, or the last without force.

    Whoever stops reading leaves the drain as it is.
    """
    worker = _named(driver, request)
    driver.feed(DrainRequested(driver.clock_us(), request.worker_id, request.deadline_us))
    connection = driver.workers.get(worker.epoch)
    seqs = set(worker.sequences)
    told_s = 0.0
    loop = asyncio.get_running_loop()
    while worker.epoch in driver.core.cell.fleet.workers:
        if loop.time() - told_s >= TELL_S:
            told_s = loop.time()
            yield _progress(driver, worker, seqs, "draining")
        await asyncio.sleep(LOOK_S)
    why = connection.why if connection is not None else ""
    state = "drained" if why == "drained" else "lost"
    yield _progress(driver, worker, seqs, state, "" if state == "drained" else why or "its stream ended")


def _named(driver: Driver, request: pb.DrainWorkerRequest) -> Worker:
    fleet = driver.core.cell.fleet
    worker = fleet.by_name(request.worker_id)
    if worker is None:
        known = ", ".join(item.worker_id for item in fleet.workers.values()) or "none"
        raise InvalidRequest(
            f"{request.worker_id[:80]!r} is no worker of this cell; connected: {known}", field="worker_id"
        )
    if not request.force and fleet.accepting() == [worker]:
        raise InvalidRequest(
            f"{request.worker_id} is the last worker that takes requests: they would wait, and fail without another; "
            "start one first, or force it (--force)",
            field="force",
        )
    return worker


def _progress(driver: Driver, worker: Worker, seqs: set[int], state: str, why: str = "") -> pb.DrainWorkerResponse:
    left = len(seqs - worker.sequences.keys()) if state == "draining" else len(seqs)
    remaining_us = worker.drain_until_us - driver.clock_us()
    return pb.DrainWorkerResponse(
        state=state,
        running=len(worker.sequences),
        copying=len(worker.transfers) + len(worker.offload_candidates),
        remaining_us=max(0, remaining_us) if worker.drain_until_us >= 0 else 0,
        finished=max(0, left - worker.handed_over) if state != "lost" else 0,
        handed_over=worker.handed_over,
        why=why,
    )
