"""Asks a scheduler to drain one of its workers, and follows how far that is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
from octavo.errors import InvalidRequest, Unavailable
from octavo.rpc.channels import open_channel
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc


async def follow_drain(
    address: str, worker_id: str, deadline_s: float, force: bool
) -> AsyncIterator[scheduler_pb2.DrainWorkerResponse]:
    """Progress about twice a second; the last one says drained or lost. Leaving early leaves the drain as it is.

    Raises InvalidRequest for an unknown worker or the last one without `force`, Unavailable when the scheduler is gone.
    """
    request = scheduler_pb2.DrainWorkerRequest(worker_id=worker_id, deadline_us=int(deadline_s * 1e6), force=force)
    async with open_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            async for progress in stub.DrainWorker(request):
                yield progress
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidRequest(error.details() or "refused") from error
            raise Unavailable(f"the scheduler at {address} does not answer: {error.details()}") from error


def progress_line(worker_id: str, progress: scheduler_pb2.DrainWorkerResponse, seconds: float) -> str:
    """One line for people."""
    told = f"{progress.finished} finished, {progress.handed_over} handed over"
    if progress.state == "draining":
        left_s = progress.remaining_us / 1e6
        return (
            f"{worker_id} drains: {progress.running} running, {progress.copying} to copy, {told}, {left_s:.0f} s left"
        )
    if progress.state == "drained":
        return f"{worker_id} drained in {seconds:.1f} s: {told}"
    return f"{worker_id} was lost while it drained ({progress.why}); what ran there goes on elsewhere"
