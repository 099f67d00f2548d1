"""The local cluster: starts every service, waits until all serve, restarts what dies, drains in order.

Rules: a service that dies before the cluster was ready ends the cluster with its reason; one that dies later is
started again on the same address, after 0.1 s at first and at most 5 s after repeated deaths; a worker that was drained
stays away until the cluster is started anew. Whom the watcher shows it to may go: the cluster stays. Nothing outlives the
supervisor but what a kill -9 of it leaves, and that the next `octavo up` or `octavo down` ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from octavo.v1 import admin_pb2

from octavo_cli.exits import FAILED, StartFailed
from octavo_cli.gate_process import LOG, WAITING, run_gate_process
from octavo_cli.plan import STOP_ORDER, ServicePlan
from octavo_cli.ports import reachable
from octavo_cli.process import ServiceProcess, open_probe
from octavo_cli.service_log import Record, left_in_order, logged_state, reason_of_death
from octavo_cli.state import ClusterState, Process, ServiceState, write_state

POLL_STARTING_S, POLL_SERVING_S = 0.1, 0.5
POLL_STEADY_S, STEADY_POLLS = 2.0, 10
"""How often a service is asked once its last answers were alike: a question costs both sides half a millisecond of the cores that compute."""
FIRST_BACKOFF_S, LAST_BACKOFF_S, STABLE_AFTER_S = 0.1, 5.0, 30.0
FIRST_GATE_RETRY_S, LAST_GATE_RETRY_S = 5.0, 300.0


class Watcher(Protocol):
    """Whoever shows the cluster's events to a person."""

    def moved(self, key: str, taken: str, address: str) -> None:
        """Somebody listens at the default of setting `key`; `address` is used instead."""

    def record(self, service: str, record: Record) -> None:
        """A service logged a line while it was starting."""

    def changed(self, before: ServiceState, after: ServiceState, seconds: float) -> None:
        """A service's state or reason changed; `seconds` since its process started."""

    def died(self, service: str, reason: str, restart_in_s: float) -> None:
        """A service died and is started again."""

    def trouble(self, service: str, why: str) -> None:
        """What a service logs or answers could not be followed; it is looked at again."""

    def ready(self, urls: dict[str, str], seconds: float) -> None:
        """The whole cluster serves; `seconds` since its start."""

    def draining(self) -> None:
        """The cluster was asked to stop."""

    def gate(self, state: str, said: str) -> None:
        """The release gate: `running` with each line that it writes, then `passed` or `failed` with its last one."""


class Supervisor:
    """Owns the processes of one cluster and its state.json. One per process; use it inside a running loop."""

    def __init__(
        self,
        plans: Sequence[ServicePlan],
        run_dir: Path,
        drain_timeout_s: float,
        watcher: Watcher,
        gate_flags: Sequence[str] | None = None,
    ) -> None:
        """`gate_flags` are those of `octavo gate`, which runs when the gateway waits for it; None: there is no gate."""
        self._plans = list(plans)
        self._run_dir = run_dir
        self._drain_timeout_s = drain_timeout_s
        self._watcher = watcher
        self._gate_flags = gate_flags
        self._running: dict[str, ServiceProcess] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: StartFailed | None = None
        self._started_s = time.monotonic()
        self._info_urls: dict[str, dict[str, str]] = {}
        services = tuple(ServiceState(plan.name, plan.kind, plan.address) for plan in self._plans)
        self.state = ClusterState(Process.of(os.getpid()), services=services)

    def ask_to_stop(self) -> None:
        """The first call drains; a second one kills what still runs."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self, ready_timeout_s: float) -> bool:
        """Runs the cluster until it is asked to stop; returns whether all services drained in time.

        Raises StartFailed, after everything is stopped, when a service died or did not serve before the cluster was
        ready.
        """
        write_state(self._run_dir, self.state)
        keepers = [asyncio.create_task(self._keep(plan), name=plan.name) for plan in self._plans]
        limit = asyncio.create_task(self._limit_start(ready_timeout_s))
        gate = asyncio.create_task(self._keep_gate())
        stopping = asyncio.create_task(self._stopping.wait())
        # a keeper only ends by itself when it raised
        await asyncio.wait([stopping, *keepers], return_when=asyncio.FIRST_COMPLETED)
        for task in (limit, gate, stopping, *keepers):
            task.cancel()
        results = await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(limit, gate, stopping, return_exceptions=True)
        failed = self._failure is not None or any(isinstance(result, Exception) for result in results)
        clean = await self._drain(asked=not failed)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if self._failure is not None:
            raise self._failure
        return clean

    async def _keep(self, plan: ServicePlan) -> None:
        """Keeps one service running for ever. Raises StartFailed when it dies before the cluster is ready."""
        deaths = 0
        while True:
            began_s = time.monotonic()
            process, code, reason = await self._run_once(plan)
            if not self.state.ready:
                self._update(plan, state="dead", why=reason)
                raise StartFailed.with_code(f"{plan.name} did not start: {reason}", code)
            if process is not None and left_in_order(process.records, code):
                del self._running[plan.name]
                self._update(plan, state="drained", why="left in order")
                await self._stopping.wait()
                return
            deaths = 0 if time.monotonic() - began_s > STABLE_AFTER_S else deaths
            backoff_s = min(FIRST_BACKOFF_S * 2**deaths, LAST_BACKOFF_S)
            deaths += 1
            self._update(plan, state="restarting", why=reason)
            self._show(self._watcher.died, plan.name, reason, backoff_s)
            await asyncio.sleep(backoff_s)

    async def _run_once(self, plan: ServicePlan) -> tuple[ServiceProcess | None, int, str]:
        """A service from its start to its end: its process (None: it could not be made), its exit code and why it ended."""
        try:
            process = await ServiceProcess.start(plan, self._run_dir / "logs" / f"{plan.name}.log")
        except OSError as error:
            return None, FAILED, f"its process cannot be started: {error}"
        self._running[plan.name] = process
        restarts = self._service(plan).restarts + (1 if self._service(plan).process.pid else 0)
        self._update(plan, state="starting", why="", process=process.identity, restarts=restarts)
        watching = asyncio.create_task(self._keep_watching(plan, process))
        try:
            code = await process.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        process.kill_group()
        process.read_log()
        return process, code, reason_of_death(process.records, code)

    async def _keep_watching(self, plan: ServicePlan, process: ServiceProcess) -> None:
        """Watches for as long as it is let: whatever a service writes or answers, it is looked at again."""
        began_s = time.monotonic()
        told = ""
        while True:
            (error,) = await asyncio.gather(self._watch(plan, process, began_s), return_exceptions=True)
            if repr(error) != told:
                told = repr(error)
                self._show(self._watcher.trouble, plan.name, told)
            await asyncio.sleep(POLL_SERVING_S)

    async def _watch(self, plan: ServicePlan, process: ServiceProcess, began_s: float) -> None:
        """Follows a service's log and state as long as it runs; ends with an error alone."""
        probe = open_probe(plan)
        alike = 0
        try:
            while True:
                before = self._service(plan)
                records = process.read_log()
                for record in records:
                    if self._service(plan).state != "serving":
                        self._show(self._watcher.record, plan.name, record)
                info = await probe.info()
                if info is not None and info.pid == process.identity.pid:
                    self._heard(plan, info, records, time.monotonic() - began_s)
                now = self._service(plan)
                alike = alike + 1 if info is not None and now == before else 0
                await asyncio.sleep(_pause_s(now.state == "serving", alike))
        finally:
            await probe.close()

    def _heard(
        self, plan: ServicePlan, info: admin_pb2.GetInfoResponse, records: Sequence[Record], seconds: float
    ) -> None:
        """A service's answer, and what it logged before: one that serves is asked seldom, and a state may have come and gone."""
        self._info_urls[plan.kind] = dict(info.urls)
        logged = [told for record in records if (told := logged_state(record))]
        serving = self._service(plan).state == "serving"
        for state, why in logged if serving and logged else [(info.state, info.why)]:
            before = self._service(plan)
            if (before.state, before.why) != (state, why):
                self._update(plan, state=state, why=why)
                self._show(self._watcher.changed, before, self._service(plan), seconds)
        if not self.state.ready and all(item.state == "serving" for item in self.state.services):
            self.state = replace(self.state, ready=True, urls=self._urls())
            self._save()
            self._show(self._watcher.ready, self.state.urls, time.monotonic() - self._started_s)

    async def _keep_gate(self) -> None:
        """Runs the release gate whenever a gateway begins to wait for it; a failure before ready ends the cluster.

        After ready (a gateway came back) a failed gate is run again, later each time: the cause may be mended by then.
        """
        wait_s = FIRST_GATE_RETRY_S
        while self._gate_flags is not None:
            waiting = [item for item in self.state.services if item.why == WAITING]
            others = [item for item in self.state.services if item.kind != "gateway"]
            if not waiting or any(item.state != "serving" for item in others):
                await asyncio.sleep(POLL_STARTING_S)
                continue
            self._show(self._watcher.gate, "running", f"the release gate runs; its log: {self._run_dir / 'logs' / LOG}")
            code, said = await self._run_gate(self._gate_flags)
            if code == 0:
                wait_s = FIRST_GATE_RETRY_S
                self._show(self._watcher.gate, "passed", said)
                await asyncio.sleep(POLL_SERVING_S)  # until the watcher has heard the gateway's new state
                continue
            if not self.state.ready:
                self._failure = StartFailed.with_code(f"{said}; see {self._run_dir / 'logs' / LOG}", code)
                self._stopping.set()
                return
            self._show(
                self._watcher.gate,
                "failed",
                f"{said}; the gateway stays closed and the gate runs again in {wait_s:g} s",
            )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_GATE_RETRY_S)

    async def _run_gate(self, flags: Sequence[str]) -> tuple[int, str]:
        try:
            return await run_gate_process(
                flags, self._run_dir, lambda line: self._show(self._watcher.gate, "running", line)
            )
        except OSError as error:
            return FAILED, f"the release gate cannot be run: {error}"

    async def _limit_start(self, ready_timeout_s: float) -> None:
        await asyncio.sleep(ready_timeout_s)
        if not self.state.ready:
            late = "; ".join(
                f"{item.name} is {item.state}{f' ({item.why})' if item.why else ''}"
                for item in self.state.services
                if item.state != "serving"
            )
            self._failure = StartFailed(f"not ready after {ready_timeout_s:g} s: {late}; see {self._run_dir / 'logs'}")
            self._stopping.set()

    async def _drain(self, *, asked: bool) -> bool:
        """Stops every service, the gateway first. Returns whether none had to be killed."""
        if asked:
            self._show(self._watcher.draining)
        self.state = replace(self.state, ready=False, stopping=True)
        self._save()
        clean = True
        for kinds in STOP_ORDER:
            group = [process for process in self._running.values() if process.plan.kind in kinds]
            if group:
                clean &= all(await asyncio.gather(*(self._stop(process) for process in group)))
        return clean

    async def _stop(self, process: ServiceProcess) -> bool:
        stopping = asyncio.create_task(process.stop(self._drain_timeout_s + 5.0))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            process.kill()
        hurry.cancel()
        ended = await stopping
        self._update(process.plan, state="stopped", why="")
        return ended and not self._hurry.is_set()

    def _urls(self) -> dict[str, str]:
        """grpc, http and metrics of the gateway, as a client on this machine dials them."""
        told = self._info_urls.get("gateway", {})
        urls = {"grpc": f"grpc://{self._gateway_address()}"}
        if told.get("http"):
            http = f"http://{reachable(told['http'].removeprefix('http://').rstrip('/'))}"
            urls |= {"http": http, "metrics": told.get("metrics") or f"{http}/metrics"}
        return urls

    def _gateway_address(self) -> str:
        return next(plan.address for plan in self._plans if plan.kind == "gateway")

    def _service(self, plan: ServicePlan) -> ServiceState:
        return next(item for item in self.state.services if item.name == plan.name)

    def _update(self, plan: ServicePlan, **changes: object) -> None:
        self.state = self.state.with_service(replace(self._service(plan), **changes))  # type: ignore[arg-type]
        self._save()

    def _show(self, event: Callable[..., None], *said: object) -> None:
        """Tells the watcher where it can be told: an output that is full or closed takes nothing with it."""
        with contextlib.suppress(OSError):
            event(*said)

    def _save(self) -> None:
        """Writes the state where it can: on a full disk what is known of the cluster is late, and the cluster goes on."""
        with contextlib.suppress(OSError):
            write_state(self._run_dir, self.state)


def _pause_s(serving: bool, alike: int) -> float:
    """Until a service is asked again, whose last `alike` answers changed nothing."""
    if not serving:
        return POLL_STARTING_S
    return POLL_STEADY_S if alike >= STEADY_POLLS else POLL_SERVING_S
