"""A chaos worker and a scripted gateway over real grpc.aio: what a worker's link and a gateway's upstream do, in short."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import grpc.aio
from octavo.keys import extend_keys
from octavo.packing import pack_keys, pack_u32, unpack_keys, unpack_u32
from octavo.rpc.channels import open_channel
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import scheduler_pb2_grpc as pb_grpc
from octavo.v1 import worker_pb2 as wpb
from octavo_scheduler import orders
from octavo_scheduler.events import Reported

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.chaos_store import ChaosStore


def sampling_bytes(order: wpb.Admit) -> bytes:
    """The chaos worker knows stop ids only."""
    return order.sampling.stop_ids


def read_order(order: wpb.Order) -> orders.Order:
    """The reverse of `wire.write_order`."""
    kind = order.WhichOneof("order")
    if kind == "admit":
        item = order.admit
        return orders.Admit(
            seq=item.seq,
            slot=item.slot,
            tokens=item.tokens,
            prompt_len=item.prompt_len,
            cached_len=item.cached_len,
            block_ids=unpack_u32(item.block_ids),
            sampling=sampling_bytes(item),
            seed=item.seed,
            deadline_us=item.deadline_us,
            rank=item.rank,
            max_len=item.max_len,
            request_id=item.request_id,
            traceparent=item.traceparent,
            wait_xfer=item.wait_xfer,
            wait_base=item.wait_base,
            siblings=[orders.SiblingAdmit(s.seq, s.slot, s.seed, unpack_u32(s.block_ids)) for s in item.siblings],
        )
    if kind == "grant":
        return orders.Grant(order.grant.seq, unpack_u32(order.grant.block_ids))
    if kind == "stop":
        return orders.Stop(order.stop.seq, order.stop.reason)
    if kind == "offload":
        return orders.Offload(
            order.offload.xfer_id,
            unpack_u32(order.offload.block_ids),
            unpack_keys(order.offload.keys),
            unpack_keys(order.offload.parents),
        )
    if kind == "load":
        item = order.load
        return orders.Load(item.xfer_id, unpack_keys(item.keys), unpack_u32(item.block_ids), item.limit_us)
    if kind == "abort":
        return orders.Abort(order.abort.xfer_id)
    if kind == "label":
        label = order.label
        return orders.Label(unpack_u32(label.block_ids), unpack_keys(label.keys), unpack_keys(label.parents))
    if kind == "step_policy":
        item = order.step_policy
        return orders.StepPolicy(item.budget_with_decodes, item.budget_alone, item.max_seqs)
    if kind == "leave":
        return orders.Leave()
    assert kind == "update", kind
    return orders.Update(order.update.seq, order.update.rank, order.update.paused, order.update.draft_len)


def write_report(report: Reported) -> wpb.Report:
    """The reverse of `ReportReader`."""
    message = wpb.Report(
        step=report.step,
        steps=report.steps,
        slots=pack_u32(report.slots),
        counts=pack_u32(report.counts),
        tokens=pack_u32(report.tokens),
        computed_len=pack_u32(report.computed_len),
        starved=pack_u32(report.starved),
        times=wpb.StepTimes(wall_us=report.wall_us),
        prefill_tokens=report.prefill_tokens,
        decode_seqs=report.decode_seqs,
        finishes=[
            wpb.SeqFinish(slot=f.slot, seq=f.seq, reason=f.reason, stop_token=f.stop_token, message=f.message)
            for f in report.finishes
        ],
        released=[wpb.Released(seq=r.seq, len=r.length, computed_len=r.computed_len) for r in report.released],
        transfers_done=[
            wpb.TransferDone(
                xfer_id=t.xfer_id,
                ok_blocks=t.ok_blocks,
                bytes=t.bytes,
                lookup_us=t.lookup_us,
                transfer_us=t.transfer_us,
                tier=t.tier,
            )
            for t in report.transfers_done
        ],
        first_tokens=[
            wpb.FirstToken(
                seq=f.seq,
                wait_us=f.wait_us,
                prefill_us=f.prefill_us,
                chunks=f.chunks,
                dispatch_us=f.dispatch_us,
                report_us=f.report_us,
            )
            for f in report.first_tokens
        ],
        logprobs=[wpb.Logprobs.FromString(item) for item in report.logprobs],
        draining=report.draining,
    )
    if report.live_seqs is not None:
        message.live.seqs.extend(report.live_seqs)
        message.live.transfers.extend(report.live_transfers or [])
        message.live.orders_applied = report.orders_applied
        message.backed_blocks = report.backed_blocks
    return message


class LiveWorker:
    """Dials, joins, quiesces, says hello, steps every `step_s`; `kill()` breaks the stream, `run` dials again."""

    def __init__(self, address: str, worker: ChaosWorker, step_s: float = 0.001) -> None:
        self.address, self.worker, self.step_s = address, worker, step_s
        self.connections = 0
        self.skip_number = False
        self.freeze = False
        self.stay_away = False  # its process ends with its stream
        self.call: Any = None
        self.details: list[str] = []

    async def run(self) -> None:
        while not (self.stay_away and self.worker.draining):
            async with open_channel(self.address) as channel:
                stub = pb_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
                # a call that was cancelled here raises CancelledError at its reader: a task of its own keeps that apart
                attempt = asyncio.ensure_future(self._connect(stub))
                try:
                    await asyncio.wait({attempt})
                finally:
                    attempt.cancel()
                (error,) = await asyncio.gather(attempt, return_exceptions=True)
                if isinstance(error, AssertionError):
                    raise error
                if self.call is not None and self.call.done() and not self.call.cancelled():
                    self.details.append(await self.call.details())
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        self.call.cancel()

    async def _connect(self, stub: Any) -> None:
        call = self.call = stub.AttachWorker()
        worker = self.worker
        number = 1
        join = wpb.WorkerJoin(worker_id=worker.worker_id, boot_id=worker.boot_id)
        await call.write(wpb.AttachWorkerRequest(epoch=0, number=number, join=join))
        welcome = await self._read(call)
        epoch = welcome.epoch
        worker.quiesce()
        hello = worker.hello(_now_us(), epoch)
        number += 1
        await call.write(
            wpb.AttachWorkerRequest(
                epoch=epoch,
                number=number,
                hello=wpb.WorkerHello(
                    root_key=hello.root_key,
                    block_tokens=hello.block_tokens,
                    num_blocks=hello.num_blocks,
                    max_num_seqs=hello.max_num_seqs,
                    max_model_len=hello.max_model_len,
                    block_bytes=hello.block_bytes,
                    store_id=hello.store_id,
                    model=hello.model,
                    pid=7,
                    resident_blocks=pack_u32([block for block, _ in hello.resident]),
                    resident_keys=pack_keys([key for _, key in hello.resident]),
                    resident_parents=pack_u32(hello.resident_parents),
                ),
            )
        )
        self.connections += 1
        reader = asyncio.ensure_future(self._read_orders(call, epoch))
        try:
            while not reader.done():
                report = None if self.freeze else worker.iterate(_now_us())
                if report is not None:
                    number += 2 if self.skip_number else 1
                    self.skip_number = False
                    await call.write(wpb.AttachWorkerRequest(epoch=epoch, number=number, report=write_report(report)))
                await asyncio.sleep(self.step_s)
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, call: Any) -> wpb.AttachWorkerResponse:
        message = await call.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise EOFError
        return message  # type: ignore[no-any-return]

    async def _read_orders(self, call: Any, epoch: int) -> None:
        number = 1
        while True:
            message = await self._read(call)
            number += 1
            assert (message.epoch, message.number) == (epoch, number)
            self.worker.receive([read_order(order) for order in message.orders.orders])


class LiveGateway:
    """One gateway stream; collects events per request id."""

    def __init__(self, channel: grpc.aio.Channel, gateway_id: str = "g0") -> None:
        self.call: Any = pb_grpc.SchedulerServiceStub(channel).AttachGateway()  # type: ignore[no-untyped-call]
        self.gateway_id = gateway_id
        self.welcome = pb.GatewayWelcome()
        self.got: dict[str, dict[int, list[int]]] = {}
        self.ended: dict[str, dict[int, str]] = {}
        self.finished: dict[str, pb.RequestFinished] = {}
        self.accepted: dict[str, pb.Accepted] = {}
        self.cancelled: dict[str, pb.CancelResult] = {}
        self.messages = 0
        self.changed = asyncio.Event()

    async def __aenter__(self) -> LiveGateway:
        hello = pb.GatewayHello(gateway_id=self.gateway_id, boot_id="b", takes_runs=True)
        await self.call.write(pb.AttachGatewayRequest(hello=hello))
        self.task = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.call.cancel()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self.call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            kind = message.WhichOneof("message")
            if kind == "welcome":
                self.welcome = message.welcome
            elif kind == "events":
                self.messages += 1
                self._take_runs(message.events.runs)
                for event in message.events.events:
                    self._take(event)
            self.changed.set()

    def _take_runs(self, runs: pb.TokenRuns) -> None:
        columns = [unpack_u32(column) for column in (runs.handles, runs.indexes, runs.starts, runs.counts)]
        ids = unpack_u32(runs.tokens)
        for handle, index, start, count in zip(*columns, strict=True):
            (name,) = (name for name, accepted in self.accepted.items() if accepted.handle == handle)
            assert name not in self.finished, "tokens came after the terminal event"
            have = self.got.setdefault(name, {}).setdefault(index, [])
            assert start == len(have)
            have.extend(ids[:count])
            del ids[:count]
        assert not ids

    def _take(self, event: pb.RequestEvent) -> None:
        name, kind = event.request_id, event.WhichOneof("event")
        if kind == "cancel_result":
            self.cancelled[name] = event.cancel_result
            return
        assert name not in self.finished, "an event came after the terminal one"
        if kind == "tokens":
            have = self.got.setdefault(name, {}).setdefault(event.tokens.index, [])
            assert getattr(event.tokens, "from") == len(have)
            have.extend(unpack_u32(event.tokens.tokens))
        elif kind == "choice_finished":
            self.ended.setdefault(name, {})[event.choice_finished.index] = event.choice_finished.reason
        elif kind == "finished":
            self.finished[name] = event.finished
        else:
            self.accepted[name] = event.accepted

    async def until(self, condition: Any, limit_s: float = 20.0) -> None:
        async with asyncio.timeout(limit_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def submit(self, name: str, prompt: list[int], max_tokens: int, seed: int = 1, **options: Any) -> None:
        submit = pb.Submit(
            request_id=name,
            attempt=options.pop("attempt", 1),
            tenant="default",
            prompt_tokens=pack_u32(prompt),
            prompt_keys=pack_keys(extend_keys(b"n" * 32, prompt, 4)),
            sampling=wpb.SamplingParams(stop_ids=pack_u32(options.pop("stop_ids", [])), logprobs=-1),
            max_tokens=max_tokens,
            choices=[pb.ChoiceState(seed=seed, emitted_tokens=pack_u32(options.pop("emitted", [])))],
            body_hash=options.pop("body_hash", b"h"),
            **options,
        )
        await self.call.write(pb.AttachGatewayRequest(submit=submit))

    async def cancel(self, name: str, reason: str = "client_cancel") -> None:
        order = pb.CancelOrder(request_id=name, reason=reason, tenant="default")
        await self.call.write(pb.AttachGatewayRequest(cancel=order))


class LiveStore:
    """AttachStore of a chaos kvstore: inventory when asked, events as they come."""

    def __init__(self, channel: grpc.aio.Channel, store: ChaosStore) -> None:
        self.call: Any = pb_grpc.SchedulerServiceStub(channel).AttachStore()  # type: ignore[no-untyped-call]
        self.store = store
        self.inventories = 0
        self.peer_address = ""
        self.peers: dict[str, str] | None = None

    async def __aenter__(self) -> LiveStore:
        hello = pb.StoreHello(store_id=self.store.store_id, boot_id="b", peer_address=self.peer_address, fetches=True)
        await self.call.write(pb.AttachStoreRequest(hello=hello))
        self.task = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.call.cancel()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self.call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            if message.WhichOneof("message") == "peers":
                self.peers = {peer.store_id: peer.address for peer in message.peers.peers}
            if message.WhichOneof("message") == "inventory_request":
                self.inventories += 1
                self.store.events.clear()
                inventory = pb.StoreInventory(
                    number=self.store.next_number - 1, keys=pack_keys(sorted(self.store.held)), last=True
                )
                await self.call.write(pb.AttachStoreRequest(inventory=inventory))


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def chaos(seed: int, **options: Any) -> ChaosWorker:
    """A chaos worker for live tests."""
    return ChaosWorker(Random(seed), **{"num_blocks": 33, "max_seqs": 4, **options})
