"""A stream that breaks after its first token goes on where it was: no text lost, none twice, one terminal event."""

from __future__ import annotations

import asyncio
from typing import Any

import octavo
import pytest
from google.rpc import error_details_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo import errors
from octavo.client.calls import Calls
from octavo.client.retry import RetryPolicy
from octavo.client.stream import AsyncStream
from octavo.client.targets import Targets
from octavo.v1 import inference_pb2 as pb

QUICK = RetryPolicy(first_backoff_s=0.01, max_backoff_s=0.05, resume_window_s=5.0)


async def test_resume_asks_for_what_is_missing(served: Any, script: Any) -> None:
    events = script.answer(["Grüße ", "aus ", "Paris"])
    served.gateway.scripts = [[*events[:3], script.unavailable], [script.unavailable], [events[0], *events[3:]]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        stream = client.generate_stream("x", request_id="r1")
        chunks = [chunk.text async for chunk in stream]
    assert chunks == ["Grüße ", "aus ", "Paris"]
    attaches = [request for name, request, _m in served.gateway.calls if name == "Attach"]
    assert [(request.request_id, request.from_byte) for request in attaches] == [("r1", 12), ("r1", 12)]
    assert stream.completion is not None and stream.completion.resumes == 2
    assert len(served.gateway.acks) == 1


@pytest.mark.parametrize("options", [{"n": 2}, {"beam_width": 2}, {"beam_width": 4, "n": 2}])
async def test_several_choices_are_sent_again_and_cut(served: Any, script: Any, options: dict[str, int]) -> None:
    first, second = script.answer(["éé", "bb", "cc"], index=0), script.answer(["x", "y"], index=1)
    finished = pb.Finished(choices=[first[-1].choices[0], second[-1].choices[0]])
    served.gateway.scripts = [
        [first[0], first[1], first[2], script.unavailable],  # choice 1 has not begun
        [first[0], second[1], first[1], script.unavailable],
        [first[0], *first[1:4], *second[1:3], finished],
    ]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        done = await client.generate("x", **options)
    assert [choice.text for choice in done.choices] == ["éébbcc", "xy"]
    assert [choice.token_ids for choice in done.choices] == [(101, 102, 103), (101, 102)]
    assert [request.from_byte for name, request, _m in served.gateway.calls if name == "Attach"] == [0, 0]


async def test_the_other_gateway_takes_over(serve: Any, script: Any) -> None:
    first, second = await serve(), await serve()
    hold = asyncio.Event()
    events = script.answer(["one ", "two ", "three"])
    first.gateway.scripts = [[*events[:2], hold.wait]]
    second.gateway.scripts = [[events[0], *events[2:]]]
    async with octavo.AsyncClient([first.address, second.address], retry=QUICK) as client:
        stream = client.chat_stream("count")
        assert (await anext(stream)).text == "one "
        await first.server.stop(None)
        done = await stream.result()
    assert done.text == "one two three" and done.choices[0].token_ids == (101, 102, 103)
    assert [name for name, _r, _m in second.gateway.calls] == ["Attach"]


async def test_the_same_gateway_after_a_restart(serve: Any, script: Any) -> None:
    first = await serve()
    hold = asyncio.Event()
    events = script.answer(["one ", "two"])
    first.gateway.scripts = [[*events[:2], hold.wait]]
    async with octavo.AsyncClient(first.address, retry=QUICK) as client:
        stream = client.generate_stream("count")
        assert (await anext(stream)).text == "one "
        await first.server.stop(None)
        first.gateway.scripts = [[events[0], *events[2:]]]
        await asyncio.sleep(0.1)  # some attempts find nobody
        await serve(first.address, first.gateway)
        assert (await stream.result()).text == "one two"


async def test_what_cannot_be_resumed_is_raised(served: Any, script: Any) -> None:
    events = script.answer(["one ", "two"])
    lost = script.failure(script.code.NOT_FOUND, "request r1 is unknown")
    served.gateway.scripts = [[*events[:2], script.unavailable], [lost]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        with pytest.raises(errors.OctavoError, match="r1 is unknown"):
            await client.generate("x", request_id="r1")
    assert served.gateway.acks == []


async def test_only_unavailable_is_resumed(served: Any, script: Any) -> None:
    events = script.answer(["one ", "two"])
    served.gateway.scripts = [[*events[:2], script.failure(script.code.RESOURCE_EXHAUSTED, "slow reader")]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        with pytest.raises(errors.Overloaded, match="slow reader"):
            await client.generate("x")
    assert len(served.gateway.calls) == 1


async def test_a_request_that_failed_is_not_resumed(served: Any, script: Any) -> None:
    events = script.answer(["one ", "two"])
    info = error_details_pb2.ErrorInfo(reason="worker-failed")
    served.gateway.scripts = [[*events[:2], script.failure(script.code.UNAVAILABLE, "NaN in the logits", [info])]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        with pytest.raises(errors.Unavailable, match="NaN") as caught:
            await client.generate("x")
    assert caught.value.reason == "worker-failed" and len(served.gateway.calls) == 1


async def test_a_gateway_that_drains_is_left_for_another(serve: Any, script: Any) -> None:
    first, second = await serve(), await serve()
    events = script.answer(["one ", "two"])
    info = error_details_pb2.ErrorInfo(reason="shutdown")
    first.gateway.scripts = [[*events[:2], script.failure(script.code.UNAVAILABLE, "shutting down", [info])]]
    second.gateway.scripts = [[events[0], *events[2:]]]
    async with octavo.AsyncClient([first.address, second.address], retry=QUICK) as client:
        assert (await client.generate("x")).text == "one two"


async def test_resuming_ends_with_its_window(served: Any, script: Any) -> None:
    events = script.answer(["one ", "two"])
    served.gateway.scripts = [[*events[:2], script.unavailable], *[[script.unavailable]] * 200]
    policy = RetryPolicy(first_backoff_s=0.01, max_backoff_s=0.02, resume_window_s=0.2)
    async with octavo.AsyncClient(served.address, retry=policy) as client:
        with pytest.raises(errors.Unavailable):
            await client.generate("x")
    assert 2 < len(served.gateway.calls) < 30


async def test_attach_from_the_middle_of_a_request(served: Any, script: Any) -> None:
    events = script.answer(["one ", "two ", "three"], request_id="r7")
    served.gateway.scripts = [[events[0], *events[2:]], [events[0], *events[2:]]]
    async with octavo.AsyncClient(served.address, retry=QUICK) as client:
        done = await client.attach("r7", from_byte=4).result()
        assert done.text == "two three" and done.request_id == "r7"
        done = await client.attach(idempotency_key="k", from_byte=4).result()
        assert done.request_id == "r7"
        with pytest.raises(errors.InvalidRequest):
            client.attach()


class Scripted:
    """A call that plays events and then breaks or ends; stands in for a gRPC call."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    async def __aiter__(self) -> Any:
        for event in self._events:
            yield event

    def cancel(self) -> bool:
        return False


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(st.text(min_size=1, max_size=5).filter(lambda text: text.isprintable()), min_size=1, max_size=8),
    overlaps=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=4),
)
def test_any_overlap_of_resumed_streams_adds_up_to_the_text(pieces: list[str], overlaps: list[tuple[int, int]]) -> None:
    """Deltas may be replayed from any earlier byte, also from inside a delta, and in other portions."""
    stream = AsyncStream(
        Targets("127.0.0.1:1"),
        Calls("", multiplex=False),
        "generate",
        pb.GenerateRequest(),
        request_id="r",
        metadata=[],
        deadline_s=10,
        policy=QUICK,
        on_finished=lambda ack: None,
    )
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece.encode()))
    whole = "".join(pieces)
    sent, got = 0, []

    def take(first: int, last: int) -> None:
        """One delta with the pieces [first, last)."""
        delta = pb.Delta(
            text="".join(pieces[first:last]),
            token_ids=list(range(first, last)),
            token_end=last,
            byte_end=ends[last],
            finish_reason=pb.FINISH_REASON_STOP if last == len(pieces) else pb.FINISH_REASON_UNSPECIFIED,
        )
        chunk = stream._take(pb.GenerateResponse(delta=delta))
        if chunk is not None:
            got.append(chunk)

    for step, back in overlaps:
        if sent < len(pieces):
            last = min(len(pieces), sent + step)
            take(sent, last)
            sent = last
        first = max(0, sent - back)
        if first < sent:
            take(first, sent)
    if sent < len(pieces):
        take(max(0, sent - 1), len(pieces))
    assert "".join(chunk.text for chunk in got) == whole
    assert [token for chunk in got for token in chunk.token_ids] == list(range(len(pieces)))
    assert sum(bool(chunk.finish_reason) for chunk in got) == 1
