"""The page's files and the live feed over HTTP: what is served, to whom, how often, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavo.errors import Overloaded
from octavo.rpc.testing import running_host
from octavo_gateway.http.server import start_http
from octavo_gateway.page.assets import FOLDER, load_assets
from octavo_gateway.requests import Audience

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_page_and_everything_it_names_is_served_with_a_strict_policy(edge: Any) -> None:
    index = await edge.http.get("/")
    assert index.status_code == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
    named = set(re.findall(r'"(/page/[\w.]+)"', index.text))
    todo = set(named)
    while todo:
        text = (await edge.http.get(todo.pop())).text
        fresh = set(re.findall(r'"(/page/[\w.]+)"', text)) - named
        named, todo = named | fresh, todo | fresh
    assert {path.removeprefix("/page/") for path in named} == {path.name for path in FOLDER.iterdir()} - {"index.html"}
    for path in ["/", *named]:
        answer = await edge.http.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://", re.sub(r'"http://www\.w3\.org/\S*', "", index.text))


async def test_an_unchanged_file_is_not_sent_again_and_an_unknown_one_is_a_404(edge: Any) -> None:
    first = await edge.http.get("/page/main.js")
    again = await edge.http.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/page/nothing.js", "/page/..%2fassets.py", "/page/__init__.py"):
        answer = await edge.http.get(path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "unknown_url"


async def test_no_file_writes_markup_or_runs_text() -> None:
    for name, asset in load_assets().items():
        text = asset.content.decode()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            'style="',
        ):
            assert word not in text, f"{name}: {word}"


async def test_one_moment_as_json(edge: Any) -> None:
    answer = await edge.http.get("/live")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    moment = answer.json()
    assert moment["ready"] and moment["sees_all"] and moment["model"] == "smollm2"


async def read_events(lines: Any, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        async for line in lines:
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
            if len(found) == count:
                break
    return found


async def test_events_come_one_per_moment(edge: Any) -> None:
    async with edge.http.stream("GET", "/live/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = await read_events(response.aiter_lines(), 3)
    counts = [event["running_count"] for event in events]
    assert counts == sorted(set(counts))  # every moment is a new one


async def test_a_key_is_needed_when_there_are_keys(edge: Any) -> None:
    edge.gateway.api_key = "key-1"
    for path in ("/live", "/live/events", "/live/requests/known"):
        refused = await edge.http.get(path)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert (await edge.http.get("/")).status_code == 200  # the page itself asks for the key
    allowed = await edge.http.get("/live", headers={"authorization": "Bearer key-1"})
    assert allowed.status_code == 200


async def test_a_timeline_is_the_callers_own_unless_an_admin_asks(edge: Any) -> None:
    own = await edge.http.get("/live/requests/known")
    assert own.json()["request"]["tenant"] == "default"
    assert (await edge.http.get("/live/requests/gone")).status_code == 404
    assert (await edge.http.get("/live/requests/known?tenant=acme")).json()["request"]["tenant"] == "acme"
    edge.gateway.sees_all = False
    refused = await edge.http.get("/live/requests/known?tenant=acme")
    assert refused.status_code == 401 and refused.json()["error"]["param"] == "tenant"


SETTINGS = {"gateway.http_listen": "127.0.0.1:0", "observability.trace_files": False}


async def test_nobody_looks_and_nothing_is_asked(new_gateway: Any, make_feed: Any, tmp_path: Path) -> None:
    cell, feed = make_feed(interval_s=0.001)
    async with httpx.AsyncClient(timeout=10) as http, running_host("gateway", tmp_path, SETTINGS) as host:
        url = f"http://{await start_http(new_gateway(), feed, host)}"
        assert cell.asked == 0
        async with http.stream("GET", url + "/live/events") as response:
            await read_events(response.aiter_lines(), 2)
            assert feed.viewers == 1
        async with asyncio.timeout(5):
            while feed.viewers:
                await asyncio.sleep(0.001)
        asked = cell.asked
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert cell.asked == asked


async def test_too_many_viewers_are_told_so(new_gateway: Any, make_feed: Any, tmp_path: Path) -> None:
    _, feed = make_feed(max_viewers=1)
    async with httpx.AsyncClient(timeout=10) as http, running_host("gateway", tmp_path, SETTINGS) as host:
        url = f"http://{await start_http(new_gateway(), feed, host)}"
        async with http.stream("GET", url + "/live/events") as response:
            await read_events(response.aiter_lines(), 1)
            refused = await http.get(url + "/live/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too-many-viewers")
            assert refused.headers["retry-after"] == "5"


async def test_a_stalled_viewer_is_dropped(new_gateway: Any, make_feed: Any, tmp_path: Path) -> None:
    _, feed = make_feed(interval_s=0.0005)
    gateway = new_gateway()
    gateway.slow_client_timeout_s = 0.1
    async with running_host("gateway", tmp_path, SETTINGS) as host:
        address = await start_http(gateway, feed, host)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            client.sendall(b"GET /live/events HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(20):
                while not feed.viewers:
                    await asyncio.sleep(0.005)
                while feed.viewers:  # it never reads
                    await asyncio.sleep(0.005)


async def test_a_drain_ends_the_viewers_streams(new_gateway: Any, make_feed: Any, tmp_path: Path) -> None:
    _, feed = make_feed()
    async with httpx.AsyncClient(timeout=10) as http, running_host("gateway", tmp_path, SETTINGS) as host:
        url = f"http://{await start_http(new_gateway(), feed, host)}"
        async with http.stream("GET", url + "/live/events") as response:
            lines = response.aiter_lines()
            await read_events(lines, 1)
            draining = asyncio.ensure_future(host.drain())
            rest = [line async for line in lines if line]
            await draining
    assert rest[-2:] == ["event: bye", "data: {}"]


async def test_one_tenant_cannot_take_every_place(make_feed: Any) -> None:
    _, feed = make_feed(max_viewers=8)
    with contextlib.ExitStack() as looking:
        for _ in range(2):
            looking.enter_context(feed.viewer(Audience("acme", False)))
        with pytest.raises(Overloaded, match="2 viewers of tenant acme look already"):
            looking.enter_context(feed.viewer(Audience("acme", False)))
        looking.enter_context(feed.viewer(Audience("beta", False)))
        for _ in range(5):
            looking.enter_context(feed.viewer(Audience("ops", True)))
        with pytest.raises(Overloaded, match="8 viewers look already"):
            looking.enter_context(feed.viewer(Audience("ops", True)))
    assert feed.viewers == 0


async def test_many_who_ask_at_once_are_one_question_to_the_scheduler(make_feed: Any) -> None:
    cell, feed = make_feed()
    moments = await asyncio.gather(*(feed.once(Audience("acme", False)) for _ in range(1000)))
    assert cell.asked == 1 and len(moments) == 1000
    await feed.once(Audience("acme", False))
    assert cell.asked == 2  # a later one is a look of its own


async def test_a_closed_release_gate_is_told_though_the_cell_is_ready(make_feed: Any) -> None:
    said = ["release gate: stops: because"]
    cell, feed = make_feed(closed=lambda: said[0])
    moment = await feed.once(Audience("ops", True))
    assert (moment["ready"], moment["why_not_ready"]) == (False, "release gate: stops: because")
    assert moment["running_count"] == cell.asked  # the cell is shown all the same
    said[0] = ""
    assert (await feed.once(Audience("ops", True)))["ready"]
