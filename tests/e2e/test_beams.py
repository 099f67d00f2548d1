"""Beam search on the real model, over every way in: one search is one answer, whichever edge asks for it."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from cluster import Cluster, read
from octavo.client import AsyncClient, Client
from octavo.errors import InvalidRequest
from octavo.v1 import inference_pb2 as pb
from octavo_cli.diagnosis import facts_of
from octavo_cli.spans import read_spans

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

PROMPT = [1000 + (i * 7919) % 40000 for i in range(40)]
WIDTH = 4


def search(max_tokens: int = 16, n: int = WIDTH, **options: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True, beam_width=WIDTH, n=n, **options),
    )


async def test_every_way_in_gives_the_same_beams(cluster: Cluster) -> None:
    before = (await cluster.settle()).counters
    async with cluster.channel() as channel:
        plain = await read(cluster.inference(channel).Generate(search(logprobs=1)))
    assert sorted(plain.ids) == [0, 1, 2, 3] and len({tuple(ids) for ids in plain.ids.values()}) == WIDTH
    ends = plain.finished.choices
    assert [end.score for end in ends] == sorted((end.score for end in ends), reverse=True)
    assert all(end.score == pytest.approx(end.cumulative_logprob / 16) for end in ends)
    assert plain.finished.usage.completion_tokens == WIDTH * 16

    options = {"max_tokens": 16, "ignore_eos": True, "beam_width": WIDTH}
    async with AsyncClient(cluster.grpc_address) as client:  # on a session
        answer = await client.generate(PROMPT, **options)
        early = await client.generate(PROMPT, n=1, early_stopping=True, length_penalty=0.5, **options)
        single = await client.generate(PROMPT, beam_width=1, max_tokens=16, ignore_eos=True)
        greedy = await client.generate(PROMPT, temperature=0, max_tokens=16, ignore_eos=True)
        streamed = client.generate_stream(PROMPT, **options)
        chunks = [chunk async for chunk in streamed]
    assert [list(choice.token_ids) for choice in answer.choices] == [plain.ids[at] for at in range(WIDTH)]
    assert [choice.score for choice in answer.choices] == pytest.approx([end.score for end in ends], rel=1e-3)
    assert len(early.choices) == 1
    assert single.choices[0].token_ids == greedy.choices[0].token_ids
    assert {chunk.index for chunk in chunks} == set(range(WIDTH)) and all(chunk.finish_reason for chunk in chunks)

    def blocking() -> list[str]:
        with Client(cluster.grpc_address) as client:
            return [choice.text for choice in client.generate(PROMPT, **options).choices]

    texts = [choice.text for choice in answer.choices]
    assert await asyncio.to_thread(blocking) == texts

    body = {"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "use_beam_search": True, "n": WIDTH}
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as http:
        whole = (await http.post("/v1/completions", json=body)).json()
        best = (await http.post("/v1/completions", json=body | {"n": 1, "best_of": WIDTH})).json()
        streamed_text = (await http.post("/v1/completions", json=body | {"stream": True})).text
        refused = await http.post("/v1/completions", json=body | {"temperature": 0.7})
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [choice["octavo_beam"]["score"] for choice in whole["choices"]] == pytest.approx(
        [e.score for e in ends], rel=1e-3
    )
    assert [choice["text"] for choice in best["choices"]] == texts[:1]
    ends_told = [
        json.loads(line[6:])["choices"][0] for line in streamed_text.split("\n\n") if '"finish_reason":"' in line
    ]
    assert {item["index"]: item["octavo_beam"]["score"] for item in ends_told} == pytest.approx(
        dict(enumerate(choice["octavo_beam"]["score"] for choice in whole["choices"])), rel=1e-3
    )
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"
    after = (await cluster.settle()).counters
    assert after["beam_forks"] > before["beam_forks"] and after["protocol_errors"] == before["protocol_errors"] == 0


async def test_a_stop_string_cuts_the_finished_text(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        # without a cache both compute the prompt in one piece: a search turns on the last bit of near ties
        options = {"max_tokens": 24, "ignore_eos": True, "beam_width": 3, "cache": {"off": True}}
        whole = await client.chat("Say a few words.", **options)
        word = whole.choices[0].text[4:7]
        cut = await client.chat("Say a few words.", stop=word, **options)
        with pytest.raises(InvalidRequest, match="top_p"):
            await client.chat("Hi", top_p=0.5, **options)
    first = cut.choices[0]
    assert first.text == whole.choices[0].text.split(word)[0] and first.finish_reason == "stop"
    assert first.score == pytest.approx(whole.choices[0].score, rel=1e-3)
    assert cut.usage.completion_tokens < whole.usage.completion_tokens


async def test_a_cancel_in_the_middle_beside_others(cluster: Cluster) -> None:
    """Two searches and ordinary requests share the worker's steps; a search that is cancelled gives all its blocks back."""
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        cancelled = stub.Generate(search(900))
        started = await cancelled.read()
        others = [asyncio.create_task(read(stub.Generate(search(20)))) for _ in range(2)]
        ordinary = pb.GenerateRequest(text="Once upon a time", options=pb.Options(max_tokens=20, ignore_eos=True))
        others.append(asyncio.create_task(read(stub.Generate(ordinary))))
        answers = await asyncio.gather(*others)
        answer = await stub.Cancel(pb.CancelRequest(request_id=started.started.request_id))
    assert answer.found and answer.outcome == "cancelled" and answer.blocks_freed > 0
    assert answers[0].ids == answers[1].ids and len(answers[2].ids[0]) == 20
    assert (await cluster.settle()).blocks_leaked == 0


async def test_a_diagnosis_counts_its_steps_as_decode(cluster: Cluster) -> None:
    began_ns = time.time_ns()
    async with AsyncClient(cluster.grpc_address) as client:
        await client.generate(PROMPT, max_tokens=24, ignore_eos=True, beam_width=WIDTH)
    async with asyncio.timeout(20):
        while not (facts := facts_of(read_spans(cluster.run_dir), began_ns)).requests or not facts.itl_ms:
            await asyncio.sleep(0.1)  # until worker and gateway have written their spans
    assert facts.requests == 1 and facts.itl_ms[0] > 0
    # what is left of the relay is the scheduler's own, as of any other request
    assert facts.parts_ms["relay"] < facts.itl_ms[0] and sum(facts.parts_ms.values()) < 23 * facts.itl_ms[0]
