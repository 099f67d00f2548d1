"""octavo.v1.ProfileService: records the worker's next steps and streams the trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, Final

import grpc.aio
from octavo.v1 import profile_pb2 as pb
from octavo.v1 import profile_pb2_grpc

from octavo_gpuworker.profile import MAX_STEPS, ProfileBusy, Profiler, StepProfile

PIECE_BYTES: Final = 1 << 20
DEFAULT_LIMIT_S: Final = 30.0
KINDS: Final = {"operation": pb.ProfiledKernel.KIND_OPERATION, "kernel": pb.ProfiledKernel.KIND_KERNEL}


class ProfileServicer(profile_pb2_grpc.ProfileServiceServicer):
    """Answers from the start of the process; until `attach`, that the model is still loading."""

    def __init__(self) -> None:
        self._worker = ""
        self._backend = ""
        self._profiler: Profiler | None = None
        self._busy: Callable[[], bool] = lambda: True

    def attach(self, worker: str, backend: str, profiler: Profiler | None, busy: Callable[[], bool]) -> None:
        """The model is loaded; `profiler` None: this backend has none. `busy`: whether it holds sequences."""
        self._busy = busy
        self._worker, self._backend, self._profiler = worker, backend, profiler

    async def Profile(
        self, request: pb.ProfileRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ProfileResponse]:
        if not 1 <= request.steps <= MAX_STEPS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"steps: {request.steps} must be between 1 and {MAX_STEPS}"
            )
        if not self._worker:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is still loading its model; try again")
        if self._profiler is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the {self._backend} backend has no profiler; start the worker with engine.kernels torch or triton",
            )
            return
        try:
            wanted = self._profiler.request(request.steps)
        except ProfileBusy as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            return
        limit_s = request.limit_ms / 1000 or DEFAULT_LIMIT_S
        try:
            if not self._busy():
                yield pb.ProfileResponse(idle=True)
            found = await self._wait(wanted, limit_s)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"fewer than {request.steps} steps ran within {limit_s:g} s; send requests meanwhile, or give fewer steps",
            )
            return
        finally:
            self._profiler.cancel(wanted)
        yield pb.ProfileResponse(summary=self._summary(found))
        for start in range(0, len(found.trace), PIECE_BYTES):
            yield pb.ProfileResponse(trace=found.trace[start : start + PIECE_BYTES])

    async def _wait(self, wanted: Future[StepProfile], limit_s: float) -> StepProfile:
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(wanted)

    def _summary(self, found: StepProfile) -> pb.ProfileSummary:
        rows = [
            pb.ProfiledKernel(
                kind=KINDS[row.kind], name=row.name, calls=row.calls, time_us=row.time_us, bytes=row.bytes
            )
            for row in found.rows
        ]
        return pb.ProfileSummary(steps=found.steps, worker=self._worker, kernels=rows)
