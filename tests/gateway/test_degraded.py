"""A request that the scheduler took on for less than it asked for: said in Started, in the span, and kept by a resubmit."""

from __future__ import annotations

from typing import Any

import grpc.aio
from octavo_gateway.service import COST_TRAILER

SAID = "pool=cheap max_tokens=3"


async def begun(stack: Any, request_of: Any) -> tuple[Any, Any, Any]:
    """A call whose request was degraded: the call, its submit and Started."""
    call = stack.stub.Generate(request_of(options={"max_tokens": 20}))
    submit = await stack.scheduler.next("submit")
    assert submit.max_tokens == 20
    stack.scheduler.accept(submit.request_id, degraded=SAID, max_tokens=3)
    return call, submit, (await call.read()).started


async def test_started_says_what_became_of_it(stack: Any, request_of: Any) -> None:
    call, submit, started = await begun(stack, request_of)
    assert (started.degraded, started.max_tokens) == (SAID, 3)
    stack.scheduler.tokens(submit.request_id, stack.ids("a"))
    stack.scheduler.choice_finished(submit.request_id, "length", 1)
    stack.scheduler.finish(submit.request_id)
    while await call.read() is not grpc.aio.EOF:
        pass
    assert COST_TRAILER in dict(await call.trailing_metadata())
    (span,) = [span for span in stack.spans.get_finished_spans() if span.name == "request"]
    assert span.attributes["octavo.degraded"] == SAID


async def test_a_resubmit_asks_for_what_was_agreed_on(stack: Any, request_of: Any) -> None:
    call, _submit, _started = await begun(stack, request_of)
    stack.scheduler.break_stream()
    again = await stack.scheduler.next("submit")
    assert (again.attempt, again.max_tokens) == (2, 3)
    call.cancel()
