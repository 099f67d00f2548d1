"""ProfileService of a live worker: the operations of the trace are the table's choice, and every refusal is in words."""

from __future__ import annotations

import asyncio
import json

import grpc.aio
import pytest
from octavo.rpc.channels import open_channel
from octavo.v1 import profile_pb2, profile_pb2_grpc
from octavo_gpuworker.profile import MAX_STEPS
from octavo_gpuworker.profile_service import ProfileServicer

from tests.gpuworker.scripted import admit
from tests.gpuworker.test_service import running_worker


async def call(address: str, on_first=lambda answer: None, **request) -> tuple[profile_pb2.ProfileSummary, bytes]:
    channel = open_channel(address)
    try:
        stub = profile_pb2_grpc.ProfileServiceStub(channel)
        answers = []
        async for answer in stub.Profile(profile_pb2.ProfileRequest(**request), timeout=20):
            if not answers:
                on_first(answer)
            answers.append(answer)
        idle, *rest = answers if answers[0].idle else (None, *answers)
        assert idle is None or idle == profile_pb2.ProfileResponse(idle=True)
        return rest[0].summary, b"".join(answer.trace for answer in rest)
    finally:
        await channel.close(None)


async def serve(servicer: ProfileServicer) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    profile_pb2_grpc.add_ProfileServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def refusal(address: str, **request) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(address, **request)
    return error.value.code().name, error.value.details()


async def test_the_trace_shows_what_the_table_chose(tmp_path) -> None:
    servicer = ProfileServicer()
    server, address = await serve(servicer)
    async with running_worker(tmp_path) as (worker, _, scheduler):
        servicer.attach(worker.worker_id, worker.backend.name, worker.backend.profiler, lambda: worker.engine.busy)
        stream = await scheduler.stream()
        await stream.join(1)
        wanted = asyncio.create_task(call(address, steps=4, limit_ms=10_000))
        while worker.backend.profiler._wanted is None:
            await asyncio.sleep(0.01)
        assert (await refusal(address, steps=1))[0] == "RESOURCE_EXHAUSTED", "one at a time"
        await stream.orders(admit(1, blocks=range(1, 12), max_len=40))
        summary, trace = await wanted
        kernels = worker.backend.decoder.kernels
        await stream.orders(admit(2, blocks=range(20, 31), max_len=40))
        again, _ = await call(address, steps=1, limit_ms=10_000)
    await server.stop(None)
    assert (summary.worker, summary.steps, again.steps) == ("w1", 4, 1)
    operations = {row.name: row for row in summary.kernels if row.kind == profile_pb2.ProfiledKernel.KIND_OPERATION}
    chosen = {choice.operation: choice.chosen for choice in kernels.choices}
    used = ("linear", "rms_norm", "add_rms_norm", "store_kv", "paged_attention", "silu_mul")
    assert set(operations) == {f"{operation}/{chosen[operation]}" for operation in used}
    layers = worker.backend.decoder.config.layers
    assert {name.split("/")[0]: row.calls for name, row in operations.items()} == {
        "linear": 4 * (4 * layers + 1),
        "rms_norm": 4,
        "add_rms_norm": 4 * 2 * layers,
        "store_kv": 4 * layers,
        "paged_attention": 4 * layers,
        "silu_mul": 4 * layers,
    }
    assert all(row.time_us > 0 and row.bytes > 0 for row in operations.values())
    weights = worker.backend.decoder.weights
    matrices = sum(
        matrix.numel() * 4 for layer in weights.layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    read = operations[f"linear/{chosen['linear']}"].bytes / 4
    assert matrices < read < matrices + weights.head.numel() * 4 + 64 * 1024, "each matrix once a step, and the rows"
    assert any(
        row.name.startswith("aten::") for row in summary.kernels if row.kind == profile_pb2.ProfiledKernel.KIND_KERNEL
    )
    times = [row.time_us for row in summary.kernels]
    assert times == sorted(times, reverse=True)
    names = {event.get("name") for event in json.loads(trace)["traceEvents"]}
    assert {f"octavo::{name}" for name in operations} <= names
    assert all(counter.observer is None for counter in kernels._counters.values()), "nobody looks on"


@pytest.mark.parametrize("steps", [0, MAX_STEPS + 1])
async def test_steps_out_of_range(steps) -> None:
    server, address = await serve(ProfileServicer())
    assert await refusal(address, steps=steps) == ("INVALID_ARGUMENT", f"steps: {steps} must be between 1 and 100")
    await server.stop(None)


async def test_a_worker_that_loads_and_a_backend_without_a_profiler() -> None:
    servicer = ProfileServicer()
    server, address = await serve(servicer)
    assert await refusal(address, steps=1) == ("UNAVAILABLE", "the worker is still loading its model; try again")
    servicer.attach("w1", "native", None, lambda: True)
    code, words = await refusal(address, steps=1)
    assert code == "FAILED_PRECONDITION"
    assert words.startswith("the native backend has no profiler; start the worker with engine.kernels")
    await server.stop(None)


async def test_an_idle_worker_ends_the_wait_and_can_be_asked_again(tmp_path) -> None:
    servicer = ProfileServicer()
    server, address = await serve(servicer)
    async with running_worker(tmp_path) as (worker, _, scheduler):
        servicer.attach(worker.worker_id, worker.backend.name, worker.backend.profiler, lambda: worker.engine.busy)
        code, words = await refusal(address, steps=3, limit_ms=50)
        assert (code, words.split(";")[0]) == ("DEADLINE_EXCEEDED", "fewer than 3 steps ran within 0.05 s")
        stream = await scheduler.stream()
        await stream.join(1)
        first = asyncio.get_running_loop().create_future()
        wanted = asyncio.create_task(call(address, steps=2, limit_ms=10_000, on_first=first.set_result))
        assert (await first).idle, "told before anything ran"
        await stream.orders(admit(1, blocks=range(1, 12), max_len=40))
        assert (await wanted)[0].steps == 2
    await server.stop(None)
