"""Scenes for the tests of the core: a calm cell on a virtual clock, and how to run it."""

from __future__ import annotations

from random import Random
from typing import Any

from octavo_scheduler.policy import Policy

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Client, Simulation


def make(policy: Policy | None = None, store: bool = False, workers: int = 1, **options: Any) -> tuple[Simulation, int]:
    simulation = Simulation(Random(1), policy, delay_us=0)
    host = ChaosStore(Random(2)) if store else None
    if host is not None:
        simulation.add_store(host)
    for number in range(workers):
        settings = {"num_blocks": 33, "max_seqs": 4, "calm": True, "store": host, **options}
        simulation.add_worker(ChaosWorker(Random(3), f"w{number}", **settings))
    return simulation, simulation.add_gateway()


def run(simulation: Simulation, iterations: int = 1) -> None:
    for _ in range(iterations):
        simulation.advance(3000)
        for link in simulation.links:
            simulation.run_link(link)
        for gateway in list(simulation.gateways):
            simulation.deliver(gateway)


def run_until(simulation: Simulation, condition: Any, limit: int = 3000) -> None:
    for _ in range(limit):
        if condition():
            return
        run(simulation)
    raise AssertionError("it never happened")


def counters(simulation: Simulation) -> dict[str, float]:
    return simulation.core.cell.counters


def done(simulation: Simulation, *clients: Client) -> None:
    simulation.settle()
    assert [(client.outcome, client.reason) for client in clients] == [("finished", "")] * len(clients)
    simulation.check_clean()
