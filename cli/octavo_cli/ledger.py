"""Asks a scheduler for its ledger, and lays it out for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from octavo.errors import InvalidRequest, Unavailable
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

ASK_TIMEOUT_S = 10.0
SUMS = ("entries", "saved_ms", "cost_ms", "held_ms", "saved_bytes", "cost_bytes", "hits", "hit_tokens", "asked_tokens")


def ask_ledger(address: str, technique: str, tenant: str) -> dict[str, Any]:
    """`techniques`, `tenants`, `rows`, `trials` and `tiers` as plain values.

    Raises InvalidRequest for an unknown technique, Unavailable when the scheduler does not answer.
    """
    request = scheduler_pb2.GetLedgerRequest(technique=technique, tenant=tenant)
    try:
        with grpc.insecure_channel(address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            answer: scheduler_pb2.GetLedgerResponse = stub.GetLedger(request, timeout=ASK_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            raise InvalidRequest(f"--{error.details()}", field="technique") from error
        raise Unavailable(f"the scheduler at {address} does not answer: {error.details()}") from error
    rows = [
        {"technique": item.technique, "tenant": item.tenant, "prompt": item.prompt}
        | {name: getattr(item, name) for name in SUMS}
        | {"net_ms": item.saved_ms - item.cost_ms - item.held_ms}
        for item in answer.rows
    ]
    return {
        "techniques": summed(rows, ("technique",)),
        "tenants": summed(rows, ("technique", "tenant")),
        "rows": rows,
        "trials": [_plain(item) for item in answer.trials],
        "tiers": [_plain(item) for item in answer.tiers],
    }


def _plain(message: Any) -> dict[str, Any]:
    """Every field of a flat message; an absent one is None."""
    fields = message.DESCRIPTOR.fields
    return {
        item.name: getattr(message, item.name) if not item.has_presence or message.HasField(item.name) else None
        for item in fields
    }


def summed(rows: Iterable[dict[str, Any]], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows added up over everything but the fields of `by`."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        total = sums.setdefault(key, dict(zip(by, key, strict=True)) | dict.fromkeys((*SUMS, "net_ms"), 0))
        for name in (*SUMS, "net_ms"):
            total[name] += row[name]
    return list(sums.values())


def draw_ledger(content: dict[str, Any]) -> RenderableType:
    """Per technique, per tenant where there are several, what trials say, how fast the tiers are."""
    used = [row for row in content["techniques"] if row["entries"] or row["held_ms"]]
    if not used:
        return Text("nothing booked yet")
    parts: list[RenderableType] = [_table(used, ("technique",))]
    tenants = [row for row in content["tenants"] if row["tenant"] and (row["entries"] or row["held_ms"])]
    if len({row["tenant"] for row in tenants}) > 1:
        parts += [Text(""), _table(tenants, ("tenant", "technique"))]
    trials = [row for row in content["trials"] if row["without"] or row["turns"]]
    if trials:
        parts += [Text(""), _trials(trials)]
    for row in content["tiers"]:
        rate = f"{row['bytes_per_us'] / 1000:.2f} GB/s, lookup {row['fixed_us'] / 1000:.2f} ms"
        parts.append(Text(f"{row['worker_id']} loads from {row['tier']}: {rate}, {row['loads']} seen", style="dim"))
    return Group(*parts)


def _table(rows: list[dict[str, Any]], names: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in ("entries", "saved ms", "spent ms", "held ms", "net ms", "moved MB", "hits", "hit tokens", "of asked"):
        table.add_column(name, no_wrap=True, justify="right")
    for row in rows:
        asked = f"{row['hit_tokens'] / row['asked_tokens']:.0%}" if row["asked_tokens"] else "-"
        table.add_row(
            *(row[name] for name in names), str(row["entries"]), f"{row['saved_ms']:.1f}", f"{row['cost_ms']:.1f}",
            f"{row['held_ms']:.1f}", f"{row['net_ms']:+.1f}", f"{row['cost_bytes'] / 1e6:.1f}", str(row["hits"]),
            str(row["hit_tokens"]), asked,
        )  # fmt: skip
    return table


def _trials(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("trial of", "prompt", "with", "without", "measured / estimated", "switch", "why"):
        table.add_column(name)
    for row in rows:
        ratio = "-" if row["calibration"] is None else f"{row['calibration']:.2f}"
        switch = "off" if row["off"] else "on"
        table.add_row(
            row["technique"], row["prompt"], str(row["with_it"]), str(row["without"]), ratio, switch, row["why"]
        )
    return table
