"""The frame of every service process: settings, logs, tracing, a gRPC server with health, reflection and admin, and the drain.

A service is one `setup(host)` coroutine; everything that all four have in common lives here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import prometheus_client
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from octavo.errors import OctavoError
from octavo.manifest import ManifestError
from octavo.rpc.admin import AdminServicer
from octavo.rpc.channels import LEAN_OPTIONS, MAX_MESSAGE_BYTES
from octavo.rpc.logs import start_logging
from octavo.rpc.settings import Settings, load_settings, manifest_keys
from octavo.rpc.tracing import start_tracing
from octavo.rpc.wakeups import SWITCH_INTERVAL_S, realtime_allowed, run_realtime, shorten_slices
from octavo.v1 import admin_pb2_grpc

State = Literal["starting", "serving", "draining", "not_serving"]
EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_MISMATCH = 0, 1, 2, 3
LEFT = "left in order"
"""Last words of a worker that was drained: whoever keeps services alive does not start it again."""
"""Exit codes: clean, failed while running, unusable settings or arguments, an artifact that does not match the manifest."""

SERVER_OPTIONS: list[tuple[str, int]] = [
    *LEAN_OPTIONS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),  # a second server on a taken port must fail, not share it
]


class Host:
    """What a service gets from its frame. One per process; create it inside the running loop."""

    def __init__(self, name: str, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.settings = settings
        self.manifest = settings.manifest
        self.version = service_version()
        deployment, observability = self.manifest.deployment, self.manifest.observability
        self.run_dir = Path(deployment.run_dir).absolute()
        self.log = start_logging(name, deployment.log_format, deployment.log_level)
        self.provider: TracerProvider = start_tracing(
            name,
            self.version,
            otlp_endpoint=observability.otlp_endpoint,
            trace_dir=self.run_dir if observability.trace_files else None,
            sample=observability.trace_sample,
        )
        self.tracer: trace.Tracer = self.provider.get_tracer("octavo", self.version)
        self.realtime = False  # whether its message threads run as real-time ones while it serves
        self.metrics = prometheus_client.CollectorRegistry()
        self.server = grpc.aio.server(options=server_options(name, self.manifest.gateway.max_body_bytes))
        self._beside: list[grpc.aio.Server] = []
        self.urls: dict[str, str] = {}
        self.state: State = "starting"
        self.why = "starting"
        self._services: list[str] = []
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drains: list[Callable[[], Awaitable[None]]] = []
        self._ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(self), self.server)  # type: ignore[no-untyped-call]

    def announce(self, descriptor: FileDescriptor) -> None:
        """Names the services of a generated file for health and reflection."""
        self._services += [service.full_name for service in descriptor.services_by_name.values()]

    def set_state(self, state: State, why: str = "") -> None:
        """Sets what health and AdminService answer; a change is logged."""
        if (state, why) == (self.state, self.why):
            return
        self.state, self.why = state, why
        if state == "serving":  # by now gRPC's threads are there, and later ones are their children
            shorten_slices(self.manifest.deployment.wakeup_slice_us)
            if self.realtime:
                run_realtime()
        serving = (
            health_pb2.HealthCheckResponse.SERVING if state == "serving" else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        self.spawn(self._set_health(serving), "health")
        self.log.info("state %s%s", state, f": {why}" if why else "")

    async def _set_health(self, serving: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", *self._services):
            await self._health.set(service, serving)

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs a critical task: if it raises, the process ends with exit code 1 and one line."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.log.error("task %s died", task.get_name(), exc_info=error)
        self.exit(EXIT_FAILED, f"task {task.get_name()} died: {type(error).__name__}: {error}")

    def on_drain(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Adds a step of the drain; steps run in order, within deployment.drain_timeout_s in all."""
        self._drains.append(callback)

    def exit(self, code: int, message: str) -> None:
        """Ends the process with this exit code and one line; the first caller wins."""
        if not self._ended.done():
            self._ended.set_result((code, message))

    async def listen(self, address: str, local: str = "") -> str:
        """Binds and starts the gRPC server; port 0 takes a free one. Returns the bound address.

        `local`: the same server for this host on another address; empty: none. Raises OctavoError when one is taken or malformed.
        """
        port, *_ = [_bind(self.name, self.server, each) for each in (address, local) if each]
        names = (*self._services, "octavo.v1.AdminService", health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._services.append("octavo.v1.AdminService")
        reflection.enable_server_reflection(names, self.server)
        await self.server.start()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        bound = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        self.urls.setdefault("grpc", bound)
        return bound

    async def listen_beside(self, address: str, register: Callable[[grpc.aio.Server], None]) -> str:
        """A second server of this process that offers only what `register` adds to it. Returns the bound address.

        It stops with the first one. Raises OctavoError when the address is taken or malformed.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        register(server)
        port = _bind(self.name, server, address)
        await server.start()
        self._beside.append(server)
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    def serve_metrics(self, address: str) -> None:
        """Prometheus text on `host:port` from a thread of its own; an empty address is off."""
        if not address:
            return
        host, _, port = address.rpartition(":")
        server, _thread = prometheus_client.start_http_server(int(port), host, registry=self.metrics)
        self.urls["metrics"] = f"http://{host}:{server.server_port}/metrics"

    async def wait_ended(self) -> tuple[int, str]:
        """(exit code, message) once a signal, `exit` or a dead task ends the process."""
        return await asyncio.shield(self._ended)

    async def drain(self) -> None:
        """NOT_SERVING, then every drain step, then the server stops and spans are flushed."""
        timeout = self.manifest.deployment.drain_timeout_s
        self.set_state("draining", "asked to stop")
        deadline = asyncio.get_running_loop().time() + timeout
        for callback in self._drains:
            try:
                async with asyncio.timeout_at(deadline):
                    await callback()
            except TimeoutError:
                self.log.warning("drain: %.0f s are over; stopping what still runs", timeout)
            except Exception as error:
                self.log.error("drain: a step failed", exc_info=error)
        await asyncio.gather(*(server.stop(grace=1.0) for server in (self.server, *self._beside)))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.provider.shutdown)


def _bind(name: str, server: grpc.aio.Server, address: str) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise OctavoError(f"{name} cannot listen on {address}: {error}; choose a free address") from error


def server_options(name: str, max_body_bytes: int) -> list[tuple[str, int]]:
    """SERVER_OPTIONS; a gateway hears out a body a few times too large, to refuse it in its own words."""
    if name != "gateway":
        return SERVER_OPTIONS
    limit = "grpc.max_receive_message_length"
    others = [option for option in SERVER_OPTIONS if option[0] != limit]
    return [*others, (limit, max(MAX_MESSAGE_BYTES, 4 * max_body_bytes))]


Setup = Callable[[Host], Coroutine[Any, Any, None]]


def service_version() -> str:
    """The version of the installed `octavo` distribution."""
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:
        return "0.1.0+source"


def run_service(name: str, setup: Setup, argv: Sequence[str]) -> int:
    """Runs a service until it is told to stop; returns the process's exit code.

    `--help` prints the settings. Settings that cannot be used end it with code 2 and one line, those that setup finds out too; another
    OctavoError out of setup with code 1 (or the error's `exit_code`).
    """
    if any(word in ("--help", "-h") for word in argv):
        print(settings_help(name))
        return EXIT_OK
    try:
        settings = load_settings(argv, os.environ)
    except OctavoError as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if settings.manifest.deployment.event_loop == "uvloop":
        import uvloop

        return uvloop.run(_run(name, setup, settings))
    return asyncio.run(_run(name, setup, settings))


def settings_help(name: str) -> str:
    """What `--help` of a service prints: how to give a setting, and every key with its variable and default."""
    rows = [(f"--{key}", json.dumps(default), env) for key, env, default in manifest_keys()]
    wide = max(len(flag) for flag, _default, _env in rows)
    listed = "\n".join(f"  {flag:<{wide}}  {env} = {default}" for flag, default, env in rows)
    return (
        f"usage: python -m octavo_{name} [--manifest FILE] [--section.key VALUE ...]\n\n"
        "Later sources win: default, manifest file, environment variable, flag. Meanings are in docs/operations.md.\n\n"
        f"settings, with their variables and defaults:\n{listed}"
    )


async def _run(name: str, setup: Setup, settings: Settings) -> int:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        host = Host(name, settings)
    except OctavoError as refused:
        print(f"octavo {name}: {refused}", file=sys.stderr)
        return EXIT_USAGE
    # a kvstore's loop copies blocks: it would hold up those that wait for a core, not for a block
    host.realtime = settings.manifest.deployment.realtime_messages and name != "kvstore" and realtime_allowed()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, host.exit, EXIT_OK, f"signal {signum.name}")
    log_settings(host.log, settings)
    host.log.info("message threads: %s", "real-time" if host.realtime else "ordinary, with short slices")
    starting = loop.create_task(setup(host), name="setup")
    ended = loop.create_task(host.wait_ended())
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and not starting.cancelled() and (error := starting.exception()) is not None:
        known = isinstance(error, OctavoError)
        host.log.error("cannot start: %s", error, exc_info=None if known else error)
        failed = EXIT_USAGE if isinstance(error, ManifestError) else EXIT_FAILED
        host.exit(getattr(error, "exit_code", failed), f"cannot start: {error}")
    code, message = await ended
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await host.drain()
    (host.log.info if code == EXIT_OK else host.log.error)("ended with exit code %d: %s", code, message)
    return code


def log_settings(log: logging.Logger, settings: Settings) -> None:
    """Every effective setting with its source: a line for each that was given, one for all defaults."""
    listed = settings.items()
    given = [item for item in listed if item.source != "default"]
    for item in given:
        log.info("setting %s = %r (%s)", item.key, item.value, item.source)
    defaults = " ".join(f"{item.key}={item.value!r}" for item in listed if item.source == "default")
    log.info("settings at their default: %s", defaults)
