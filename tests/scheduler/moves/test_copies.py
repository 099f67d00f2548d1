"""Copies of a request that ended or gave way are abandoned: their blocks come back when the worker has fenced them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from octavo_scheduler.policy import Policy

from tests.scheduler.harness import Client, Simulation
from tests.scheduler.moves.test_handoff import CHUNKS, PROMPT, pair
from tests.scheduler.moves.test_swap import crowd
from tests.scheduler.scenes import counters, done, make, run, run_until

FEW = 6
"""Boundaries within which what is abandoned must have ended."""


def loading(tokens: int = 4) -> tuple[Simulation, Client]:
    """A request whose prefix comes from the kvstore, by a copy that stands still."""
    prompt = list(range(64))
    simulation, gateway = make(Policy(load_path="load"), store=True, num_blocks=33)
    store = simulation.links[0].worker.store
    assert store is not None
    simulation.add_store(store)
    first = simulation.submit(gateway, prompt, 2)
    run_until(simulation, lambda: first.outcome and len(store.held) >= 16)
    simulation.flush_store("host")
    (worker,) = simulation.core.cell.fleet.workers.values()
    for key in worker.index.heads():
        worker.index.drop(key)
    worker.costs.prefill_token_us = 100_000.0
    simulation.links[0].worker.freeze_transfers = True
    client = simulation.submit(gateway, [*prompt, 9, 9], tokens)
    run(simulation, 3)
    assert counters(simulation)["loads_started"] == 1
    return simulation, client


def swapping() -> tuple[Simulation, Client]:
    """A preempted request whose blocks go out, by copies that stand still."""
    simulation, clients = crowd()
    simulation.links[0].worker.freeze_transfers = True
    run_until(simulation, lambda: counters(simulation)["swapped_blocks"] > 0)
    (owner,) = {
        transfer.request.request_id
        for worker in simulation.core.cell.fleet.workers.values()
        for transfer in worker.transfers.values()
        if transfer.purpose == "swap" and transfer.request is not None
    }
    return simulation, next(client for client in clients if client.request_id == owner)


def handing_over() -> tuple[Simulation, Client]:
    """A prefill whose first blocks go out, by copies that stand still."""
    simulation, gateway = pair(CHUNKS)
    simulation.links[0].worker.freeze_transfers = True
    client = simulation.submit(gateway, PROMPT, 12)
    run_until(simulation, lambda: counters(simulation)["exported_blocks"] > 0)
    return simulation, client


@pytest.mark.parametrize("scene", [loading, swapping, handing_over])
def test_a_cancel_does_not_wait_for_copies_that_nobody_needs(scene: Callable[[], tuple[Simulation, Client]]) -> None:
    simulation, client = scene()
    simulation.cancel(client)
    run(simulation, FEW)
    assert [answer[:2] for answer in client.cancel_answers] == [(True, "cancelled")]
    assert counters(simulation)["abandoned_copies"] > 0
    for link in simulation.links:
        link.worker.freeze_transfers = False
    simulation.settle()
    simulation.check_clean()


def test_what_was_abandoned_tells_nothing_of_store_and_link() -> None:
    simulation, client = loading()
    (worker,) = simulation.core.cell.fleet.workers.values()
    directory = simulation.core.cell.fleet.directory_of(worker)
    assert directory is not None
    before: Any = worker.link.bytes_per_us, worker.link.fixed_us, worker.link.observed, len(directory)
    simulation.cancel(client)
    run(simulation, FEW)
    assert not worker.transfers
    assert (worker.link.bytes_per_us, worker.link.fixed_us, worker.link.observed, len(directory)) == before
    assert directory.answers(simulation.now_us)


def test_an_answer_lets_its_copies_go_on() -> None:
    """What a finished request sends out may be found again."""
    simulation, gateway = make(Policy(pause="offload", default_output_tokens=4), store=True)
    store = simulation.links[0].worker.store
    assert store is not None
    simulation.add_store(store)
    simulation.links[0].worker.freeze_transfers = True
    client = simulation.submit(gateway, PROMPT, 4, pause=("t", 400_000))
    run_until(simulation, lambda: counters(simulation)["exported_blocks"] > 0)
    run(simulation, FEW)
    assert counters(simulation)["abandoned_copies"] == 0
    simulation.links[0].worker.freeze_transfers = False
    done(simulation, client)
    assert len(store.held) >= 10


def test_a_deadline_abandons_too() -> None:
    simulation, _client = loading()
    gateway = next(iter(simulation.gateways))
    late = simulation.submit(gateway, [*range(64), 8, 8], 4, deadline_us=50_000)
    run_until(simulation, lambda: late.outcome)
    assert late.outcome == "deadline"
    run(simulation, FEW)
    simulation.links[0].worker.freeze_transfers = False
    simulation.settle()
    simulation.check_clean()
