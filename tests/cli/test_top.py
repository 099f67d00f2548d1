"""octavo top: what is drawn, and what its errors say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from octavo.errors import Unauthenticated
from octavo_cli.exits import NoCluster
from octavo_cli.live_feed import moment, moments
from octavo_cli.top_view import draw, progress, shrink
from rich.console import Console

COST = {"prefill_device_us": 1000, "decode_device_us": 2000, "recompute_device_us": 0, "kv_pool_byte_s": 5.0}


def request(name: str, phase: str, **given: Any) -> dict[str, Any]:
    plain = {
        "request_id": name, "tenant": "default", "phase": phase, "prompt_tokens": 20, "output_tokens": 0,
        "max_tokens": 80, "choices": 1, "computed_tokens": 0, "age_us": 1500.0, "cost": COST, "blocks": 3,
        "workers": ["w0"], "outcome": "", "reason": "",
    }  # fmt: skip
    return plain | given


def a_moment(**given: Any) -> dict[str, Any]:
    percentiles = {"p50": 12.0, "p95": 1500.0, "p99": None, "n": 4}
    plain: dict[str, Any] = {
        "model": "smollm2", "ready": True, "why_not_ready": "", "sees_all": True, "tenant": "default",
        "running_count": 1, "waiting_count": 1, "waiting_prompt_tokens": 20,
        "latency": {"ttft_ms": percentiles, "itl_ms": percentiles},
        "goodput": [{"class": "chat", "met": 3, "missed": 1, "per_s": 0.05}],
        "running": [request("r1", "decode", output_tokens=40, computed_tokens=60)],
        "waiting": [request("r2", "waiting")],
        "recent": [request("r0", "ended", outcome="cancelled", reason="client_cancel")],
        "workers": [{
            "worker_id": "w0", "block_map": "0" * 50 + "1" * 25 + "2" * 25, "blocks_total": 100, "blocks_free": 75,
            "blocks_cached": 25, "running": 1, "max_seqs": 32, "step_us": 21000.0,
        }],
        "stores": [{"store_id": "host0", "tiers": [{
            "name": "dram", "capacity_bytes": 2**20, "used_bytes": 2**19, "keys": 9, "hits": 4, "misses": 5,
        }]}],
        "ledger": [{"technique": "prefix_cache", "entries": 2, "saved_ms": 10.0, "cost_ms": 0.5, "held_ms": 0.5},
                   {"technique": "offload", "entries": 0, "saved_ms": 0.0, "cost_ms": 0.0, "held_ms": 0.0}],
    }  # fmt: skip
    return plain | given


def drawn(content: dict[str, Any], width: int = 160) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(draw(content, console.width))
    return captured.get()


def test_a_frame_holds_every_figure() -> None:
    text = drawn(a_moment())
    for word in ("smollm2  ready", "running 1", "waiting 1 (20 prompt tokens)", "TTFT p50 12.0 ms", "p95 1.50 s", "p99 -",
                 "chat: met 3, missed 1", "25/100 blocks", "25 cached", "host0 dram", "0.5/1 MB", "20+40/80", "client_cancel",
                 "ledger, net: prefix cache +9.0 ms"):  # fmt: skip
        assert word in text, word
    assert "offload" not in text


@pytest.mark.parametrize("width", [80, 100, 130])
def test_no_figure_is_cut_on_a_narrower_terminal(width: int) -> None:
    name = "4732cf996fb042a6a535cab8acc932b1"
    worker = {**a_moment()["workers"][0], "worker_id": "gpuworker-0", "blocks_total": 1455, "blocks_free": 11}
    running = [request(name, "prefill", age_us=9_500_000.0, prompt_tokens=512, max_tokens=128, computed_tokens=512)]
    text = drawn(a_moment(workers=[worker], running=running), width)
    for word in ("gpuworker-0", "1444/1455 blocks", "25 cached", "1/32 running, step 21.0 ms", "hits 4, misses 5",
                 "512+0/128", "9.50 s", "3.0 ms", "prefill"):  # fmt: skip
        assert word in text, word
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    pools, requests = text.split("request   ")
    assert "…" not in pools and requests.count("…") == (width < 130)  # of all names, the long id alone
    assert name[:19] in requests and ("client_cancel" in requests) is (width >= 130)


def test_a_tenants_frame_has_no_pools() -> None:
    text = drawn(a_moment(sees_all=False, tenant="acme", workers=[], stores=[], ledger=[]))
    assert "tenant acme" in text and "blocks" not in text.split("request")[0] and "ledger" not in text


def test_a_cell_that_is_not_ready_says_why() -> None:
    assert "not ready: no worker is ready" in drawn(a_moment(ready=False, why_not_ready="no worker is ready"))


def test_bars_show_how_far_a_request_is() -> None:
    assert progress(request("r", "decode", output_tokens=40)).plain.count("█") == 10  # 40 of 100 positions of 24 cells
    half = progress(request("r", "prefill", computed_tokens=10)).plain
    assert half.count("▒") == 2 and "█" not in half


def test_maps_shrink_to_the_most_frequent_state() -> None:
    assert shrink("0001" + "2222", 2) == [0, 2]
    assert shrink("012", 64) == [0, 1, 2]


class Scripted(BaseHTTPRequestHandler):
    """Answers as a gateway would."""

    def do_GET(self) -> None:
        if self.path.startswith("/html"):
            self._send(404, b"<html>")
        elif self.path.startswith("/other"):
            self._send(200, {"page": b"<html>", "json": b'{"status": "ok"}', "list": b"[1]"}[self.path.split("/")[2]])
        elif self.headers.get("authorization") != "Bearer right":
            self._send(401, json.dumps({"error": {"message": "an API key is needed"}}).encode())
        elif self.path == "/live":
            self._send(200, json.dumps({"model": "m"}).encode())
        else:
            self._send(200, b'data: {"model": "a"}\n\ndata: {"model": "b"}\n\nevent: bye\ndata: {}\n\n')

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["page", "json", "list"])
def test_a_server_that_answers_something_else_is_told_to_be_no_gateway(served: str, kind: str) -> None:
    with pytest.raises(NoCluster, match="answers, but not as an Octavo gateway; give its HTTP address with --url"):
        moment(f"{served}/other/{kind}", "right")


def test_moments_are_read_until_the_gateway_says_goodbye(served: str) -> None:
    assert moment(served, "right") == {"model": "m"}
    assert [item["model"] for item in moments(served, "right")] == ["a", "b"]


def test_errors_name_the_fix(served: str) -> None:
    with pytest.raises(Unauthenticated, match="an API key is needed"):
        moment(served)
    with pytest.raises(NoCluster, match="no Octavo gateway; give its HTTP address with --url"):
        moment(served + "/html")
    with pytest.raises(NoCluster, match="octavo status"):
        moment("http://127.0.0.1:1")
    with pytest.raises(NoCluster, match="octavo status"):
        list(moments("nonsense"))


def test_without_a_cluster_the_exit_code_is_4(octavo: Any) -> None:
    done = octavo("top", "--json")
    assert done.returncode == 4 and "octavo up" in done.stderr
