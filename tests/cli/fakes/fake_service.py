"""Stands in for any of the four services: the real process frame, no model.

`<run_dir>/fake-<name>.json` says what goes wrong: {"die": [exit code, line], "say": [lines], "hang_s": seconds,
"not_serving": why, "ignore_term": true, "leave_s": seconds}; <name> is the worker id, else the service's kind.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from fake_inference import FakeInference
from octavo.errors import OctavoError
from octavo.rpc.host import LEFT, Host, run_service
from octavo.v1 import inference_pb2, inference_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc


class FakeFailure(OctavoError):
    exit_code = 1


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    async def DrainWorker(
        self, request: scheduler_pb2.DrainWorkerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[scheduler_pb2.DrainWorkerResponse]:
        name = request.worker_id
        if not name.startswith("gpuworker-"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name!r} is no worker of this cell; connected: w")
        said = {"running": 2, "remaining_us": request.deadline_us}
        yield scheduler_pb2.DrainWorkerResponse(state="draining", **said)
        if request.force:
            yield scheduler_pb2.DrainWorkerResponse(state="lost", why="silent for 5 s")
        else:
            yield scheduler_pb2.DrainWorkerResponse(state="drained", finished=1, handed_over=1)

    async def GetStatus(self, request: object, context: object) -> scheduler_pb2.GetStatusResponse:
        return scheduler_pb2.GetStatusResponse(
            ready=True, blocks_total=64, blocks_free=60, blocks_cached=5, blocks_leaked=0, counters={"steps": 7.0}
        )


async def setup(host: Host) -> None:
    manifest = host.manifest
    name = manifest.gpuworker.worker_id if host.name == "gpuworker" else host.name
    script_path = host.run_dir / f"fake-{name}.json"
    script = json.loads(script_path.read_text()) if script_path.exists() else {}
    for line in script.get("say", []):
        host.log.info("%s", line)
    if "die" in script:
        error = FakeFailure(script["die"][1])
        error.exit_code = script["die"][0]
        raise error
    if script.get("ignore_term"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    listen = {
        "scheduler": manifest.scheduler.listen,
        "kvstore": manifest.kvstore.listen,
        "gpuworker": manifest.gpuworker.listen,
        "gateway": manifest.gateway.grpc_listen,
    }[host.name]
    if host.name == "scheduler":
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(FakeScheduler(), host.server)
        host.announce(scheduler_pb2.DESCRIPTOR)
    if host.name == "gateway":
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(FakeInference(host.tracer), host.server)
        host.announce(inference_pb2.DESCRIPTOR)
        host.urls["http"] = f"http://{manifest.gateway.http_listen}"
    await host.listen(listen)
    await asyncio.sleep(script.get("hang_s", 0.0))
    if "not_serving" in script:
        host.set_state("not_serving", script["not_serving"])
    else:
        host.set_state("serving")
    order_path = host.run_dir / "stop-order"

    async def note_drain() -> None:
        with order_path.open("a") as order:
            order.write(name + "\n")

    host.on_drain(note_drain)
    if "leave_s" in script:  # as a worker that was drained
        await asyncio.sleep(script["leave_s"])
        host.exit(0, LEFT)


def serve(kind: str) -> int:
    return run_service(kind, setup, sys.argv[1:])
