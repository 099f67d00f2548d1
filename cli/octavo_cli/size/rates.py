"""The rates that a running cluster's scheduler has measured of its workers."""

from __future__ import annotations

from octavo.errors import Unavailable

from octavo_cli.locate import run_dir_of
from octavo_cli.probe import Probe
from octavo_cli.size.cag import Rates
from octavo_cli.state import running_state


async def measured_rates(run_dir: str) -> Rates:
    """Of the first worker of the run folder's cluster. Raises NoCluster; Unavailable when no worker serves."""
    state = running_state(run_dir_of(run_dir))
    for service in state.services:
        if service.kind != "scheduler":
            continue
        async with Probe(service.address) as probe:
            status = await probe.status()
        for worker in status.workers if status is not None else ():
            if worker.block_tokens:
                return Rates(
                    worker.fixed_us,
                    worker.prefill_token_us,
                    worker.context_token_us,
                    worker.step_tokens,
                    worker.block_bytes // worker.block_tokens,
                    worker.block_bytes * worker.blocks_total,
                    max(1.0, worker.load_bytes_per_us * 1e6),
                    worker.load_fixed_us,
                    f"what {worker.worker_id} measured",
                )
    raise Unavailable("no worker serves yet; its rates are known once one does", reason="no-worker")
