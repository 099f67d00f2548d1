"""`octavo status`: is the cluster ready, where, who runs, and are all blocks accounted for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.v1 import admin_pb2, scheduler_pb2

from octavo_cli.probe import Probe
from octavo_cli.state import ClusterState, ServiceState, running_state


async def read_status(run_dir: Path, with_settings: bool = False) -> dict[str, Any]:
    """{ready, urls, services, blocks, requests, counters} of the cluster of a run folder; settings when asked for.

    Raises NoCluster when its supervisor does not run.
    """
    state = running_state(run_dir)
    answers = await asyncio.gather(*(_ask(item) for item in state.services))
    cell = next((status for _item, _info, status in answers if status is not None), None)
    services = [_service(item, info) for item, info, _status in answers]
    status: dict[str, Any] = {
        "ready": state.ready and all(item["state"] in ("serving", "drained") for item in services),
        "urls": state.urls,
        "services": services,
        "blocks": _blocks(cell),
        "requests": {"waiting": cell.requests_waiting, "running": cell.requests_running} if cell else {},
        "counters": dict(sorted(cell.counters.items())) if cell else {},
        "tenants": [_tenant(item) for item in cell.tenants] if cell else [],
        "predictions": _predictions(cell.counters) if cell else {},
        "run_dir": str(run_dir),
    }
    if with_settings:
        status["settings"] = {
            item.name: [
                {"key": setting.key, "value": json.loads(setting.value), "source": setting.source}
                for setting in info.settings
            ]
            for item, info, _status in answers
            if info is not None
        }
    return status


Answer = tuple[ServiceState, admin_pb2.GetInfoResponse | None, scheduler_pb2.GetStatusResponse | None]


async def _ask(service: ServiceState) -> Answer:
    async with Probe(service.address) as probe:
        info = await probe.info()
        status = await probe.status() if service.kind == "scheduler" and info is not None else None
    return service, info, status


def _service(service: ServiceState, info: admin_pb2.GetInfoResponse | None) -> dict[str, Any]:
    known = service.state if info is None else info.state
    state = "unreachable" if info is None and known == "serving" else known
    why = service.why if info is None else info.why
    return {
        "name": service.name,
        "pid": service.process.pid,
        "state": state,
        "address": service.address,
        "restarts": service.restarts,
        **({"why": why} if why and state != "serving" else {}),
    }


def _blocks(cell: scheduler_pb2.GetStatusResponse | None) -> dict[str, int | None]:
    if cell is None:
        return dict.fromkeys(("total", "free", "cached", "leaked", "out_of_use"))
    return {
        "total": cell.blocks_total,
        "free": cell.blocks_free,
        "cached": cell.blocks_cached,
        "leaked": cell.blocks_leaked,
        "out_of_use": sum(worker.blocks_retired for worker in cell.workers),
    }


def _tenant(tenant: scheduler_pb2.TenantStatus) -> dict[str, Any]:
    return {field.name: getattr(tenant, field.name) for field in tenant.DESCRIPTOR.fields}


def _predictions(counters: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """What the scheduler predicted, and how far it was off: relative errors of the latest."""
    return {
        name: {
            "predictions": counters[f"{kind}_predictions"],
            "error_p50": counters[f"{kind}_prediction_error_p50"],
            "error_p90": counters[f"{kind}_prediction_error_p90"],
        }
        for name, kind in (("ttft", "ttft"), ("prefill", "start"), ("total", "e2e"))
        if counters.get(f"{kind}_predictions")
    }


def _tenant_line(tenant: Mapping[str, Any]) -> str:
    parts = [
        f"tenant       {tenant['tenant']:<12} requests {tenant['requests']}"
        + (f" of {tenant['concurrency']}" if tenant["concurrency"] else ""),
        f"blocks {tenant['held_blocks']}" + (f" (share {tenant['kv_share']:g})" if tenant["kv_share"] < 1 else ""),
    ]
    if tenant["rate_tokens_per_s"]:
        parts.append(
            f"tokens left {tenant['tokens_left']:.0f} of {tenant['burst_tokens']:.0f}, {tenant['rate_tokens_per_s']:g}/s"
        )
    if tenant["rejected"]:
        parts.append(f"rejected {tenant['rejected']}")
    return "  ".join(parts)


def status_lines(status: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"{item['name']:<12} {item['state']:<12} pid {item['pid']:<8} {item['address']}"
        + (f"  restarts {item['restarts']}" if item["restarts"] else "")
        + (f"  {item['why']}" if item.get("why") else "")
        for item in status["services"]
    ]
    blocks = status["blocks"]
    if blocks["total"] is not None:
        lines.append(
            f"blocks       total {blocks['total']}  free {blocks['free']}  cached {blocks['cached']}  leaked {blocks['leaked']}"
            + (f"  out of use for want of memory {blocks['out_of_use']}" if blocks.get("out_of_use") else "")
        )
    if status["requests"]:
        lines.append(f"requests     running {status['requests']['running']}  waiting {status['requests']['waiting']}")
    lines += [_tenant_line(item) for item in status.get("tenants", [])]
    lines += [
        f"predicted    {name:<8} off by {item['error_p50']:.0%} (p50), {item['error_p90']:.0%} (p90), {item['predictions']:.0f} requests"
        for name, item in status.get("predictions", {}).items()
    ]
    lines += [f"{name:<12} {url}" for name, url in status["urls"].items()]
    lines.append("ready" if status["ready"] else "not ready")
    for name, settings in status.get("settings", {}).items():
        lines.append(f"settings of {name}")
        lines += [f"  {item['key']} = {json.dumps(item['value'])}  ({item['source']})" for item in settings]
    return lines


def state_urls(state: ClusterState) -> list[str]:
    """`name url` for each URL of a ready cluster."""
    return [f"{name:<8} {url}" for name, url in state.urls.items()]
