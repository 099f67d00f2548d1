"""Many calls on one stream: each keeps the contract of a plain call, and none can hurt another."""

from __future__ import annotations

import asyncio
import warnings
from collections import defaultdict
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from octavo.errors import InternalError, Unavailable
from octavo.packing import pack_u32, unpack_u32
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc, scheduler_pb2, worker_pb2
from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.requests import Cost, Delta, EdgeContext
from octavo_gateway.service import InferenceServicer
from octavo_gateway.session import Session

TERMINALS = ("finished", "failed", "cancelled", "paused")


class Client:
    """A session's client as a test reads it: per call its text, ids, and events that are no plain run."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.texts: dict[int, str] = defaultdict(str)
        self.ids: dict[int, list[int]] = defaultdict(list)
        self.events: dict[int, list[Any]] = defaultdict(list)
        self.messages: list[Any] = []

    async def send(self, number: int, **action: Any) -> None:
        await self.call.write(pb.SessionRequest(call=number, **action))

    async def read(self) -> Any:
        """Takes one message apart; checks the running totals on the way."""
        async with asyncio.timeout(20):
            message = await self.call.read()
        if message is grpc.aio.EOF:
            return message
        self.messages.append(message)
        runs, at = message.runs, 0
        numbers, counts, tokens = unpack_u32(runs.calls), unpack_u32(runs.counts), unpack_u32(runs.tokens)
        ends = zip(unpack_u32(runs.token_ends), unpack_u32(runs.byte_ends), runs.texts, strict=True)
        for number, count, (token_end, byte_end, text) in zip(numbers, counts, ends, strict=True):
            assert not any(self.kinds(number, TERMINALS)), "tokens after the end"
            self.texts[number] += text
            self.ids[number] += tokens[at : at + count]
            assert (token_end, byte_end) == (len(self.ids[number]), len(self.texts[number].encode()))
            at += count
        assert at == len(tokens)
        for event in message.events:
            self.events[event.call].append(event)
            if event.HasField("delta"):
                self.texts[event.call] += event.delta.text
                self.ids[event.call] += event.delta.token_ids
                assert event.delta.token_end == len(self.ids[event.call])
        return message

    def kinds(self, number: int, of: tuple[str, ...] = ()) -> list[str]:
        found = [event.WhichOneof("event") for event in self.events[number]]
        return [kind for kind in found if kind in of] if of else found

    async def until_ended(self, *numbers: int) -> None:
        while not all(self.kinds(number, TERMINALS) for number in numbers):
            assert await self.read() is not grpc.aio.EOF

    def failure(self, number: int) -> tuple[int, str, list[str]]:
        """Code, reason and fields of the one terminal of a call that failed."""
        (failed,) = [event.failed for event in self.events[number] if event.HasField("failed")]
        status = status_pb2.Status.FromString(failed.status)
        assert (status.code, status.message) == (failed.code, failed.message)
        reason, fields = "", []
        for detail in status.details:
            info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            if detail.Unpack(info):
                reason = info.reason
            elif detail.Unpack(bad):
                fields = [violation.field for violation in bad.field_violations]
        return failed.code, reason, fields


def code(status: grpc.StatusCode) -> int:
    return int(status.value[0])


async def test_calls_of_one_stream_are_whole_and_apart(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    texts = {1: "Paris!", 2: "Grüße 🌶", 3: "x"}
    names = {}
    for number in texts:
        await client.send(number, generate=request_of(context={"request_id": f"r{number}"}))
        submit = await stack.scheduler.next("submit")
        names[number] = submit.request_id
        stack.scheduler.accept(submit.request_id)
    for at in range(max(len(stack.ids(text)) for text in texts.values())):
        for number, text in texts.items():
            ids = stack.ids(text)
            if at < len(ids):
                stack.scheduler.tokens(names[number], ids[at : at + 1], at)
    for number, text in texts.items():
        stack.scheduler.choice_finished(names[number], "length", len(stack.ids(text)))
        stack.scheduler.finish(names[number], cached_tokens=number, cost=scheduler_pb2.RequestCost(decode_device_us=7))
    await client.until_ended(*texts)
    for number, text in texts.items():
        assert (client.texts[number], client.ids[number]) == (text, stack.ids(text))
        kinds = client.kinds(number)
        assert kinds[0] == "started" and kinds.count("finished") == 1 and kinds[-1] == "finished"
        assert client.events[number][0].started.request_id == f"r{number}"
        finished = client.events[number][-1].finished
        assert (finished.usage.completion_tokens, finished.usage.cached_tokens) == (len(stack.ids(text)), number)
        assert finished.timings.t_first_token_us and finished.cost.decode_device_us == 7
    await client.call.done_writing()
    assert await client.read() is grpc.aio.EOF and await client.call.code() == grpc.StatusCode.OK


async def test_one_step_of_many_calls_is_one_message(stack: Any, request_of: Any) -> None:
    client, handles = Client(stack.stub.Session()), range(1, 17)
    for number in handles:
        await client.send(number, generate=request_of(options={"max_tokens": 3}))
        submit = await stack.scheduler.next("submit")
        stack.scheduler.accept(submit.request_id, handle=number)
        stack.scheduler.tokens(submit.request_id, stack.ids("a"))
    while any(len(client.ids[number]) < 1 for number in handles):
        await client.read()
    runs = scheduler_pb2.TokenRuns(
        handles=pack_u32(handles),
        indexes=pack_u32([0] * 16),
        starts=pack_u32([1] * 16),
        counts=pack_u32([1] * 16),
        tokens=pack_u32(stack.ids("b") * 16),
    )
    stack.scheduler.runs(runs)
    message = await client.read()
    assert unpack_u32(message.runs.calls) == list(handles) and not message.events
    assert list(message.runs.texts) == ["b"] * 16


async def test_choices_logprobs_and_echo_come_as_with_a_plain_call(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    await client.send(1, generate=request_of("Hey ", options={"n": 2, "logprobs": 1, "echo": True, "max_tokens": 1}))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    token = stack.ids("a")[0]
    logprob = worker_pb2.Logprobs(token=token, logprob=-0.5, top_tokens=pack_u32([token]), top_logprobs=[-0.5])
    for index in range(2):
        stack.scheduler.tokens(submit.request_id, [token], 0, index, logprobs=[logprob])
        stack.scheduler.choice_finished(submit.request_id, "length", 1, index)
    stack.scheduler.finish(submit.request_id)
    seen = [await client.read()]
    while not client.kinds(1, ("finished",)):
        seen.append(await client.call.read())
        client.events[1] += seen[-1].events
    deltas = [event.delta for event in client.events[1] if event.HasField("delta")]
    for index in range(2):
        own = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in own) == "Hey a"
        assert [item.top[0].token_id for delta in own for item in delta.logprobs] == [token]


async def test_several_choices_travel_in_runs_with_their_index(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    await client.send(7, generate=request_of(options={"n": 2}))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    message = await client.read()
    stack.scheduler.tokens(submit.request_id, stack.ids("a"), 0, 1)
    while not message.runs.calls:
        message = await client.call.read()
    assert (unpack_u32(message.runs.calls), unpack_u32(message.runs.indexes)) == ([7], [1])


@pytest.mark.parametrize(
    ("frame", "fields"),
    [
        ({}, ["action"]),
        ({"generate": pb.GenerateRequest()}, ["prompt"]),
        ({"generate": pb.GenerateRequest(text="x", sampling=pb.Sampling(top_p=2))}, ["top_p"]),
        ({"attach": pb.AttachRequest()}, ["request_id"]),
        ({"cancel": pb.CancelRequest()}, ["request_id"]),
        ({"pause": pb.PauseRequest()}, ["request_id"]),
        ({"leave": pb.LeaveCall()}, ["call"]),
        ({"ack": pb.AckRequest(first_token_ms=-1)}, ["first_token_ms"]),
    ],
)
async def test_a_bad_message_ends_its_call_alone(
    stack: Any, request_of: Any, frame: dict[str, Any], fields: list[str]
) -> None:
    client = Client(stack.stub.Session())
    await client.send(1, generate=request_of())
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    await client.send(5, **frame)
    await client.until_ended(5)
    assert client.failure(5) == (code(grpc.StatusCode.INVALID_ARGUMENT), "rejected-invalid", fields)
    stack.scheduler.tokens(submit.request_id, stack.ids("ok"))
    stack.scheduler.choice_finished(submit.request_id, "length", 2)
    stack.scheduler.finish(submit.request_id)
    await client.until_ended(1)
    assert client.texts[1] == "ok" and client.kinds(1)[-1] == "finished"


@pytest.mark.parametrize("number", [0, 3, 2])
async def test_a_number_twice_or_downwards_ends_the_call_that_has_it(stack: Any, request_of: Any, number: int) -> None:
    client = Client(stack.stub.Session())
    await client.send(3, generate=request_of())
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    await client.read()
    await client.send(number, generate=request_of("Another"))
    await client.until_ended(number)
    assert client.failure(number)[2] == ["call"] and stack.scheduler.none("submit")
    if number == 3:
        order = await stack.scheduler.next("cancel")
        assert order.request_id == submit.request_id
        stack.scheduler.finish(submit.request_id, "cancelled")
        await stack.until(lambda: stack.gateway.live_count == 0)
        assert client.kinds(3).count("failed") == 1


async def test_bytes_that_cannot_be_read_end_the_call_that_they_name_else_the_stream(stack: Any) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        raw: Any = channel.stream_stream(
            "/octavo.v1.InferenceService/Session",
            request_serializer=bytes,
            response_deserializer=pb.SessionResponse.FromString,
        )
        client = Client(raw())
        await client.call.write(b"\x08\x07\x1a\x04\x12\x02\xff\xfe")  # call 7, generate with a text that is no UTF-8
        await client.until_ended(7)
        assert client.failure(7) == (code(grpc.StatusCode.INVALID_ARGUMENT), "rejected-invalid", ["generate.text"])
        await client.call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_leaving_a_call_cancels_its_request_and_nothing_answers(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    for number in (1, 2, 3):
        await client.send(number, generate=request_of(context={"request_id": f"r{number}"}))
        assert (await stack.scheduler.next("submit")).request_id.endswith(f"r{number}")
    stack.scheduler.accept("r1")
    stack.scheduler.accept("r2")
    stack.scheduler.tokens("r1", stack.ids("a"))
    while not client.ids[1]:
        await client.read()
    await client.send(1, leave=pb.LeaveCall())  # runs
    await client.send(3, leave=pb.LeaveCall())  # not accepted yet
    orders = {(await stack.scheduler.next("cancel")).request_id for _ in range(2)}
    assert orders == {"r1", "r3"}
    for name in orders:
        stack.scheduler.finish(name, "cancelled", reason="client_disconnect")
    await client.send(1, leave=pb.LeaveCall())  # ended: a no-op
    stack.scheduler.choice_finished("r2", "length")
    stack.scheduler.finish("r2")
    await client.until_ended(2)
    await client.call.done_writing()
    assert await client.read() is grpc.aio.EOF
    assert not client.kinds(1, TERMINALS) and not client.events[3]
    outcomes = [
        span.attributes["octavo.outcome"] for span in stack.spans.get_finished_spans() if span.name == "request"
    ]
    assert sorted(outcomes) == ["cancelled", "cancelled", "finished"]


async def test_a_stream_that_breaks_cancels_its_requests(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    for number in (1, 2):
        await client.send(number, generate=request_of())
        stack.scheduler.accept((await stack.scheduler.next("submit")).request_id)
    while len(client.events) < 2:
        await client.read()
    client.call.cancel()
    for _ in range(2):
        order = await stack.scheduler.next("cancel")
        assert order.reason == "client_disconnect"
        stack.scheduler.finish(order.request_id, "cancelled")
    await stack.until(lambda: stack.gateway.live_count == 0)


async def test_a_request_that_another_stream_reads_outlives_this_one(stack: Any, request_of: Any) -> None:
    client, other = Client(stack.stub.Session()), Client(stack.stub.Session())
    await client.send(1, generate=request_of(context={"request_id": "r1"}))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("ab"))
    while not client.ids[1]:
        await client.read()
    await other.send(1, attach=pb.AttachRequest(request_id="r1"))
    while not other.ids[1]:
        await other.read()
    client.call.cancel()
    await asyncio.sleep(0.05)
    assert stack.scheduler.none("cancel")
    stack.scheduler.choice_finished(submit.request_id, "length", 2)
    stack.scheduler.finish(submit.request_id)
    await other.until_ended(1)
    assert other.texts[1] == "ab"


async def test_every_call_has_its_own_deadline(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    await client.send(1, generate=request_of(), context=pb.CallContext(timeout_ms=150))
    submit = await stack.scheduler.next("submit")
    assert 0 < submit.remaining_deadline_us <= 150_000
    await client.send(2, generate=request_of())
    assert (await stack.scheduler.next("submit")).remaining_deadline_us == 0
    await client.until_ended(1)
    assert client.failure(1)[:2] == (code(grpc.StatusCode.DEADLINE_EXCEEDED), "evicted-deadline")
    assert (await stack.scheduler.next("cancel")).request_id == submit.request_id
    assert not client.events[2]


async def test_every_call_has_its_own_key_and_parent_span(make_stack: Any, admission: Any, request_of: Any) -> None:
    async with make_stack(admission, keys={"sk-1": "acme", "sk-2": "zen"}) as stack:
        client = Client(stack.stub.Session(metadata=(("authorization", "Bearer sk-1"),)))
        parent = f"00-{0xAB:032x}-{0xCD:016x}-01"
        await client.send(1, generate=request_of(), context=pb.CallContext(traceparent=parent))
        own = pb.CallContext(authorization="Bearer sk-2")
        await client.send(2, generate=request_of(), context=own)
        await client.send(3, generate=request_of(), context=pb.CallContext(authorization="Bearer no"))
        await client.until_ended(3)
        assert client.failure(3)[0] == code(grpc.StatusCode.UNAUTHENTICATED)
        submits = [await stack.scheduler.next("submit") for _ in range(2)]
        assert sorted(submit.tenant for submit in submits) == ["acme", "zen"]
        for submit in submits:
            stack.scheduler.accept(submit.request_id)
            stack.scheduler.choice_finished(submit.request_id, "length")
            stack.scheduler.finish(submit.request_id)
        await client.until_ended(1, 2)
        traces = [client.events[number][0].started.trace_id for number in (1, 2)]
        assert traces[0] == f"{0xAB:032x}" and traces[1] != traces[0]
        spans = [span for span in stack.spans.get_finished_spans() if span.name == "request"]
        assert len(spans) == 3 and sum(span.parent is not None for span in spans) == 1


async def test_cancel_pause_and_ack_travel_on_the_stream(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    await client.send(1, generate=request_of(context={"request_id": "r1"}))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    await client.send(2, pause=pb.PauseRequest(request_id="r1", pause=pb.ToolPause(tool="search", expected_ms=5)))
    assert (await stack.scheduler.next("pause")).tool == "search"
    stack.scheduler.paused(submit.request_id, "keep")
    await client.until_ended(2)
    assert client.events[2][0].paused.decision == "keep"
    await client.send(3, cancel=pb.CancelRequest(request_id="r1"))
    await stack.scheduler.next("cancel")
    stack.scheduler.finish(submit.request_id, "cancelled", reason="client_cancel")
    stack.scheduler.cancelled(submit.request_id, found=True, outcome="cancelled", blocks_freed=2)
    await client.until_ended(1, 3)
    assert client.failure(1)[:2] == (code(grpc.StatusCode.CANCELLED), "client_cancel")
    assert client.events[3][0].cancelled.blocks_freed == 2
    await client.send(0, ack=pb.AckRequest(request_id="r1", first_token_ms=3.0))
    await client.call.done_writing()
    assert await client.read() is grpc.aio.EOF
    assert stack.registry.get_sample_value("octavo_gateway_client_first_token_seconds_count") == 1


async def test_a_failure_carries_details_and_cost(stack: Any, request_of: Any) -> None:
    client = Client(stack.stub.Session())
    await client.send(1, generate=request_of())
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("part"))
    cost = scheduler_pb2.RequestCost(prefill_device_us=1500)
    stack.scheduler.finish(submit.request_id, "failed", reason="worker-failed", message="NaN", cost=cost)
    await client.until_ended(1)
    assert client.texts[1] == "part" and client.failure(1)[:2] == (code(grpc.StatusCode.UNAVAILABLE), "worker-failed")
    assert client.events[1][-1].failed.cost.prefill_device_us == 1500


async def test_a_stream_holds_so_many_calls_and_no_more(stack: Any, request_of: Any) -> None:
    session = Session(stack.gateway, EdgeContext("grpc"), stack_log(stack), most_calls=2)
    frames: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.create_task(session.read(queued(frames)))
    for number in (1, 2, 3):
        frames.put_nowait(pb.SessionRequest(call=number, generate=request_of()))
    message = pb.SessionResponse.FromString(await session.next_message() or b"")
    (event,) = message.events
    assert event.call == 3 and event.failed.code == code(grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "gateway.max_session_calls" in event.failed.message
    session.leave_all("client_disconnect")
    frames.put_nowait(None)
    await reading
    assert await session.next_message() is None


async def test_what_piled_up_comes_as_one_delta_per_call(stack: Any, request_of: Any) -> None:
    """A stream that takes nothing costs a mark per call: what its requests bring meanwhile merges."""
    session = Session(stack.gateway, EdgeContext("grpc"), stack_log(stack))
    frames: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.create_task(session.read(queued(frames)))
    frames.put_nowait(pb.SessionRequest(call=1, generate=request_of(options={"max_tokens": 60})))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    started = pb.SessionResponse.FromString(await session.next_message() or b"")
    assert started.events[0].HasField("started")
    ids = stack.ids("forty tokens that nobody takes for a while")
    for at, token in enumerate(ids):
        stack.scheduler.tokens(submit.request_id, [token], at)
    live = stack.upstream.live_requests()[0]
    await stack.until(lambda: live.completion_tokens == len(ids))
    message = pb.SessionResponse.FromString(await session.next_message() or b"")
    assert unpack_u32(message.runs.counts) == [len(ids)] and not message.events
    session.leave_all("client_disconnect")
    reading.cancel()


async def test_a_client_that_takes_nothing_loses_its_requests(make_stack: Any, admission: Any) -> None:
    async with make_stack(admission, slow_s=0.3) as stack:
        # a window of 64 KB, and answers of several hundred
        options = [
            ("grpc.http2.lookahead_bytes", 1),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_receive_message_length", -1),
        ]
        async with grpc.aio.insecure_channel(stack.address, options=options) as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Session()
            text = "Hello " * 100
            for number in range(1, 9):
                request = pb.GenerateRequest(text=text, options=pb.Options(echo=True, max_tokens=8))
                await call.write(pb.SessionRequest(call=number, generate=request))
            submits = [await stack.scheduler.next("submit") for _ in range(8)]
            logprob = worker_pb2.Logprobs(token=1, logprob=-1, top_tokens=pack_u32(range(20)), top_logprobs=[-1] * 20)
            for submit in submits:
                stack.scheduler.accept(submit.request_id)
            started: set[int] = set()
            while len(started) < 8:
                started |= {event.call for event in (await call.read()).events if event.HasField("started")}
            for submit in submits:
                for at in range(200):
                    stack.scheduler.tokens(submit.request_id, [1] * 20, 20 * at, logprobs=[logprob] * 20)
            reasons = [(await stack.scheduler.next("cancel")).reason for _ in range(8)]
            assert reasons == ["slow_client"] * 8
            for live in stack.upstream.live_requests():
                stack.scheduler.finish(live.wire_id, "cancelled", reason="slow_client")
            await stack.until(lambda: stack.gateway.live_count == 0)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert caught.value.code() == grpc.StatusCode.CANCELLED


async def test_a_drain_refuses_new_calls_ends_running_ones_and_then_the_stream(stack: Any, request_of: Any) -> None:
    servicer = InferenceServicer(stack.gateway, stack_log(stack))
    frames: asyncio.Queue[Any] = asyncio.Queue()
    session = Session(stack.gateway, EdgeContext("grpc"), stack_log(stack))
    servicer._sessions.add(session)
    reading = asyncio.create_task(session.read(queued(frames)))
    frames.put_nowait(pb.SessionRequest(call=1, generate=request_of()))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    await session.next_message()
    draining = asyncio.create_task(stack.gateway.drain())
    await asyncio.sleep(0)
    frames.put_nowait(pb.SessionRequest(call=2, generate=request_of()))
    refused = pb.SessionResponse.FromString(await session.next_message() or b"").events[0]
    assert refused.call == 2 and refused.failed.code == code(grpc.StatusCode.UNAVAILABLE)
    assert Unavailable.default_reason and "shutting down" in refused.failed.message
    stack.scheduler.choice_finished(submit.request_id, "length")
    stack.scheduler.finish(submit.request_id)
    await draining
    await servicer.end_sessions()
    kinds: list[Any] = []
    while (message := await session.next_message()) is not None:
        kinds += [event.WhichOneof("event") for event in pb.SessionResponse.FromString(message).events]
    assert kinds == ["delta", "finished"]
    reading.cancel()


class Generation:
    """A request that says what a test tells it."""

    request_id = model = trace_id = degraded = ""
    prompt_tokens = seed = max_tokens = 1
    cost = Cost()

    def __init__(self, *events: Any) -> None:
        self.events = list(events)
        self.abandoned: list[str] = []

    def watch(self, wakeup: Any) -> None:
        pass

    def give(self, call: int, columns: DeltaColumns) -> bool:
        return True

    def pull(self) -> Any:
        event = self.events.pop(0) if self.events else None
        if isinstance(event, Exception):
            raise event
        return event

    def abandon(self, reason: str) -> None:
        self.abandoned.append(reason)


async def test_messages_are_bounded_and_calls_take_turns(request_of: Any) -> None:
    longs = [Delta(0, "t" * 10, list(range(3000)), (), 3000 * (i + 1), 10 * (i + 1)) for i in range(4)]

    class Gateway:
        async def start(self, params: Any, edge: Any) -> Any:
            return Generation(*longs)

    session = Session(Gateway(), EdgeContext("grpc"), None)  # type: ignore[arg-type]
    frames: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.create_task(session.read(queued(frames)))
    for number in (1, 2):
        frames.put_nowait(pb.SessionRequest(call=number, generate=request_of()))
    await asyncio.sleep(0.05)
    sent = [pb.SessionResponse.FromString(await session.next_message() or b"") for _ in range(4)]
    deltas = [[event.call for event in message.events if event.HasField("delta")] for message in sent]
    assert deltas == [[1, 1], [2, 2], [1, 1], [2, 2]]
    reading.cancel()


async def test_a_bug_ends_its_call_alone(stack: Any, request_of: Any) -> None:
    class Gateway:
        async def start(self, params: Any, edge: Any) -> Any:
            if params.prompt_text == "raise":
                raise ValueError("a bug")
            return Generation(KeyError("another"))

    session = Session(Gateway(), EdgeContext("grpc"), stack_log(stack))  # type: ignore[arg-type]
    frames: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.create_task(session.read(queued(frames)))
    for number, text in ((1, "raise"), (2, "pull")):
        frames.put_nowait(pb.SessionRequest(call=number, generate=request_of(text)))
    failed: dict[int, Any] = {}
    while len(failed) < 2:
        message = pb.SessionResponse.FromString(await session.next_message() or b"")
        failed |= {event.call: event.failed for event in message.events if event.HasField("failed")}
    assert {item.code for item in failed.values()} == {code(InternalError.status)}
    assert ["ValueError" in failed[1].message, "KeyError" in failed[2].message] == [True, True]
    reading.cancel()


async def test_a_call_left_in_the_moment_its_request_began_leaves_none_behind(stack: Any, request_of: Any) -> None:
    """A cancel that comes with what its task waits for can be lost on the way (asyncio.wait_for before 3.12)."""
    begun, made = asyncio.Event(), Generation(Delta(0, "t", [1], (), 1, 1))

    class Gateway:
        async def start(self, params: Any, edge: Any) -> Any:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return made

    session = Session(Gateway(), EdgeContext("grpc"), stack_log(stack))  # type: ignore[arg-type]
    frames: asyncio.Queue[Any] = asyncio.Queue()
    reading = asyncio.create_task(session.read(queued(frames)))
    frames.put_nowait(pb.SessionRequest(call=1, generate=request_of()))
    await begun.wait()
    frames.put_nowait(pb.SessionRequest(call=1, leave=pb.LeaveCall()))
    frames.put_nowait(None)
    await reading
    assert await session.next_message() is None
    await stack.until(lambda: made.abandoned)
    assert made.abandoned == ["client_disconnect"] and await session.next_message() is None


async def test_a_call_left_before_its_task_ran_is_as_if_it_never_was(stack: Any, request_of: Any) -> None:
    session = Session(stack.gateway, EdgeContext("grpc"), stack_log(stack))
    frames: asyncio.Queue[Any] = asyncio.Queue()
    for frame in (pb.SessionRequest(call=1, generate=request_of()), pb.SessionRequest(call=1, leave=pb.LeaveCall())):
        frames.put_nowait(frame)
    frames.put_nowait(None)
    with warnings.catch_warnings(record=True) as said:  # of a coroutine that was never awaited
        warnings.simplefilter("always")
        await session.read(queued(frames))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not said
    assert await session.next_message() is None and stack.gateway.live_count == 0


def stack_log(stack: Any) -> Any:
    return stack.gateway._log


async def queued(frames: asyncio.Queue[Any]) -> Any:
    """What a test puts into the queue, until None."""
    while (frame := await frames.get()) is not None:
        yield frame
