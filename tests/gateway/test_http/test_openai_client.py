"""The unmodified openai client, async and sync, against the edge."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Paris is the capital of France."
HELLO: Any = [{"role": "user", "content": "What is the capital of France?"}]


async def test_chat(edge: Any) -> None:
    answer = await edge.openai().chat.completions.create(model="smollm2", messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.object, answer.model, answer.id) == ("chat.completion", "smollm2", "chatcmpl-req-0")
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
        "octavo_cost": {
            "prefill_device_us": 1500,
            "decode_device_us": 2500,
            "recompute_device_us": 0,
            "kv_pool_byte_s": 1e6,
            "kv_dram_byte_s": 0,
            "kv_nvme_byte_s": 0,
            "saved_prefix_tokens": 16,
            "saved_tier_tokens": 0,
            "saved_sibling_tokens": 0,
        },
    }
    assert answer.system_fingerprint == "octavo-c0ffeec0ffeec0ff"


async def test_chat_stream(edge: Any) -> None:
    stream = await edge.openai().chat.completions.create(model="smollm2", messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * 6
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 6 + ["stop"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_include_usage_comes_last_and_without_choices(edge: Any) -> None:
    options = {"include_usage": True}
    stream = await edge.openai().chat.completions.create(
        model="smollm2", messages=HELLO, stream=True, stream_options=options
    )
    chunks = [chunk async for chunk in stream]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * 7 + [True]
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 7)
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 2


async def test_continuous_usage_counts_up(edge: Any) -> None:
    stream = await edge.openai().chat.completions.create(
        model="smollm2",
        messages=HELLO,
        n=2,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [chunk.usage.completion_tokens async for chunk in stream]
    assert counts == [*range(1, 15), 14]


@pytest.mark.parametrize("top", [None, 3])
async def test_chat_logprobs_stream_and_whole_agree(edge: Any, top: int | None) -> None:
    options: dict[str, Any] = {"model": "smollm2", "messages": HELLO, "logprobs": True, "n": 2}
    if top is not None:
        options["top_logprobs"] = top
    client = edge.openai()
    whole = await client.chat.completions.create(**options)
    collected: dict[int, list[Any]] = {0: [], 1: []}
    texts = {0: "", 1: ""}
    async for chunk in await client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            collected[choice.index] += choice.logprobs.content
            texts[choice.index] += choice.delta.content
    for choice in whole.choices:
        assert choice.message.content == texts[choice.index]
        assert choice.logprobs.content == collected[choice.index]
        assert len(choice.logprobs.content[0].top_logprobs) == (top or 0)
    assert whole.choices[1].message.content == "Paris1 is the capital of France."
    assert whole.choices[0].logprobs.content[0].bytes == list(b"Paris")
    assert edge.gateway.requests[0].logprobs == (top or 0)


async def test_completions_stream_and_whole_agree(edge: Any) -> None:
    client = edge.openai()
    options: dict[str, Any] = {"model": "smollm2", "prompt": "Once", "logprobs": 2, "n": 2}
    whole = await client.completions.create(**options)
    assert whole.object == "text_completion"
    collected: dict[int, dict[str, list[Any]]] = {}
    texts = {0: "", 1: ""}
    async for chunk in await client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            lists = collected.setdefault(choice.index, {"tokens": [], "token_logprobs": [], "text_offset": []})
            for name, items in lists.items():
                items += getattr(choice.logprobs, name)
    for choice in whole.choices:
        assert choice.text == texts[choice.index]
        assert choice.finish_reason == "stop"
        for name, items in collected[choice.index].items():
            assert getattr(choice.logprobs, name) == items
    logprobs = whole.choices[0].logprobs
    assert logprobs.text_offset == [0, 5, 8, 12, 20, 23, 30]
    assert logprobs.top_logprobs[0] == {"Paris0": -0.25, "Paris1": -1.25, "Paris": -0.25}


async def test_several_prompts_are_choices_of_one_answer(edge: Any) -> None:
    client = edge.openai()
    prompts = [[1, 2], [3], [4, 5, 6]]
    whole = await client.completions.create(model="smollm2", prompt=prompts, n=2)
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert [choice.text[:6] for choice in whole.choices] == ["Paris ", "Paris1"] * 3
    assert [item.prompt_ids for item in edge.gateway.requests] == prompts
    assert whole.usage.completion_tokens == 42
    assert whole.usage.prompt_tokens == 15
    texts = dict.fromkeys(range(6), "")
    async for chunk in await client.completions.create(model="smollm2", prompt=["a", "b", "c"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [texts[choice.index] for choice in whole.choices] == [choice.text for choice in whole.choices]
    assert [item.prompt_text for item in edge.gateway.requests[3:]] == ["a", "b", "c"]


async def test_sync_client_streams(edge: Any) -> None:
    def talk() -> str:
        with openai.OpenAI(base_url=f"{edge.url}/v1", api_key="k", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["smollm2"]
            assert client.models.retrieve("smollm2").owned_by == "octavo"
            stream = client.chat.completions.create(model="smollm2", messages=HELLO, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(talk) == TEXT


async def test_stream_helper_accumulates(edge: Any) -> None:
    async with edge.openai().chat.completions.stream(model="smollm2", messages=HELLO) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == TEXT


async def test_error_classes(edge: Any) -> None:
    client = edge.openai()
    with pytest.raises(openai.NotFoundError, match="nope"):
        await client.models.retrieve("nope")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="smollm2", messages=HELLO, tools=[{"type": "function"}])  # type: ignore[list-item]
    assert (caught.value.param, caught.value.type) == ("tools[0].function", "invalid_request_error")


async def test_error_in_mid_stream_raises_in_the_client(edge: Any, make: Any) -> None:
    from octavo.errors import Unavailable

    edge.gateway.script = lambda params: [*make.deltas(["a", "b"], finish=None), Unavailable("worker lost")]
    stream = await edge.openai().chat.completions.create(model="smollm2", messages=HELLO, stream=True)
    seen = []
    with pytest.raises(openai.APIError, match="worker lost"):
        async for chunk in stream:
            seen.append(chunk.choices[0].delta.content)
    assert seen == ["a", "b"]
