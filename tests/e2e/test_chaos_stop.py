"""Processes that are told to stop, or stand still, under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster import SOURCES, Answer, Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FLOAT32 = {"engine.dtype": "float32", "engine.kv_dtype": "float32", "engine.threads": 1}


def generate(i: int, max_tokens: int = 40, length: int = 30) -> pb.GenerateRequest:
    ids = [1000 + (i * 7919 + k * 41) % 40000 for k in range(length)]
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.0, seed=i),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True),
    )


async def follow(call: object, answer: Answer) -> Answer:
    async for response in call:  # type: ignore[attr-defined]
        answer.take(response)
    return answer


async def all_began(answers: list[Answer]) -> None:
    async with asyncio.timeout(60):
        while any(len(answer.ids.get(0, [])) < 3 for answer in answers):
            await asyncio.sleep(0.02)


async def ended(cluster: Cluster, name: str, within_s: float) -> int:
    """The exit code of a process that was told to stop."""
    async with asyncio.timeout(within_s):
        while (code := cluster.processes[name].poll()) is None:
            await asyncio.sleep(0.05)
    return code


async def test_a_worker_told_to_stop_finishes_its_streams_first(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=2, settings={**FLOAT32, "deployment.drain_timeout_s": 60.0})
    await cluster.up()
    requests = [generate(i) for i in range(8)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        wanted = [await read(stub.Generate(request)) for request in requests]
        answers = [Answer() for _ in requests]
        streams = [
            asyncio.create_task(follow(stub.Generate(request), answer))
            for request, answer in zip(requests, answers, strict=True)
        ]
        await all_began(answers)
        victim, running = await cluster.busiest()
        assert running
        cluster.processes[victim].send_signal(signal.SIGTERM)
        late = await asyncio.gather(*(read(stub.Generate(generate(20 + i, 4))) for i in range(4)))
        await asyncio.gather(*streams)
        assert await ended(cluster, victim, 20) == 0
    for got, want in zip(answers, wanted, strict=True):
        assert (got.ids, got.terminals, got.finished.timings.attempts) == (want.ids, 1, 1)
    assert [answer.finished.timings.attempts for answer in late] == [1] * 4
    status = await cluster.settle()
    assert {worker.worker_id for worker in status.workers} == {"gpuworker0", "gpuworker1"} - {victim}
    assert (status.counters["workers_drained"], status.counters["worker_losses"]) == (1, 0)


async def test_a_worker_without_the_time_is_cut_off_and_its_streams_move(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=2, settings={**FLOAT32, "deployment.drain_timeout_s": 0.5})
    await cluster.up()
    requests = [generate(i, 200) for i in range(6)]  # more than a fast machine decodes in the half second it is given
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        answers = [Answer() for _ in requests]
        streams = [
            asyncio.create_task(follow(stub.Generate(request), answer))
            for request, answer in zip(requests, answers, strict=True)
        ]
        await all_began(answers)
        victim, running = await cluster.busiest()
        assert running
        cluster.processes[victim].send_signal(signal.SIGTERM)
        assert await ended(cluster, victim, 15) == 0
        await asyncio.gather(*streams)
        again = await asyncio.gather(*(read(stub.Generate(request)) for request in requests))
    assert [answer.terminals for answer in answers] == [1] * 6
    assert [answer.ids for answer in answers] == [answer.ids for answer in again]
    assert max(answer.finished.timings.attempts for answer in answers) == 2
    await cluster.settle()


async def drain(cluster: Cluster, worker: str, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, what it printed as JSON, and the error."""
    address = f"127.0.0.1:{cluster.ports['scheduler']}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "octavo_cli", "drain", worker, "--scheduler", address, "--json", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCES},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, json.loads(out or b"{}"), err.decode()


async def test_one_worker_leaves_in_time_and_the_other_at_its_deadline(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=3, settings={**FLOAT32, "deployment.drain_timeout_s": 60.0})
    await cluster.up()
    requests = [generate(i, 120) for i in range(9)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        answers = [Answer() for _ in requests]
        streams = [
            asyncio.create_task(follow(stub.Generate(request), answer))
            for request, answer in zip(requests, answers, strict=True)
        ]
        await all_began(answers)
        cut, running = await cluster.busiest()
        assert running
        code, said, _err = await drain(cluster, cut, "--deadline-s", "0")
        assert (code, said["state"], said["worker"]) == (0, "drained", cut) and said["handed_over"] >= 1, said
        patient, running = await cluster.busiest()
        assert running and patient != cut
        code, said, _err = await drain(cluster, patient, "--deadline-s", "55")
        assert (code, said["state"], said["handed_over"]) == (0, "drained", 0) and said["finished"] >= 1, said
        for name in (cut, patient):
            async with asyncio.timeout(20):
                while cluster.processes[name].poll() is None:
                    await asyncio.sleep(0.05)
            assert cluster.processes[name].returncode == 0 and "left in order" in cluster.log_text(name)
        await asyncio.gather(*streams)
        (last,) = {worker.worker_id for worker in (await cluster.status()).workers}
        code, _said, err = await drain(cluster, last)
        assert code == 2 and "last worker" in err
        again = await asyncio.gather(*(read(stub.Generate(request)) for request in requests))
    assert [answer.terminals for answer in answers] == [1] * 9
    assert [answer.ids for answer in answers] == [answer.ids for answer in again]
    status = await cluster.settle()
    assert (status.counters["workers_drained"], status.counters["worker_losses"]) == (2, 0)
    assert status.counters["protocol_errors"] == 0


async def test_the_rest_stops_under_load_with_exit_code_0(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={**FLOAT32, "deployment.drain_timeout_s": 20.0})
    await cluster.up()
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        answers = [Answer() for _ in range(4)]
        streams = [
            asyncio.create_task(follow(stub.Generate(generate(i, 60)), answer)) for i, answer in enumerate(answers)
        ]
        await all_began(answers)
        for name in ("kvstore", "scheduler", "gpuworker0", "gateway"):
            cluster.processes[name].send_signal(signal.SIGTERM)
        await asyncio.gather(*streams)
        assert {name: await ended(cluster, name, 30) for name in cluster.names()} == dict.fromkeys(cluster.names(), 0)
    assert [(answer.terminals, len(answer.ids[0])) for answer in answers] == [(1, 60)] * 4


async def test_processes_that_stand_still_cost_time_and_nothing_else(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={**FLOAT32, "engine.kv_num_blocks": 65, "engine.max_model_len": 900})
    await cluster.up()
    requests = [generate(i, 6, 640) for i in range(4)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        wanted = [await read(stub.Generate(request)) for request in requests]
        for request in requests:
            await read(stub.Generate(request))
        before = (await cluster.settle()).counters
        assert before["loaded_blocks"] > 0, "the requests must come from the kvstore"

        cluster.processes["kvstore"].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        for request, want in zip(requests, wanted, strict=True):
            assert (await read(stub.Generate(request))).ids == want.ids
        stopped_s = time.monotonic() - began
        counters = (await cluster.status()).counters
        cluster.processes["kvstore"].send_signal(signal.SIGCONT)
        assert counters["loads_started"] <= before["loads_started"] + 2, "a stuck store is not asked again and again"
        print(f"4 requests beside a stopped kvstore: {stopped_s:.1f} s")

        for name, pause_s in (("gateway", 2.0), ("gpuworker0", 2.0), ("scheduler", 7.0)):
            answer = Answer()
            stream = asyncio.create_task(follow(stub.Generate(generate(9, 60)), answer))
            await all_began([answer])
            cluster.processes[name].send_signal(signal.SIGSTOP)
            await asyncio.sleep(pause_s)
            cluster.processes[name].send_signal(signal.SIGCONT)
            await stream
            assert (answer.terminals, len(answer.ids[0])) == (1, 60), name
            if name == "scheduler":
                assert answer.finished.timings.attempts == 1, "its own standstill is not the worker's silence"
    await cluster.settle()
    assert (await cluster.status()).counters["worker_losses"] == 0
