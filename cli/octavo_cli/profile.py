"""Asks a worker for a profile of its next steps, and lays the answer out as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict
from octavo.errors import OctavoError
from octavo.manifest import ManifestError
from octavo.rpc.channels import open_channel
from octavo.v1 import profile_pb2, profile_pb2_grpc
from rich.table import Table

from octavo_cli.exits import FAILED, USAGE, NoCluster
from octavo_cli.state import ServiceState

MAX_STEPS: Final = 100
"""The worker's own bound, checked here first."""


class ProfileFailed(OctavoError):
    """The worker could not record the profile; `exit_code` says whose fault that is."""

    default_reason = "profile-failed"
    exit_code = FAILED


@dataclass(frozen=True, slots=True)
class ProfiledSteps:
    """What came back: the summary, and the trace as Chrome's JSON."""

    summary: profile_pb2.ProfileSummary
    trace: bytes


def check_steps(steps: int) -> None:
    """Raises ManifestError when `steps` is out of range."""
    if not 1 <= steps <= MAX_STEPS:
        raise ManifestError(f"--steps: {steps} must be between 1 and {MAX_STEPS}", field="steps")


def check_writable(path: Path) -> None:
    """Raises ManifestError when the file cannot be written; found out before the worker is asked. Leaves an old file as it
    is, and no new one."""
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise ManifestError(
            f"--out: {path} cannot be written ({error.strerror}); name a file in a folder that exists and is yours",
            field="out",
        ) from error


def worker_address(wanted: str, services: Sequence[ServiceState]) -> str:
    """Where the worker of this name, or at this very address, listens. Raises ManifestError that lists those there are."""
    workers = {service.name: service.address for service in services if service.kind == "gpuworker"}
    if wanted in workers:
        return workers[wanted]
    if wanted in workers.values():
        return wanted
    known = ", ".join(workers) or "none"
    raise ManifestError(f"WORKER: {wanted!r} is not a worker of this cluster; there are: {known}", field="worker")


async def record(address: str, steps: int, limit_s: float, on_idle: Callable[[], None] = lambda: None) -> ProfiledSteps:
    """Waits for the worker's next `steps` steps; `on_idle` is called when it has none to do. Raises NoCluster when nothing answers, ProfileFailed with the worker's words."""
    channel = open_channel(address)
    try:
        stub = profile_pb2_grpc.ProfileServiceStub(channel)  # type: ignore[no-untyped-call]
        request = profile_pb2.ProfileRequest(steps=steps, limit_ms=round(limit_s * 1000))
        summary, pieces = profile_pb2.ProfileSummary(), []
        async for answer in stub.Profile(request, timeout=limit_s + 30.0):
            if answer.idle:
                on_idle()
            if answer.HasField("summary"):
                summary = answer.summary
            pieces.append(answer.trace)
        return ProfiledSteps(summary, b"".join(pieces))
    except grpc.aio.AioRpcError as error:
        raise _failure(address, error) from error
    finally:
        await channel.close(None)


def _failure(address: str, error: grpc.aio.AioRpcError) -> OctavoError:
    words = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NoCluster(f"what listens at {address} is no worker that can be profiled")
    if error.code() is grpc.StatusCode.UNAVAILABLE and "loading" not in words:
        return NoCluster(f"the worker at {address} does not answer: {words}")
    failed = ProfileFailed(words)
    failed.exit_code = USAGE if error.code() is grpc.StatusCode.INVALID_ARGUMENT else FAILED
    return failed


def plain(summary: profile_pb2.ProfileSummary) -> dict[str, Any]:
    """The summary as JSON-able values, names as in profile.proto."""
    return MessageToDict(summary, preserving_proto_field_name=True)


def table_of(summary: profile_pb2.ProfileSummary, kernels: int = 15) -> Table:
    """Every operation, then the `kernels` longest kernels: calls, time per step, share, bytes, GB/s."""
    table = Table(title=f"{summary.worker}: {summary.steps} steps", title_justify="left")
    for name in ("", "calls", "us a step", "share", "MB a step", "GB/s"):
        table.add_column(name, justify="left" if not name else "right")
    for kind, most in (
        (profile_pb2.ProfiledKernel.KIND_OPERATION, 1000),
        (profile_pb2.ProfiledKernel.KIND_KERNEL, kernels),
    ):
        rows = [row for row in summary.kernels if row.kind == kind]
        whole = sum(row.time_us for row in rows) or 1.0
        for row in rows[:most]:
            rate = f"{row.bytes / row.time_us / 1e3:.1f}" if row.bytes and row.time_us else ""
            size = f"{row.bytes / summary.steps / 1e6:.2f}" if row.bytes else ""
            per_step = f"{row.time_us / summary.steps:.1f}"
            table.add_row(row.name[:60], str(row.calls), per_step, f"{row.time_us / whole:.1%}", size, rate)
        table.add_section()
    return table
