"""A client that leaves or stops reading, at every phase, over raw sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAIN = "/v1/completions"


def body(**fields: Any) -> bytes:
    return json.dumps({"prompt": "Once", **fields}).encode()


@asynccontextmanager
async def connected(edge: Any, receive_buffer: int = 0) -> AsyncIterator[socket.socket]:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", edge.port))
        yield client


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def receive(client: socket.socket, size: int = 65536) -> bytes:
    return await asyncio.get_running_loop().sock_recv(client, size)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def leave_politely(client: socket.socket) -> None:
    client.close()


def leave_with_reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def leave_half(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


LEAVINGS = [leave_politely, leave_with_reset, leave_half]


@pytest.mark.parametrize("leave", LEAVINGS, ids=lambda item: item.__name__)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["before the first token", "decode"])
async def test_leaving_closes_the_generation(
    edge: Any, make: Any, leave: Callable[[socket.socket], None], stream: bool, phase: str
) -> None:
    first = make.deltas(["a", "b"], finish=None) if phase == "decode" else []
    edge.gateway.script = lambda params: [*first, asyncio.Event()]
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body(stream=stream)))
        await until(lambda: edge.gateway.generations and edge.gateway.generations[0].pulled == len(first))
        if stream and first:
            assert b"data: " in await receive(client)
        leave(client)
        async with asyncio.timeout(2):
            await edge.gateway.generations[0].was_closed.wait()
    assert edge.gateway.generations[0].closed == ["client_disconnect"]


@pytest.mark.parametrize("leave", LEAVINGS, ids=lambda item: item.__name__)
@pytest.mark.parametrize("stubborn", [False, True])
async def test_leaving_during_submission_cancels_it_or_closes_what_came_of_it(
    edge: Any, leave: Callable[[socket.socket], None], stubborn: bool
) -> None:
    edge.gateway.gate = asyncio.Event()
    edge.gateway.stubborn = stubborn
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body()))
        await edge.gateway.entered.wait()
        leave(client)
        await until(lambda: edge.gateway.cancelled_starts == 1)
        if stubborn:
            await until(lambda: [item.closed for item in edge.gateway.generations] == [["client_disconnect"]])
    assert sum(item.pulled for item in edge.gateway.generations) == 0


async def test_leaving_right_after_send_leaves_nothing_open(edge: Any) -> None:
    edge.gateway.script = lambda params: [asyncio.Event()]
    for _ in range(50):
        async with connected(edge) as client:
            await send(client, edge.request_bytes(PLAIN, body(stream=True)))
    assert (await edge.http.get("/health")).status_code == 200
    await until(lambda: all(item.closed == ["client_disconnect"] for item in edge.gateway.generations))


async def test_200_clients_leave_in_one_tick(edge: Any, make: Any) -> None:
    edge.gateway.script = lambda params: [*make.deltas(["a"], finish=None), asyncio.Event()]
    clients = []
    for _ in range(200):
        client = socket.create_connection(("127.0.0.1", edge.port))
        client.sendall(edge.request_bytes(PLAIN, body(stream=True)))
        clients.append(client)
    await until(lambda: sum(item.pulled for item in edge.gateway.generations) == 200)
    for client in clients:
        leave_with_reset(client)
    await until(lambda: all(item.closed == ["client_disconnect"] for item in edge.gateway.generations))


async def test_leaving_closes_every_prompt_of_the_request(edge: Any, make: Any) -> None:
    edge.gateway.script = lambda params: [*make.deltas(["a"], finish=None), asyncio.Event()]
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body(prompt=["a", "b", "c"], n=2)))
        await until(lambda: sum(item.pulled for item in edge.gateway.generations) == 3)
    await until(lambda: [item.closed for item in edge.gateway.generations] == [["client_disconnect"]] * 3)


async def test_leaving_with_a_pipelined_request_behind_is_noticed(edge: Any) -> None:
    edge.gateway.script = lambda params: [asyncio.Event()]
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body()) * 2)
        await until(lambda: bool(edge.gateway.generations))
    await until(lambda: edge.gateway.generations[0].closed == ["client_disconnect"])
    assert len(edge.gateway.generations) == 1


async def test_leaving_after_the_end_closes_nothing(edge: Any) -> None:
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body(stream=True)))
        got = b""
        while b"[DONE]" not in got:
            got += await receive(client)
    assert (await edge.http.get("/health")).status_code == 200
    assert edge.gateway.generations[0].closed == []


async def test_leaving_in_the_middle_of_a_body_starts_nothing(edge: Any) -> None:
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body())[:-3])
    assert (await edge.http.post(PLAIN, json={"prompt": "x"})).status_code == 200
    assert len(edge.gateway.requests) == 1


async def test_a_body_that_stalls_is_a_408(edge: Any) -> None:
    edge.gateway.slow_client_timeout_s = 0.1
    async with connected(edge) as client:
        await send(client, edge.request_bytes(PLAIN, body())[:-3])
        async with asyncio.timeout(5):
            assert (await receive(client)).startswith(b"HTTP/1.1 408 ")


def flood(make: Any, pieces: int) -> list[Any]:
    return [*make.deltas(["x" * 4096] * pieces), make.finished()]


async def test_a_client_that_stops_reading_loses_its_request_alone(edge: Any, make: Any) -> None:
    edge.gateway.slow_client_timeout_s = 0.3
    edge.gateway.script = lambda params: flood(make, 5000 if params.seed == 1 else 3)
    async with connected(edge, receive_buffer=4096) as client:
        await send(client, edge.request_bytes(PLAIN, body(stream=True, seed=1)))
        await receive(client, 200)
        others = await asyncio.gather(*(edge.http.post(PLAIN, json={"prompt": "x", "stream": True}) for _ in range(16)))
        assert all("[DONE]" in other.text for other in others)
        async with asyncio.timeout(5):
            await edge.gateway.generations[0].was_closed.wait()
        slow = edge.gateway.generations[0]
        assert slow.closed == ["slow_client"]
        assert slow.pulled * 4096 < 2 * 2**20  # kernel buffers of both ends and ours; not the 20 MB of the script
        with pytest.raises(ConnectionResetError):
            while await receive(client):
                pass
    assert [item.closed for item in edge.gateway.generations[1:]] == [[]] * 16


async def test_a_client_that_reads_slowly_keeps_its_request(edge: Any, make: Any) -> None:
    edge.gateway.slow_client_timeout_s = 0.3
    edge.gateway.script = lambda params: flood(make, 200)
    got = b""
    async with connected(edge, receive_buffer=4096) as client, asyncio.timeout(30):
        await send(client, edge.request_bytes(PLAIN, body(stream=True)))
        for _ in range(12):  # 1.2 s of trickling: four timeouts long
            got += await receive(client, 16384)
            await asyncio.sleep(0.1)
        while b"[DONE]" not in got[-4096:]:
            got += await receive(client, 2**20)
    assert edge.gateway.generations[0].closed == []


async def test_a_whole_answer_that_nobody_takes_is_dropped(edge: Any, make: Any) -> None:
    edge.gateway.slow_client_timeout_s = 0.2
    edge.gateway.script = lambda params: flood(make, 1000)
    async with connected(edge, receive_buffer=4096) as client:
        await send(client, edge.request_bytes(PLAIN, body()))
        await receive(client, 200)
        async with asyncio.timeout(5):
            await edge.gateway.generations[0].was_closed.wait()
    assert edge.gateway.generations[0].closed == ["slow_client"]


async def test_half_close_of_a_stuck_client_frees_it_too(edge: Any, make: Any) -> None:
    edge.gateway.slow_client_timeout_s = 0.3
    edge.gateway.script = lambda params: flood(make, 5000)
    async with connected(edge, receive_buffer=4096) as client:
        await send(client, edge.request_bytes(PLAIN, body(stream=True)))
        await receive(client, 200)
        leave_half(client)
        async with asyncio.timeout(5):
            await edge.gateway.generations[0].was_closed.wait()


async def test_deltas_leave_as_they_come(edge: Any, make: Any) -> None:
    """Nothing waits for a timer or for a full buffer: each delta is readable before the next one exists."""
    steps = [asyncio.Event() for _ in range(3)]
    parts = make.deltas(["a", "b", "c"])
    edge.gateway.script = lambda params: [
        *(item for step, part in zip(steps, parts, strict=True) for item in (step, part)),
        make.finished(),
    ]
    async with connected(edge) as client, asyncio.timeout(5):
        await send(client, edge.request_bytes(PLAIN, body(stream=True)))
        for step, part in zip(steps, parts, strict=True):
            step.set()
            got = b""
            while f'"text":"{part.text}"'.encode() not in got:
                got += await receive(client)
