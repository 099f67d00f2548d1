"""Binding and draining."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavo.errors import OctavoError
from octavo.rpc.testing import running_host
from octavo_gateway.http.server import bind, start_http

BODY = {"prompt": "Once", "stream": True}


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x", "127.0.0.1:99999", "203.0.113.1:80", ":"])
def test_an_address_that_cannot_be_bound_is_named(address: str) -> None:
    with pytest.raises(OctavoError, match=r"gateway\.http_listen"):
        bind(address)


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OctavoError, match="choose a free address"):
            bind(f"127.0.0.1:{taken.getsockname()[1]}")


def settings(drain_timeout_s: float) -> dict[str, Any]:
    return {
        "gateway.http_listen": "127.0.0.1:0",
        "observability.trace_files": False,
        "deployment.drain_timeout_s": drain_timeout_s,
    }


async def started(lines: Any) -> None:
    """Reads to the first event, so that the request is known to run."""
    async with asyncio.timeout(5):
        assert (await anext(lines)).startswith("data: ")


async def test_a_drain_lets_running_requests_end_and_refuses_new_ones(
    new_gateway: Any, make_feed: Any, make: Any, tmp_path: Path
) -> None:
    go_on = asyncio.Event()
    gateway = new_gateway()
    gateway.script = lambda params: [*make.deltas(["a"], finish=None), go_on, *make.deltas(["b"]), make.finished()]
    async with httpx.AsyncClient(timeout=10) as http, running_host("gateway", tmp_path, settings(20.0)) as host:
        url = f"http://{await start_http(gateway, make_feed()[1], host)}"
        async with http.stream("POST", url + "/v1/completions", json=BODY) as response:
            lines = response.aiter_lines()
            await started(lines)
            draining = asyncio.ensure_future(host.drain())
            while (await http.get(url + "/ready")).status_code == 200:
                await asyncio.sleep(0)
            refused = await http.post(url + "/v1/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "rejected-draining")
            go_on.set()
            rest = [line async for line in lines if line]
        await draining
        with pytest.raises(httpx.ConnectError):
            await http.get(url + "/health")
    assert rest[-1] == "data: [DONE]"
    assert gateway.generations[0].closed == []


async def test_what_outlives_the_drain_ends_with_an_error_event(
    new_gateway: Any, make_feed: Any, make: Any, tmp_path: Path
) -> None:
    gateway = new_gateway()
    gateway.script = lambda params: [*make.deltas(["a"], finish=None), asyncio.Event()]
    async with httpx.AsyncClient(timeout=10) as http, running_host("gateway", tmp_path, settings(2.2)) as host:
        url = f"http://{await start_http(gateway, make_feed()[1], host)}"
        async with http.stream("POST", url + "/v1/completions", json=BODY) as response:
            lines = response.aiter_lines()
            await started(lines)
            draining = asyncio.ensure_future(host.drain())
            rest = [line async for line in lines if line]
        await draining
    assert len(rest) == 1
    assert json.loads(rest[0].removeprefix("data: "))["error"]["code"] == "evicted-draining"
    assert gateway.generations[0].closed == ["failed"]


async def test_a_stuck_client_does_not_hold_up_the_drain(
    new_gateway: Any, make_feed: Any, make: Any, tmp_path: Path
) -> None:
    gateway = new_gateway()
    gateway.slow_client_timeout_s = 60.0
    gateway.script = lambda params: [*make.deltas(["x" * 4096] * 3000), make.finished()]
    async with running_host("gateway", tmp_path, settings(2.2)) as host:
        address = await start_http(gateway, make_feed()[1], host)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            body = json.dumps(BODY).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            async with asyncio.timeout(5):
                while not (gateway.generations and gateway.generations[0].pulled > 10):
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(10):
                await host.drain()
    assert gateway.generations[0].closed == ["failed"]


async def test_the_loop_is_the_one_that_was_asked_for(event_loop_policy: asyncio.AbstractEventLoopPolicy) -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith(type(event_loop_policy).__module__.split(".")[0])
