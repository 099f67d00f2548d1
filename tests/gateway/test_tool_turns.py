"""Tool calls from the scheduler's tokens to both edges: events, finish reasons, the pause that begins, the turn that goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from octavo.client import AsyncClient, Message
from octavo.rpc.testing import running_host
from octavo_gateway.tool_calls import call_id
from octavo_gateway.tool_turns import ToolTurns

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ANSWER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
ASKED: Any = [{"role": "user", "content": "Bern?"}]


async def answered(stack: Any, text: str = ANSWER, reason: str = "stop") -> Any:
    """The next submit, after its answer."""
    return await stack.scheduler.play(stack.ids(text), reason)


async def test_grpc_events_carry_the_call_and_the_turn_goes_on(stack: Any) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        asking = asyncio.create_task(client.chat("Bern?", tools=TOOLS, temperature=0, max_tokens=100, request_id="one"))
        submit = await answered(stack)
        done = await asking
        assert done.finish_reason == "tool_calls" and done.text == ANSWER
        assert [(call.id, call.name, json.loads(call.arguments)) for call in done.tool_calls] == [
            (call_id("one", 0, 0), "weather", {"city": "Bern"})
        ]
        pause = await stack.scheduler.next("pause")
        assert (pause.request_id, pause.tool, pause.tenant) == (submit.request_id, "weather", submit.tenant)
        result = Message("tool", "9 degrees", tool_call_id=done.tool_calls[0].id)
        messages = [Message("user", "Bern?"), done.message, result]
        asking = asyncio.create_task(client.chat(messages, tools=TOOLS, max_tokens=10))
        again = await answered(stack, "Cold.")
        assert again.resumes == submit.request_id, "the pause ends with who answers the call"
        forgotten = ToolTurns(stack.upstream)  # as another gateway is, to which a retry may go
        stack.gateway._turns = forgotten
        asking_elsewhere = asyncio.create_task(client.chat(messages, tools=TOOLS, max_tokens=10))
        elsewhere = await answered(stack, "Cold.")
        assert not elsewhere.resumes and elsewhere.body_hash == again.body_hash
        await asking_elsewhere
        assert (await asking).finish_reason == "stop"
    assert stack.scheduler.none("pause")


async def test_a_pause_that_the_client_announced_is_its_own(stack: Any) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        given: Any = {"tools": TOOLS, "max_tokens": 100}
        asking = asyncio.create_task(client.chat("Bern?", pause={"tool": "mine"}, **given))
        await answered(stack)
        assert (await asking).tool_calls
        asking = asyncio.create_task(client.chat("Bern?", n=2, **given))
        await answered(stack)
        assert {choice.finish_reason for choice in (await asking).choices} == {"tool_calls"}
        asking = asyncio.create_task(client.chat("Bern?", **given))
        await answered(stack, reason="length")
        cut = await asking
        assert (cut.finish_reason, len(cut.tool_calls)) == ("length", 1)
        asking = asyncio.create_task(client.chat("Bern?", tools=TOOLS, tool_choice="none", max_tokens=100))
        submit = await answered(stack)
        plain = await asking
        assert (plain.finish_reason, plain.tool_calls, plain.text) == ("stop", (), ANSWER)
        bare = asyncio.create_task(client.chat("Bern?", max_tokens=100))
        assert (await answered(stack)).prompt_tokens == submit.prompt_tokens, (
            "with the choice none nothing is told of tools"
        )
        await bare
    assert stack.scheduler.none("pause")


async def test_a_turn_that_is_replayed_begins_no_second_pause(stack: Any) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        given: Any = {"tools": TOOLS, "max_tokens": 100, "request_id": "one"}
        asking = asyncio.create_task(client.chat("Bern?", **given))
        submit = await answered(stack)
        first = await asking
        assert (await stack.scheduler.next("pause")).request_id == submit.request_id
        state = {"gateway_state": submit.gateway_state, "prompt_tokens": submit.prompt_tokens}
        for kind in ("attach", "submit"):
            stream = client.attach("one") if kind == "attach" else client.chat_stream("Bern?", **given)
            reading = asyncio.create_task(stream.result())
            label = (await stack.scheduler.next(kind)).request_id
            stack.scheduler.accept(label, attached=True, **state)
            stack.scheduler.tokens(label, stack.ids(ANSWER))
            stack.scheduler.choice_finished(label, "stop", len(ANSWER))
            stack.scheduler.finish(label)
            assert (await reading).tool_calls == first.tool_calls
    assert stack.scheduler.none("pause")


async def test_openai_clients_stream_and_whole(stack: Any, make_feed: Any, tmp_path: Any) -> None:
    from octavo_gateway.http.server import start_http

    settings = {"gateway.http_listen": "127.0.0.1:0", "observability.trace_files": False}
    async with running_host("gateway", tmp_path, settings) as host:
        address = await start_http(stack.gateway, make_feed()[1], host)
        async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="k", max_retries=0) as client:
            given: Any = {"model": "smollm2", "messages": ASKED, "tools": TOOLS, "max_tokens": 120}
            asking = asyncio.ensure_future(client.chat.completions.create(**given))
            first = await answered(stack, f"I look.\n{ANSWER}\n{ANSWER}")
            (choice,) = (await asking).choices
            assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
            calls = choice.message.tool_calls or []
            assert [call.function.name for call in calls] == ["weather"] * 2 and len({call.id for call in calls}) == 2
            assert json.loads(calls[0].function.arguments) == {"city": "Bern"}
            assert (await stack.scheduler.next("pause")).request_id == first.request_id

            async def streamed() -> Any:
                async with client.chat.completions.stream(**given) as stream:
                    seen = [event async for event in stream if event.type == "content.delta"]
                    return seen, await stream.get_final_completion()

            asking = asyncio.ensure_future(streamed())
            await answered(stack)
            contents, final = await asking
            (choice,) = final.choices
            assert not contents and choice.message.content is None and choice.finish_reason == "tool_calls"
            (call,) = choice.message.tool_calls
            assert json.loads(call.function.arguments) == {"city": "Bern"}

            answer = {"role": "tool", "tool_call_id": call.id, "content": "9 degrees"}
            turn = choice.message.model_dump(exclude_none=True, include={"role", "tool_calls"})
            asking = asyncio.ensure_future(
                client.chat.completions.create(**{**given, "messages": [*ASKED, turn, answer], "max_tokens": 20})
            )
            submit = await answered(stack, "Cold there.")
            (choice,) = (await asking).choices
            assert submit.resumes and choice.message.content == "Cold there." and choice.message.tool_calls is None


async def test_chat_chunks_carry_a_call_as_it_grows(stack: Any, make_feed: Any, tmp_path: Any) -> None:
    from octavo_gateway.http.server import start_http

    settings = {"gateway.http_listen": "127.0.0.1:0", "observability.trace_files": False}
    broken = ANSWER.replace('"Bern"', "Bern")
    async with running_host("gateway", tmp_path, settings) as host:
        address = await start_http(stack.gateway, make_feed()[1], host)
        async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="k", max_retries=0) as client:
            given: Any = {"model": "smollm2", "messages": ASKED, "tools": TOOLS, "max_tokens": 120, "stream": True}

            async def chunks() -> list[Any]:
                found = [chunk.choices[0] async for chunk in await client.chat.completions.create(**given)]
                return [(choice.delta, choice.finish_reason) for choice in found]

            reading = asyncio.create_task(chunks())
            submit = await stack.scheduler.next("submit")
            stack.scheduler.accept(submit.request_id)
            ids = stack.ids(f"I look. {broken}{ANSWER}")
            for start, token in enumerate(ids):  # one event each, so that each may be a chunk of its own
                stack.scheduler.tokens(submit.request_id, [token], start)
                await stack.until(
                    lambda seen=start + 1: stack.gateway._upstream.live_count and len(_output(stack).ids) >= seen
                )
                await asyncio.sleep(0)
            stack.scheduler.choice_finished(submit.request_id, "stop", len(ids))
            stack.scheduler.finish(submit.request_id)
            found = await reading
            parts = [part for delta, _ in found for part in delta.tool_calls or ()]
            assert [(part.index, part.type, part.function.name) for part in parts if part.id] == [
                (0, "function", "weather"), (1, "function", "weather"),
            ]  # fmt: skip
            assert len(parts) > 10, "it came in pieces"
            grown = ["".join(part.function.arguments for part in parts if part.index == number) for number in (0, 1)]
            assert grown == ['{"city": Bern', '{"city": "Bern"}'] and found[-1][1] == "tool_calls"
            assert "".join(delta.content or "" for delta, _ in found) == f"I look. {broken}"


def _output(stack: Any) -> Any:
    (live,) = stack.gateway._live.values()
    return live.choices[0]


async def test_grpc_chunks_carry_a_call_as_it_grows_on_and_off_a_session(stack: Any) -> None:
    for multiplex in (True, False):
        async with AsyncClient(f"grpc://{stack.address}", multiplex=multiplex) as client:
            stream = client.chat_stream("Bern?", tools=TOOLS, max_tokens=100, request_id=f"one-{multiplex}", n=2)

            async def chunks(stream: Any = stream) -> list[Any]:
                return [chunk async for chunk in stream]

            reading = asyncio.create_task(chunks())
            await answered(stack)
            found = await reading
            done = stream.completion
            assert done is not None and [choice.finish_reason for choice in done.choices] == ["tool_calls"] * 2
            for choice in done.choices:
                (call,) = choice.tool_calls
                parts = [part for chunk in found if chunk.index == choice.index for part in chunk.call_parts]
                assert (
                    (parts[0].id, parts[0].name)
                    == (call.id, call.name)
                    == (call_id(f"one-{multiplex}", choice.index, 0), "weather")
                )
                assert "".join(part.arguments for part in parts) == call.arguments
                assert parts[-1].end == len(call.arguments) and not any(part.name or part.number for part in parts[1:])


async def test_who_attaches_in_the_middle_is_told_the_rest_of_a_call(stack: Any) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        reading = asyncio.create_task(client.chat("Bern?", tools=TOOLS, max_tokens=100, request_id="one"))
        submit = await stack.scheduler.next("submit")
        stack.scheduler.accept(submit.request_id)
        ids, at = stack.ids(ANSWER), ANSWER.index("Bern")
        stack.scheduler.tokens(submit.request_id, ids)
        await stack.until(lambda: stack.gateway._live and len(_output(stack).ids) == len(ids))
        late = client.attach("one", from_byte=at)
        later = asyncio.create_task(late.result())
        await stack.until(lambda: next(iter(stack.gateway._live.values())).clients == 2)
        stack.scheduler.choice_finished(submit.request_id, "stop", len(ids))
        stack.scheduler.finish(submit.request_id)
        assert (await later).tool_calls == (await reading).tool_calls
        assert (await later).text == ANSWER[at:]


async def test_a_choice_that_is_none_is_refused_with_the_fix(stack: Any, make_feed: Any, tmp_path: Any) -> None:
    from octavo_gateway.http.server import start_http

    settings = {"gateway.http_listen": "127.0.0.1:0", "observability.trace_files": False}
    async with running_host("gateway", tmp_path, settings) as host:
        address = await start_http(stack.gateway, make_feed()[1], host)
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            for choice in ("sometimes", {"type": "function", "function": {"name": "wether"}}, {"type": "x"}):
                body = {"messages": ASKED, "tools": TOOLS, "tool_choice": choice}
                error = (await http.post("/v1/chat/completions", json=body)).json()["error"]
                assert error["param"] == "tool_choice" and (
                    "is none; use auto, none, required" in error["message"] or "is not offered" in error["message"]
                )
    assert stack.scheduler.none("submit")


@pytest.fixture
def make_feed() -> Any:
    """As the edge's own tests make one."""
    from tests.gateway.test_http.conftest import new_feed  # the scripted scheduler of the live view

    return lambda: (None, new_feed())
