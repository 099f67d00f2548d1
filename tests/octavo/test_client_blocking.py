"""Client: the same SDK without asyncio, against a gateway in a process loop of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import octavo
import pytest
from octavo import errors
from octavo.client.retry import RetryPolicy

QUICK = RetryPolicy(first_backoff_s=0.01, max_backoff_s=0.02)


async def test_the_blocking_face_does_what_the_async_one_does(served: Any, script: Any) -> None:
    hold = asyncio.Event()
    served.gateway.scripts = [
        script.answer(["a", "b"]),
        script.answer(["c", "d"]),
        [script.failure(script.code.INVALID_ARGUMENT, "no")],
        [*script.answer(["e"], end=False), hold.wait],
    ]

    def use() -> None:
        with octavo.Client(served.address, retry=QUICK) as client:
            assert client.generate("x", temperature=0).text == "ab"
            with client.chat_stream("hi") as stream:
                assert [chunk.text for chunk in stream] == ["c", "d"]
                assert stream.completion is not None and stream.completion.text == "cd"
            with pytest.raises(errors.InvalidRequest):
                client.chat("hi")
            with client.generate_stream("x") as stream:
                assert next(stream).text == "e"
                assert stream.cancel().found
            assert client.tokenize("hey").token_ids == (5, 6)
            assert client.detokenize([5]) == "hey"
            assert client.count_tokens("hey").tokens == 2
            assert client.models()[0].id == "m"
            assert client.cancel("unknown").outcome == "cancelled"

    await asyncio.to_thread(use)
    await asyncio.wait_for(served.gateway.cancelled.wait(), 5)
    assert len(served.gateway.acks) == 2
