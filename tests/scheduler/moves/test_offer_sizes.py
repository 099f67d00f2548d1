"""Prefill and decode workers of different sizes: what no decode worker can ever hold is served all the same."""

from __future__ import annotations

from random import Random

from octavo_scheduler.policy import Policy

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.harness import Simulation


def test_what_only_a_prefill_worker_can_hold_jams_nobody() -> None:
    rng = Random(3)
    simulation = Simulation(rng, Policy(default_output_tokens=4), delay_us=0)
    for name, role, num_blocks in (("big", "prefill", 40), ("small", "decode", 12)):
        simulation.add_worker(ChaosWorker(rng, name, num_blocks, 4, calm=True, role=role))
    gateway = simulation.add_gateway()
    clients = [simulation.submit(gateway, [number] * size, 3) for number, size in ((1, 100), (2, 8), (3, 12))]
    simulation.settle()
    assert [client.outcome for client in clients] == ["finished"] * 3
    simulation.check_clean()
