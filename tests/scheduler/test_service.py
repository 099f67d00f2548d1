"""Service and driver with chaos workers over real grpc.aio on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TextIO

import grpc.aio
import pytest
from octavo.packing import pack_u32, unpack_u32
from octavo.rpc.channels import open_channel
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import scheduler_pb2_grpc as pb_grpc
from octavo.v1 import worker_pb2 as wpb
from octavo_scheduler.driver import Driver
from octavo_scheduler.observer import Observer
from octavo_scheduler.policy import Policy
from octavo_scheduler.service import SchedulerServicer
from octavo_scheduler.wire import WireError, tokens_array

from tests.scheduler.chaos import ChaosWorker, expected_output
from tests.scheduler.chaos_link import LiveGateway, LiveStore, LiveWorker, chaos
from tests.scheduler.chaos_store import ChaosStore

LOG = logging.getLogger("test")


@dataclass
class Cell:
    address: str
    driver: Driver
    channel: grpc.aio.Channel

    async def status(self) -> pb.GetStatusResponse:
        stub = pb_grpc.SchedulerServiceStub(self.channel)  # type: ignore[no-untyped-call]
        answer: pb.GetStatusResponse = await stub.GetStatus(pb.GetStatusRequest())
        return answer

    async def all_free(self) -> pb.GetStatusResponse:
        """The status once the last release has arrived."""
        async with asyncio.timeout(10):
            while (answer := await self.status()).blocks_free < answer.blocks_total:
                await asyncio.sleep(0.01)
        return answer


@contextlib.asynccontextmanager
async def running_cell(
    policy: Policy | None = None, event_log: TextIO | None = None, **options: Any
) -> AsyncIterator[Cell]:
    driver = Driver(policy or Policy(), Observer(None, LOG), LOG, event_log=event_log)
    server = grpc.aio.server()
    pb_grpc.add_SchedulerServiceServicer_to_server(SchedulerServicer(driver, LOG, **options), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    loop_task = asyncio.ensure_future(driver.run())
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield Cell(f"127.0.0.1:{port}", driver, channel)
    finally:
        loop_task.cancel()
        await asyncio.gather(loop_task, return_exceptions=True)
        await server.stop(0)


@contextlib.asynccontextmanager
async def running_worker(cell: Cell, worker: ChaosWorker, step_s: float = 0.001) -> AsyncIterator[LiveWorker]:
    live = LiveWorker(cell.address, worker, step_s)
    task = asyncio.ensure_future(live.run())
    try:
        yield live
        if task.done():
            task.result()  # an assertion of the chaos worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_request_in_and_its_tokens_out() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1)), LiveGateway(cell.channel) as gateway:
        await gateway.until(lambda: gateway.welcome.ready)
        assert gateway.welcome.block_tokens == 4 and gateway.welcome.max_request_blocks == 32
        assert gateway.welcome.max_model_len == 32 * 4 + 1
        await gateway.submit("a", [1, 2, 3, 4, 5, 6], 20, seed=5)
        await gateway.until(lambda: "a" in gateway.finished)
        want, reason = expected_output(5, 6, 20, [])
        assert gateway.got["a"][0] == want and gateway.ended["a"][0] == reason
        finished = gateway.finished["a"]
        assert finished.outcome == "finished" and finished.times.attempts == 1
        assert finished.times.scheduler_us >= finished.times.first_token_us > 0
        status = await cell.all_free()
        assert status.ready and status.blocks_free == status.blocks_total == 32 and status.blocks_leaked == 0
        assert status.counters["decode_tokens"] > 0 and status.workers[0].pid == 7


async def test_not_ready_is_refused_with_a_retry_hint() -> None:
    async with running_cell() as cell, LiveGateway(cell.channel) as gateway:
        await gateway.submit("a", [1, 2], 2)
        await gateway.until(lambda: "a" in gateway.finished)
        assert gateway.finished["a"].reason == "rejected-not-ready" and gateway.finished["a"].retry_after_us > 0


async def test_cancel_answers_with_blocks_and_step() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1)), LiveGateway(cell.channel) as gateway:
        await gateway.until(lambda: gateway.welcome.ready)
        await gateway.submit("a", [1, 2, 3], 100)
        await gateway.until(lambda: gateway.got.get("a"))
        await gateway.cancel("a")
        await gateway.cancel("nobody")
        await gateway.until(lambda: "a" in gateway.cancelled and "nobody" in gateway.cancelled)
        answer = gateway.cancelled["a"]
        assert answer.found and answer.outcome == "cancelled" and answer.blocks_freed > 0 and answer.last_step > 0
        assert not gateway.cancelled["nobody"].found
        assert gateway.finished["a"].outcome == "cancelled"


async def test_a_broken_worker_stream_is_a_new_epoch_and_a_resume() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1)) as worker, LiveGateway(cell.channel) as gateway:
        await gateway.until(lambda: gateway.welcome.ready)
        await gateway.submit("a", [1, 2, 3, 4, 5], 90, seed=9)
        await gateway.until(lambda: len(gateway.got.get("a", {}).get(0, [])) > 5)
        epoch = next(iter(cell.driver.workers))
        worker.kill()
        await gateway.until(lambda: "a" in gateway.finished)
        assert gateway.got["a"][0] == expected_output(9, 5, 90, [])[0]
        assert worker.connections == 2 and epoch not in cell.driver.workers
        assert gateway.finished["a"].times.attempts == 2
        # what the worker kept resident was indexed again from its Hello
        assert (await cell.status()).counters["prefix_hit_tokens"] > 0


async def test_a_gap_in_the_numbers_closes_the_stream() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1)) as worker, LiveGateway(cell.channel) as gateway:
        worker.step_s = 0.02  # the request must still run when the gap comes
        await gateway.until(lambda: gateway.welcome.ready)
        await gateway.submit("a", [1, 2, 3, 4, 5], 60, seed=9)
        await gateway.until(lambda: gateway.got.get("a"))
        worker.skip_number = True
        await gateway.until(lambda: "a" in gateway.finished)
        assert worker.connections == 2 and "was due" in worker.details[0]
        assert gateway.got["a"][0] == expected_output(9, 5, 60, [])[0]


async def test_a_foreign_epoch_closes_the_stream() -> None:
    async with running_cell() as cell:
        stub = pb_grpc.SchedulerServiceStub(cell.channel)  # type: ignore[no-untyped-call]
        call = stub.AttachWorker()
        await call.write(wpb.AttachWorkerRequest(number=1, join=wpb.WorkerJoin(worker_id="w", boot_id="b")))
        welcome = await call.read()
        await call.write(wpb.AttachWorkerRequest(epoch=welcome.epoch + 2, number=2, hello=wpb.WorkerHello()))
        with pytest.raises(grpc.aio.AioRpcError, match="foreign epoch"):
            await call.read()
        assert not cell.driver.workers


async def test_malformed_bytes_end_one_stream_and_name_the_field() -> None:
    async with running_cell() as cell, LiveGateway(cell.channel, "good") as good:
        async with LiveGateway(cell.channel, "bad") as bad:
            submit = pb.Submit(request_id="x", prompt_tokens=b"abc", max_tokens=1)
            await bad.call.write(pb.AttachGatewayRequest(submit=submit))
            assert await bad.call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "prompt_tokens" in await bad.call.details()
        await good.submit("a", [1], 1)
        await good.until(lambda: "a" in good.finished)


async def test_a_silent_worker_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(worker_silence_us=300_000)
    async with (
        running_cell(policy) as cell,
        running_worker(cell, chaos(1)) as frozen,
        LiveGateway(cell.channel) as gateway,
    ):
        await gateway.until(lambda: gateway.welcome.ready)
        await gateway.submit("a", [1, 2, 3, 4, 5], 60, seed=9)
        await gateway.until(lambda: gateway.got.get("a"))
        frozen.freeze = True
        await gateway.until(lambda: not gateway.welcome.ready)
        frozen.freeze = False
        await gateway.until(lambda: "a" in gateway.finished)
        assert gateway.finished["a"].outcome == "finished"
        assert "silent for 0.3 s" in caplog.text


async def test_a_kvstore_that_says_nothing_is_gone() -> None:
    """As one whose host lost its power: the stream stands, and nothing comes."""
    async with running_cell(silence_s=0.2) as cell:
        stub = pb_grpc.SchedulerServiceStub(cell.channel)  # type: ignore[no-untyped-call]
        call = stub.AttachStore()
        await call.write(pb.AttachStoreRequest(hello=pb.StoreHello(store_id="dark", boot_id="b")))
        assert (await call.read()).WhichOneof("message") == "welcome"
        for _ in range(6):
            await call.write(pb.AttachStoreRequest(heartbeat=pb.Heartbeat()))
            await asyncio.sleep(0.05)
        assert [store.store_id for store in (await cell.status()).stores] == ["dark"]
        async with asyncio.timeout(10):
            while (await cell.status()).stores:
                await asyncio.sleep(0.02)
        with pytest.raises(grpc.aio.AioRpcError, match="silent for too long"):
            while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass  # heartbeats; the status comes behind them


async def test_a_broken_gateway_stream_resumes_from_what_was_emitted() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1), 0.005), LiveGateway(cell.channel) as first:
        await first.until(lambda: first.welcome.ready)
        await first.submit("a", [1, 2, 3, 4, 5], 60, seed=9)
        await first.until(lambda: len(first.got.get("a", {}).get(0, [])) > 3)
        first.call.cancel()
        had = list(first.got["a"][0])
        async with LiveGateway(cell.channel) as second:
            second.got["a"] = {0: list(had)}
            await second.submit("a", [1, 2, 3, 4, 5], 60, seed=9, attempt=2, emitted=had)
            await second.until(lambda: "a" in second.finished)
            assert second.accepted["a"].attached
            assert second.got["a"][0] == expected_output(9, 5, 60, [])[0]
            assert unpack_u32(second.accepted["a"].prompt_tokens) == [1, 2, 3, 4, 5]


async def test_an_unknown_resubmit_starts_from_prompt_and_emitted() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1)), LiveGateway(cell.channel) as gateway:
        await gateway.until(lambda: gateway.welcome.ready)
        want = expected_output(9, 5, 30, [])[0]
        gateway.got["a"] = {0: want[:10]}
        await gateway.submit("a", [1, 2, 3, 4, 5], 30, seed=9, attempt=2, emitted=want[:10])
        await gateway.until(lambda: "a" in gateway.finished)
        assert gateway.got["a"][0] == want and not gateway.accepted["a"].attached
        assert gateway.finished["a"].times.attempts == 2


async def test_blocks_go_to_the_kvstore_and_come_back() -> None:
    store = ChaosStore(Random(1))
    worker = chaos(1, store=store, calm=True, num_blocks=25)
    async with (
        running_cell() as cell,
        LiveStore(cell.channel, store) as live,
        running_worker(cell, worker),
        LiveGateway(cell.channel) as gateway,
    ):
        await gateway.until(lambda: gateway.welcome.ready)
        for number in range(8):
            await gateway.submit(f"r{number}", [number % 4, *range(1, 40)], 8, seed=number)
            await gateway.until(lambda number=number: f"r{number}" in gateway.finished)
            assert gateway.got[f"r{number}"][0] == expected_output(number, 40, 8, [])[0]
        status = await cell.status()
        assert status.counters["offloaded_blocks"] > 20 and status.counters["loaded_blocks"] > 5
        assert live.inventories == 1 and status.stores[0].state == "synced"


async def test_kvstores_are_told_of_each_other_as_they_come_and_go() -> None:
    async def until(true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.01)

    async with running_cell() as cell:
        one, two, silent = (LiveStore(cell.channel, ChaosStore(Random(1), name)) for name in ("one", "two", "silent"))
        one.peer_address, two.peer_address = "10.0.0.1:50055", ":50056"
        async with one:
            await until(lambda: one.peers == {})
            async with two, silent:
                await until(lambda: one.peers == {"two": "127.0.0.1:50056"})
                await until(lambda: two.peers == {"one": "10.0.0.1:50055"})
                await until(lambda: silent.peers == {"one": "10.0.0.1:50055", "two": "127.0.0.1:50056"})
                codec = pb.StoreCodec(blocks=3, saved_us=9000.0, cost_us=2000.0, saved_bytes=77)
                await one.call.write(pb.AttachStoreRequest(codec=codec))
                ledger = cell.driver.core.cell.ledger.books["compression"]
                await until(lambda: ledger.entries == 3)
                assert (ledger.saved_ms, ledger.cost_ms, ledger.saved_bytes) == (9.0, 2.0, 77)
            await until(lambda: one.peers == {})


async def test_status_of_a_draining_cell() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1)), LiveGateway(cell.channel) as gateway:
        await gateway.until(lambda: gateway.welcome.ready)
        await gateway.submit("a", [1, 2, 3], 50)
        await gateway.until(lambda: gateway.got.get("a"))
        cell.driver.drain()
        await gateway.submit("b", [1, 2, 3], 50)
        await gateway.until(lambda: "b" in gateway.finished)
        assert gateway.finished["b"].reason == "rejected-draining"
        await asyncio.wait_for(cell.driver.drained(), 20)
        await gateway.until(lambda: "a" in gateway.finished)
        assert gateway.finished["a"].outcome == "finished"
        assert (await cell.status()).why_not_ready == "draining"


@pytest.mark.parametrize("size", [1, 3])
def test_packed_tokens_of_a_wrong_length_are_refused(size: int) -> None:
    with pytest.raises(WireError, match="prompt_tokens"):
        tokens_array(pack_u32([1])[:size], "prompt_tokens")


async def test_a_gateway_that_stops_reading_loses_its_stream_alone() -> None:
    async with (
        running_cell(stuck_write_s=0.3) as cell,
        running_worker(cell, chaos(1)),
        LiveGateway(cell.channel, "good") as good,
    ):
        await good.until(lambda: good.welcome.ready)
        await good.submit("a", [1, 2, 3], 100, gateway_state=bytes(1_500_000))
        stub = pb_grpc.SchedulerServiceStub(cell.channel)  # type: ignore[no-untyped-call]
        call = stub.AttachGateway()
        await call.write(pb.AttachGatewayRequest(hello=pb.GatewayHello(gateway_id="deaf")))
        for _ in range(20):
            await call.write(pb.AttachGatewayRequest(attach=pb.AttachOrder(request_id="a", tenant="default")))
        names = lambda: {item.gateway_id for item in cell.driver.gateways.values()}  # noqa: E731
        async with asyncio.timeout(10):
            while "deaf" not in names():
                await asyncio.sleep(0.01)
            while "deaf" in names():
                await asyncio.sleep(0.01)
        await good.until(lambda: "a" in good.finished)
        assert good.got["a"][0] == expected_output(1, 3, 100, [])[0]
        call.cancel()


async def drain(cell: Cell, **request: Any) -> list[pb.DrainWorkerResponse]:
    stub = pb_grpc.SchedulerServiceStub(cell.channel)  # type: ignore[no-untyped-call]
    return [item async for item in stub.DrainWorker(pb.DrainWorkerRequest(**request))]


async def test_a_drain_tells_its_progress_and_ends_with_the_worker() -> None:
    async with (
        running_cell() as cell,
        running_worker(cell, chaos(1, worker_id="w0")) as leaving,
        running_worker(cell, chaos(2, worker_id="w1")),
        LiveGateway(cell.channel) as gateway,
    ):
        await gateway.until(lambda: len(cell.driver.core.cell.fleet.workers) == 2)
        for name in "ab":
            await gateway.submit(name, [1, 2, ord(name)], 60, seed=ord(name))
        await gateway.until(lambda: gateway.got.get("a") and gateway.got.get("b"))
        leaving.stay_away = True
        told = await drain(cell, worker_id="w0", deadline_us=30_000_000)
        assert told[0].state == "draining" and 0 < told[0].remaining_us <= 30_000_000
        assert told[-1].state == "drained" and told[-1].finished == told[0].running and told[-1].handed_over == 0
        await gateway.until(lambda: {"a", "b"} <= gateway.finished.keys())
        assert all(gateway.got[name][0] == expected_output(ord(name), 3, 60, [])[0] for name in "ab")
        assert [worker.worker_id for worker in (await cell.status()).workers] == ["w1"]


async def test_a_drain_of_nobody_and_of_the_last_worker_are_refused() -> None:
    async with running_cell() as cell, running_worker(cell, chaos(1, worker_id="w0")) as worker:
        async with asyncio.timeout(10):
            while not cell.driver.core.cell.fleet.workers:
                await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError, match="no worker of this cell; connected: w0"):
            await drain(cell, worker_id="w7", deadline_us=1)
        with pytest.raises(grpc.aio.AioRpcError, match="last worker"):
            await drain(cell, worker_id="w0", deadline_us=1)
        worker.stay_away = True
        assert (await drain(cell, worker_id="w0", deadline_us=1, force=True))[-1].state == "drained"
