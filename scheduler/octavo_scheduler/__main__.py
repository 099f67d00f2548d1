"""`python -m octavo_scheduler`: the scheduler process."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import TextIO

from octavo.manifest import ManifestError
from octavo.rpc.host import Host, run_service
from octavo.v1 import cache_pb2, cache_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc

from octavo_scheduler.driver import Driver
from octavo_scheduler.metrics import CellCollector, FactMetrics
from octavo_scheduler.observer import Observer
from octavo_scheduler.preloads.cache_wire import CacheServicer
from octavo_scheduler.preloads.shelf_link import Shelf
from octavo_scheduler.service import SchedulerServicer
from octavo_scheduler.settings import policy_from

UPKEEP_S = 1.0
YOUNG_OBJECTS = 50_000
LOG_BUFFER_BYTES = 1 << 20
EARLIER = ".earlier"
"""Ending of the event log that an earlier process left."""
LAST_WRITES_S = 0.1
"""After the last request has ended, its last events leave within this time."""


async def setup(host: Host) -> None:
    """Core, driver and servicer; serving once the port is bound, ready (GetStatus) once a worker is."""

    def stuck(why: str) -> None:
        host.set_state("not_serving", why)

    event_log = open_log(host.manifest.scheduler.event_log)
    observer = Observer(host.tracer, host.log, FactMetrics(host.metrics).record)
    later = asyncio.get_running_loop().call_soon
    driver = Driver(policy_from(host.manifest), observer, host.log, on_stuck=stuck, event_log=event_log, later=later)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerServicer(driver, host.log), host.server)  # type: ignore[no-untyped-call]
    host.announce(scheduler_pb2.DESCRIPTOR)
    folder = Path(host.manifest.cache.preloads_path or host.run_dir / "preloads")
    cache = CacheServicer(driver, host.manifest.deployment.secret.encode(), Shelf(folder, host.log), host.log)
    cache.restore()
    cache_pb2_grpc.add_CacheServiceServicer_to_server(cache, host.server)  # type: ignore[no-untyped-call]
    host.announce(cache_pb2.DESCRIPTOR)
    collector = CellCollector(driver)
    host.metrics.register(collector)
    host.serve_metrics(host.manifest.scheduler.metrics_listen)
    host.spawn(driver.run(), "driver")
    host.spawn(_upkeep(host, driver, collector), "upkeep")

    async def drain() -> None:
        driver.drain()
        try:
            await driver.drained()
            await asyncio.sleep(LAST_WRITES_S)
        finally:
            driver.close_all("the scheduler stops")
            driver.flush_log()

    host.on_drain(drain)
    bound = await host.listen(host.manifest.scheduler.listen, host.manifest.scheduler.local_listen)
    host.log.info("listening on %s, metrics %s", bound, host.urls.get("metrics", "off"))
    host.set_state("serving")
    # what lives now lives to the end: the collector need not walk it again
    gc.collect()
    gc.freeze()
    # requests leave no cycles behind, so there is nothing to find for walking 100,000 waiting ones again and again
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)


def open_log(path: str) -> TextIO | None:
    """The file of `scheduler.event_log`; None when it is off. Raises ManifestError.

    What the process before this one wrote is kept beside it: after a crash it is what one wants to replay.
    """
    if not path:
        return None
    try:
        if os.path.isfile(path) and os.path.getsize(path):
            os.replace(path, path + EARLIER)
        return open(path, "w", encoding="utf-8", buffering=LOG_BUFFER_BYTES)
    except OSError as error:
        message = (
            f"scheduler.event_log: {path} cannot be written: {error.strerror}; name a file in a folder that exists"
        )
        raise ManifestError(message, field="scheduler.event_log") from error


async def _upkeep(host: Host, driver: Driver, collector: CellCollector) -> None:
    """Figures for Prometheus, and serving again once a worker came after a stuck one was dropped."""
    while True:
        await asyncio.sleep(UPKEEP_S)
        collector.refresh()
        driver.announce_load()
        driver.flush_log()  # a process that is killed leaves all but its last second
        if host.state == "not_serving" and driver.core.cell.fleet.workers:
            host.set_state("serving")


if __name__ == "__main__":
    sys.exit(run_service("scheduler", setup, sys.argv[1:]))
