"""Standing orders: a slow scheduler-worker link never starves the worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from cluster import Cluster, free_port, read
from octavo.v1 import inference_pb2 as pb

pytestmark = pytest.mark.e2e


class DelayProxy:
    """A TCP proxy that holds every byte back for `delay_s`, in both directions, in order."""

    def __init__(self, port: int, target_port: int, delay_s: float) -> None:
        self._port, self._target_port, self._delay_s = port, target_port, delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                loop.call_later(self._delay_s, sink.write, data)
        loop.call_later(self._delay_s, sink.close)


async def test_30_ms_on_the_link_starves_nobody(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(kvstore=False)
    cluster.ports["scheduler_via"] = free_port()
    server = await DelayProxy(cluster.ports["scheduler_via"], cluster.ports["scheduler"], 0.030).start()
    await cluster.up()
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)

        def request(i: int) -> pb.GenerateRequest:
            return pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=[1000 + (i * 97 + k) % 40000 for k in range(20)]),
                sampling=pb.Sampling(temperature=0.0),
                options=pb.Options(max_tokens=100, ignore_eos=True),
            )

        answers = await asyncio.gather(*(read(stub.Generate(request(i))) for i in range(4)))
    assert all(len(answer.ids[0]) == 100 for answer in answers)
    status = await cluster.settle()
    assert status.counters["starved_steps"] == 0
    server.close()
