"""Asks a scheduler for its ledger: plain values, and their sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from octavo.errors import InvalidRequest, Unavailable
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc

ASK_TIMEOUT_S = 10.0
SUMS = ("entries", "saved_ms", "cost_ms", "held_ms", "saved_bytes", "cost_bytes", "hits", "hit_tokens", "asked_tokens")


def ask_ledger(address: str, technique: str, tenant: str) -> dict[str, Any]:
    """`techniques`, `tenants`, `rows`, `trials` and `tiers` as plain values.

    Raises InvalidRequest for an unknown technique or tenant, Unavailable when the scheduler does not answer.
    """
    request = scheduler_pb2.GetLedgerRequest(technique=technique, tenant=tenant)
    try:
        with grpc.insecure_channel(address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            answer: scheduler_pb2.GetLedgerResponse = stub.GetLedger(request, timeout=ASK_TIMEOUT_S)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            said = error.details() or ""
            raise InvalidRequest(f"--{said}", field=said.partition(":")[0]) from error
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
