"""What a local cluster consists of: one ServicePlan per process, with the flags that join them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.manifest import ManifestError
from octavo.rpc.settings import Settings, to_flags

from octavo_cli.ports import PortLeases, reachable

Kind = Literal["scheduler", "kvstore", "gpuworker", "gateway"]
KINDS: tuple[Kind, ...] = ("scheduler", "kvstore", "gpuworker", "gateway")
MODULES: dict[str, str] = {kind: f"octavo_{kind}" for kind in KINDS}
ROLES = ("prefill", "decode", "both")
STOP_ORDER: tuple[tuple[Kind, ...], ...] = (("gateway",), ("gpuworker", "kvstore"), ("scheduler",))
"""Who is drained first: the gateway ends the requests, then nobody needs the others."""


LONGEST_SOCKET = 100
"""Bytes of a unix socket's path, below the 107 of Linux and the 103 of macOS."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """One process: `python -m <module> <flags>`, answering AdminService at `address`."""

    name: str
    kind: Kind
    module: str
    address: str
    flags: tuple[str, ...] = field(repr=False)


def plan_cluster(
    settings: Settings,
    passed: Sequence[str],
    workers: int,
    leases: PortLeases,
    modules: Mapping[str, str] = MODULES,
    roles: Sequence[str] = (),
) -> list[ServicePlan]:
    """The processes of a cluster, in the order they are started.

    `passed` are the user's own flags, given to every service before the ones that join them. Addresses the user set
    are taken as they are, the gateway's defaults if free, everything else gets a free port. `roles`: one per worker
    (gpuworker.role); none: the manifest's. Raises ManifestError.
    """
    if workers < 1:
        raise ManifestError(f"--workers: {workers} is too few; give at least 1", field="workers")
    if roles and len(roles) != workers:
        raise ManifestError(f"--roles: {len(roles)} roles for {workers} workers; give one for each", field="roles")
    for role in roles:
        if role not in ROLES:
            raise ManifestError(f"--roles: {role!r} is unknown; use {', '.join(ROLES)}", field="roles")
    manifest = settings.manifest
    if "prefill" in roles and not manifest.cache.tiers:
        raise ManifestError("--roles: prefill hands over through the kvstore; give cache.tiers", field="roles")
    run_dir = os.path.abspath(manifest.deployment.run_dir)

    def address(key: str, value: str, published: bool = False) -> str:
        if settings.sources.get(key, "default") != "default":
            return leases.exactly(key, value)
        return leases.prefer(key, value) if published else leases.free(key, "127.0.0.1")

    scheduler = address("scheduler.listen", manifest.scheduler.listen)
    local = manifest.scheduler.local_listen or _local_address(run_dir)
    dial_scheduler = local or reachable(scheduler)  # but a kvstore's peers learn its host from where it dials
    plans: list[ServicePlan] = []

    def add(kind: Kind, name: str, at: str, joined: Mapping[str, Any]) -> None:
        flags = (*passed, *to_flags({"deployment.run_dir": run_dir, **joined}))
        plans.append(ServicePlan(name, kind, modules[kind], reachable(at), flags))

    add("scheduler", "scheduler", scheduler, {"scheduler.listen": scheduler, "scheduler.local_listen": local})
    kvstore = ""
    if manifest.cache.tiers:
        kvstore = address("kvstore.listen", manifest.kvstore.listen)
        add("kvstore", "kvstore", kvstore, {"kvstore.listen": kvstore, "kvstore.scheduler": reachable(scheduler)})
    for index in range(workers):
        listen = (
            address("gpuworker.listen", manifest.gpuworker.listen)
            if workers == 1
            else leases.free("gpuworker.listen", "127.0.0.1")
        )
        joined: dict[str, Any] = {
            "gpuworker.listen": listen,
            "gpuworker.scheduler": dial_scheduler,
            "gpuworker.kvstore": reachable(kvstore) if kvstore else "",
        }
        if workers > 1 or not manifest.gpuworker.worker_id:
            joined["gpuworker.worker_id"] = f"{manifest.gpuworker.worker_id or 'gpuworker'}-{index}"
        if workers > 1 and settings.sources.get("engine.threads", "default") == "default":
            joined["engine.threads"] = max(1, (os.cpu_count() or 1) // workers)
        if roles:
            joined["gpuworker.role"] = roles[index]
        add("gpuworker", f"gpuworker-{index}", listen, joined)
    grpc_listen = address("gateway.grpc_listen", manifest.gateway.grpc_listen, published=True)
    http_listen = address("gateway.http_listen", manifest.gateway.http_listen, published=True)
    add(
        "gateway",
        "gateway",
        grpc_listen,
        {
            "gateway.grpc_listen": grpc_listen,
            "gateway.http_listen": http_listen,
            "gateway.scheduler": dial_scheduler,
        },
    )
    return plans


def _local_address(run_dir: str) -> str:
    """A socket in the run folder for the scheduler's messages. Empty: its path is too long, or the folder takes no socket."""
    path = os.path.join(run_dir, "scheduler.sock")
    probe = f"{path}.{os.getpid()}"
    if len(os.fsencode(probe)) > LONGEST_SOCKET:
        return ""
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(probe)
        os.unlink(probe)
    except OSError:
        return ""
    return f"unix:{path}"
