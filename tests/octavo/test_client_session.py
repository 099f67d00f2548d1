"""All requests of a client on one stream: what that adds to, and takes from, a call by itself: nothing a caller sees."""

from __future__ import annotations

import asyncio
from typing import Any

import octavo
import pytest
from google.rpc import error_details_pb2
from octavo import errors
from octavo.client.retry import RetryPolicy
from octavo.client.session import SessionCall
from octavo.packing import pack_u32
from octavo.rpc.channels import MAX_MESSAGE_BYTES
from octavo.v1 import inference_pb2 as pb

QUICK = RetryPolicy(first_backoff_s=0.01, max_backoff_s=0.02)
SESSION_ONLY = pytest.mark.parametrize("knows_sessions", [True])


@SESSION_ONLY
async def test_one_stream_carries_all_requests(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer([f"{i}"]) for i in range(20)]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        assert not client.multiplexed
        answers = await asyncio.gather(*(client.generate("x") for _ in range(20)))
        assert client.multiplexed
    assert sorted(done.text for done in answers) == sorted(str(i) for i in range(20))
    assert served.gateway.sessions == 1 and len(served.gateway.acks) == 20


@SESSION_ONLY
async def test_without_multiplex_each_has_its_own(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["a"])]
    async with octavo.AsyncClient(served.address, retry=QUICK, multiplex=False) as client:
        assert (await client.generate("x")).text == "a" and not client.multiplexed
    assert served.gateway.sessions == 0 and len(served.gateway.acks) == 1


@pytest.mark.parametrize("knows_sessions", [False])
async def test_an_older_gateway_is_asked_once(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["a"]) for _ in range(6)]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        first = await asyncio.gather(*(client.generate("x") for _ in range(4)))
        again = [await client.generate("x") for _ in range(2)]
    assert [done.text for done in [*first, *again]] == ["a"] * 6 and served.gateway.sessions == 1
    assert all(done.resumes == 0 for done in first)


@SESSION_ONLY
async def test_a_stream_nobody_reads_merges_and_delays_no_other(served: Any, script: Any) -> None:
    pieces = [f"piece {i} " for i in range(50)]
    served.gateway.scripts = [script.answer(pieces), script.answer(["quick"])]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        slow = client.generate_stream("x")
        assert (await anext(slow)).text == pieces[0]
        assert (await client.generate("y")).text == "quick"
        assert (await slow.result()).text == "".join(pieces)


async def test_what_was_not_taken_is_one_chunk_per_run_of_a_choice() -> None:
    call = SessionCall(None, 1)  # type: ignore[arg-type]
    for at in range(100):
        call.put_tokens(0, "ab", [at], at + 1, 2 * at + 2)
    call.put_tokens(1, "x", [7], 1, 1)
    call.put_tokens(0, "c", [100], 101, 201)
    call.put(pb.CallEvent(call=1, finished=pb.Finished()))
    call.end(StopAsyncIteration())
    got = [event async for event in call]
    assert [type(event).__name__ for event in got] == ["Chunk", "Chunk", "Chunk", "CallEvent"]
    merged = got[0]
    assert isinstance(merged, octavo.Chunk)
    assert (merged.text, merged.token_ids) == ("ab" * 100, tuple(range(100)))
    assert (merged.token_end, merged.byte_end) == (100, 200)


@SESSION_ONLY
async def test_runs_are_read_and_foreign_calls_passed_over(served: Any, script: Any) -> None:
    async def runs(context: Any) -> None:
        columns = pb.DeltaRuns(
            calls=pack_u32([1, 99, 1]),
            indexes=pack_u32([0, 0, 1]),
            counts=pack_u32([2, 1, 1]),
            token_ends=pack_u32([2, 1, 1]),
            byte_ends=pack_u32([2, 1, 2]),
            tokens=pack_u32([5, 6, 7, 8]),
            texts=["ab", "x", "é"],
        )
        await context.write(pb.SessionResponse(runs=columns))
        ends = [pb.ChoiceEnd(index=0, tokens=2, bytes=2), pb.ChoiceEnd(index=1, tokens=1, bytes=2)]
        event = pb.CallEvent(call=1, finished=pb.Finished(choices=ends))
        await context.write(pb.SessionResponse(events=[pb.CallEvent(call=99, finished=pb.Finished()), event]))

    async def session(frames: Any, context: Any) -> None:
        async for frame in frames:
            if frame.HasField("generate"):
                await runs(context)

    served.gateway.plays = session
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        done = await client.generate("x", n=2)
    assert [(choice.text, choice.token_ids) for choice in done.choices] == [("ab", (5, 6)), ("é", (8,))]


@SESSION_ONLY
async def test_a_gateway_that_ends_the_session_is_asked_for_the_rest(serve: Any, script: Any) -> None:
    first, second = await serve(), await serve()
    events = script.answer(["one ", "two"])

    async def leave_in_order(frames: Any, context: Any) -> None:
        async for frame in frames:
            for message in events[:2]:
                event = pb.CallEvent(call=frame.call)
                getattr(event, message.DESCRIPTOR.name.lower()).CopyFrom(message)
                await context.write(pb.SessionResponse(events=[event]))
            return  # OK, and a call without an end

    first.gateway.plays = leave_in_order
    second.gateway.scripts = [[events[0], *events[2:]]]
    async with octavo.AsyncClient([first.address, second.address], retry=QUICK) as client:
        done = await client.generate("x")
    assert (done.text, done.resumes) == ("one two", 1)
    assert [name for name, _request, _metadata in second.gateway.calls] == ["Attach"]


@SESSION_ONLY
async def test_a_failure_of_one_call_is_its_own(served: Any, script: Any) -> None:
    hold = asyncio.Event()
    served.gateway.scripts = [
        [*script.answer(["a", "b"])[:2], hold.wait, *script.answer(["a", "b"])[2:]],
        [script.failure(script.code.INVALID_ARGUMENT, "top_p: no")],
    ]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        stream = client.generate_stream("x")
        await anext(stream)
        with pytest.raises(errors.InvalidRequest, match="top_p"):
            await client.generate("y")
        hold.set()
        assert (await stream.result()).text == "ab"
    assert served.gateway.sessions == 1


@SESSION_ONLY
async def test_a_request_too_large_to_send_fails_alone(served: Any, script: Any) -> None:
    hold = asyncio.Event()
    whole = script.answer(["a", "b"])
    served.gateway.scripts = [[*whole[:2], hold.wait, *whole[2:]]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        stream = client.generate_stream("x")
        await anext(stream)
        with pytest.raises(errors.InvalidRequest, match=r"body: .* larger than max") as caught:
            await client.generate("x" * (MAX_MESSAGE_BYTES + 1))
        assert caught.value.field == "body"
        hold.set()
        assert (await stream.result()).text == "ab"
    assert served.gateway.sessions == 1 and len(served.gateway.calls) == 1


@SESSION_ONLY
async def test_a_call_that_finds_its_session_full_is_made_by_itself(served: Any, script: Any) -> None:
    full = script.failure(
        script.code.RESOURCE_EXHAUSTED,
        "call: full",
        [error_details_pb2.ErrorInfo(reason="rejected-session-calls"), script.retry_info(2)],
    )
    served.gateway.scripts = [[full], script.answer(["a"]), script.answer(["b"])]
    async with octavo.AsyncClient(served.address, retry=RetryPolicy(max_attempts=1)) as client:
        assert (await client.generate("x")).text == "a"  # at once, whatever the gateway asks to wait for
        assert (await client.generate("x")).text == "b" and client.multiplexed
    assert served.gateway.sessions == 1 and len(served.gateway.calls) == 3


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), 5e6])
async def test_a_deadline_that_is_none_is_refused_before_anything_is_sent(deadline_s: float) -> None:
    with pytest.raises(errors.InvalidRequest, match="deadline_s"):
        octavo.AsyncClient("127.0.0.1:1", deadline_s=deadline_s)


@SESSION_ONLY
@pytest.mark.parametrize("mark", ["taken away", "held back"])
async def test_without_its_mark_a_session_is_given_up_in_time(
    served: Any, script: Any, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that passes only the metadata it knows, or none before the first message."""
    monkeypatch.setattr("octavo.client.session.MARK_TIMEOUT_S", 0.3)
    monkeypatch.setattr("octavo.client.session.STATUS_TIMEOUT_S", 0.1)
    served.gateway.mark = mark
    served.gateway.scripts = [script.answer([f"{i}"]) for i in range(6)]
    async with octavo.AsyncClient(served.address, retry=QUICK, deadline_s=20) as client:
        first = await asyncio.gather(*(client.generate("x") for _ in range(4)))
        again = [await client.generate("x") for _ in range(2)]
        assert (await client.cancel("r")).found and not client.multiplexed
    assert sorted(done.text for done in [*first, *again]) == sorted(map(str, range(6)))
    assert served.gateway.sessions == 1 and all(done.resumes == 0 for done in first)


@SESSION_ONLY
async def test_a_gateway_that_was_silent_once_is_asked_again(
    served: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.client.session.MARK_TIMEOUT_S", 0.1)
    monkeypatch.setattr("octavo.client.calls.SILENT_S", 0.0)
    served.gateway.mark = "held back"
    served.gateway.scripts = [script.answer(["a"]) for _ in range(2)]
    async with octavo.AsyncClient(served.address, retry=QUICK, deadline_s=20) as client:
        asking = asyncio.create_task(client.generate("x"))
        while served.gateway.sessions < 1:
            await asyncio.sleep(0.01)
        served.gateway.mark = "sent"
        assert (await asking).text == "a" and served.gateway.sessions == 2
        assert (await client.generate("x")).text == "a" and client.multiplexed


@SESSION_ONLY
async def test_cancel_and_pause_go_the_way_of_their_request(served: Any, script: Any) -> None:
    """A balancer may take a call of its own to another gateway, which knows nothing of the request."""
    hold = asyncio.Event()
    served.gateway.scripts = [[*script.answer(["a"], end=False), hold.wait]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        assert (await client.cancel("r")).found  # no session yet: by itself
        stream = client.generate_stream("x", request_id="r")
        await anext(stream)
        assert (await stream.cancel()).outcome == "cancelled" and (await client.cancel("r", "late")).blocks_freed == 3
        paused = await client.pause("r", "search", 800)
        assert (paused.found, paused.decision) == (True, "keep")
        busy = script.failure(script.code.UNAVAILABLE, "scheduler-slow")
        served.gateway.unary_failures = [busy]
        assert (await client.pause("r")).found, "as every call that is safe to repeat"
        full = script.failure(
            script.code.RESOURCE_EXHAUSTED, "full", [error_details_pb2.ErrorInfo(reason="rejected-session-calls")]
        )
        served.gateway.unary_failures = [full]
        assert (await client.cancel("r")).found
    assert [name for name, _request, _metadata in served.gateway.calls] == [
        "Cancel", "Generate", "session cancel", "session cancel", "session pause", "session pause", "session pause",
        "session cancel", "Cancel",
    ]  # fmt: skip
    assert served.gateway.sessions == 1


@SESSION_ONLY
async def test_a_whole_answer_is_cancelled_by_its_id(served: Any, script: Any) -> None:
    """Nobody has a handle of a call that waits for the whole answer: its id is enough."""
    hold, failed = asyncio.Event(), script.failure(script.code.CANCELLED, "client_cancel")
    served.gateway.scripts = [[*script.answer(["a"], end=False), hold.wait, failed]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        asking = asyncio.create_task(client.generate("x", request_id="mine"))
        while not served.gateway.calls:
            await asyncio.sleep(0.01)
        assert (await client.cancel("mine")).found
        hold.set()
        with pytest.raises(errors.Cancelled):
            await asking


@SESSION_ONLY
async def test_a_message_that_cannot_be_read_ends_the_stream_on_both_sides(served: Any, script: Any) -> None:
    ended = asyncio.Event()

    async def nonsense(frames: Any, context: Any) -> None:
        try:
            async for _frame in frames:
                await context.write(pb.SessionResponse(runs=pb.DeltaRuns(calls=b"odd")))
        finally:
            ended.set()

    served.gateway.plays = nonsense
    policy = RetryPolicy(max_attempts=1, resume_window_s=0)
    async with octavo.AsyncClient(served.address, retry=policy) as client:
        with pytest.raises(errors.OctavoError):
            await client.generate("x")
        await asyncio.wait_for(ended.wait(), 5)


@SESSION_ONLY
async def test_closing_the_client_leaves_what_runs(served: Any, script: Any) -> None:
    hold = asyncio.Event()
    served.gateway.scripts = [[*script.answer(["a"], end=False), hold.wait]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        stream = client.generate_stream("x")
        await anext(stream)
        waiting = asyncio.create_task(stream.result())
        await asyncio.sleep(0)
    await asyncio.wait_for(served.gateway.cancelled.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await waiting
