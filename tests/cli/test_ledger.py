"""octavo ledger: what it asks, its sums, its tables, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from octavo.errors import InvalidRequest, Unavailable
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import scheduler_pb2_grpc
from octavo_cli.ledger_link import ask_ledger, summed
from octavo_cli.ledger_view import draw_ledger
from rich.console import Console


class Books(scheduler_pb2_grpc.SchedulerServiceServicer):
    """A scheduler that only keeps books."""

    def GetLedger(self, request: pb.GetLedgerRequest, context: grpc.ServicerContext) -> pb.GetLedgerResponse:
        if request.technique == "magic":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "technique: 'magic' is none of prefix_cache, tier_load")
        if request.tenant == "nobody":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "tenant: 'nobody' is unknown here; known: acme, globex")
        rows = [
            pb.LedgerRow(
                technique="prefix_cache", entries=4, saved_ms=10, cost_ms=1, held_ms=3, hits=2, hit_tokens=64,
                asked_tokens=256, tenant=tenant, prompt=prompt,
            )
            for tenant in ("acme", "globex") for prompt in ("32-127", "128-511")
        ]  # fmt: skip
        rows.append(
            pb.LedgerRow(technique="tier_load", entries=1, saved_ms=5, cost_ms=9, cost_bytes=2_000_000, tenant="acme")
        )
        rows.append(pb.LedgerRow(technique="join", tenant="acme"))
        trials = [
            pb.LedgerTrial(
                technique="tier_load",
                prompt="128-511",
                with_it=40,
                without=3,
                calibration=0.5,
                off=True,
                turns=1,
                why="loses",
            ),
            pb.LedgerTrial(technique="join", prompt="128-511", with_it=4),
        ]
        tiers = [pb.TierRate(worker_id="w0", tier="dram", bytes_per_us=12_500, fixed_us=300, loads=7)]
        return pb.GetLedgerResponse(
            rows=[row for row in rows if request.tenant in ("", row.tenant)], trials=trials, tiers=tiers
        )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(Books(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def drawn(content: dict[str, Any]) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        console.print(draw_ledger(content))
    return captured.get()


def test_sums_are_per_technique_and_per_tenant(address: str) -> None:
    content = ask_ledger(address, "", "")
    by_name = {row["technique"]: row for row in content["techniques"]}
    assert by_name["prefix_cache"]["net_ms"] == 24 and by_name["prefix_cache"]["hit_tokens"] == 256
    assert by_name["tier_load"]["net_ms"] == -4
    tenants = {(row["technique"], row["tenant"]): row["net_ms"] for row in content["tenants"]}
    assert tenants["prefix_cache", "acme"] == tenants["prefix_cache", "globex"] == 12
    assert {row["tenant"] for row in ask_ledger(address, "", "acme")["rows"]} == {"acme"}
    assert content["trials"][0]["calibration"] == 0.5 and content["trials"][1]["calibration"] is None
    assert summed([], ("technique",)) == []


def test_the_tables_hold_every_figure_and_nothing_unused(address: str) -> None:
    text = drawn(ask_ledger(address, "", ""))
    for word in ("prefix_cache", "+24.0", "25%", "globex", "tier_load", "-4.0", "2.0", "0.50", "off", "loses",
                 "w0 loads from dram: 12.50 GB/s, lookup 0.30 ms, 7 seen"):  # fmt: skip
        assert word in text, word
    assert "join" not in text
    assert drawn({"techniques": [], "tenants": [], "trials": [], "tiers": []}) == "nothing booked yet\n"


def test_errors_name_the_option(address: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--technique: 'magic' is none of"):
        ask_ledger(address, "magic", "")
    with pytest.raises(InvalidRequest, match=r"--tenant: 'nobody' is unknown here; known: acme") as raised:
        ask_ledger(address, "", "nobody")
    assert raised.value.field == "tenant"
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 does not answer"):
        ask_ledger("127.0.0.1:1", "", "")


def test_the_command(octavo: Any, address: str) -> None:
    assert octavo("ledger").returncode == 4, "no cluster"
    bad = octavo("ledger", "--technique", "magic", "--scheduler", address)
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "--technique" in bad.stderr
    told = octavo("ledger", "--scheduler", address, "--json")
    assert told.returncode == 0 and len(json.loads(told.stdout)["rows"]) == 6
