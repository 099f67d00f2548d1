"""Swap: chosen by cost, blocks come back whole, what a stuck or missing kvstore does to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from octavo_scheduler.orders import Offload, Stop
from octavo_scheduler.policy import Policy

from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until

SHORT = Policy(default_output_tokens=1, margin_fraction=0.0, max_overcommit=9.0, grant_ahead_us=6000)
"""Everyone is admitted for one token of output, so that growth runs out of blocks."""


def crowd(policy: Policy = SHORT, **options: Any) -> tuple[Simulation, list[Any]]:
    simulation, gateway = make(policy, store=True, num_blocks=17, **options)
    simulation.add_store(simulation.links[0].worker.store)  # type: ignore[arg-type]
    clients = [simulation.submit(gateway, [seed] * 13, 48) for seed in (1, 2, 3)]
    return simulation, clients


def test_a_preempted_sequence_comes_back_from_the_kvstore() -> None:
    simulation, clients = crowd()
    run_until(simulation, lambda: counters(simulation)["swaps"] > 0)
    done(simulation, *clients)
    counted = counters(simulation)
    assert counted["swapped_blocks"] > 0
    assert counted["loaded_blocks"] > 0
    # what was swapped is not computed again; only tails below a block, and tokens drawn while the stop was under way
    assert counted["recomputed_tokens"] < 2 * 4 * counted["preemptions"]
    books = simulation.core.cell.ledger.books
    assert books["swap"].saved_ms > 0 and books["swap"].cost_ms > 0


def test_without_swap_it_is_computed_again() -> None:
    simulation, clients = crowd(replace(SHORT, swap=False))
    run_until(simulation, lambda: counters(simulation)["preemptions"] > 0)
    done(simulation, *clients)
    assert counters(simulation)["swaps"] == 0


def test_a_slow_link_makes_recompute_the_cheaper_way() -> None:
    simulation, clients = crowd()
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    worker.link.bytes_per_us = 1e-6
    run_until(simulation, lambda: counters(simulation)["preemptions"] > 0)
    assert counters(simulation)["swaps"] == 0
    done(simulation, *clients)


def test_a_victim_is_priced_by_the_way_it_comes_back() -> None:
    """What is booked as predicted is the price that it was chosen by: a swap's, where that is the cheaper one."""
    simulation, clients = crowd()
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    worker.link.bytes_per_us, worker.link.fixed_us = 1e9, 1.0
    run_until(simulation, lambda: counters(simulation)["preemptions"] > 0)
    counted = counters(simulation)
    assert counted["swaps"] == counted["preemptions"]
    assert 0 < counted["bring_back_predicted_us"] < 3.0 * counted["preemptions"]
    done(simulation, *clients)


def test_a_kvstore_that_dies_during_the_copy_costs_prefill_only() -> None:
    simulation, clients = crowd()
    run_until(simulation, lambda: counters(simulation)["swapped_blocks"] > 0)
    simulation.kill_store("host")
    done(simulation, *clients)


def test_the_room_of_a_swap_counts_as_coming_back_until_it_is_there() -> None:
    """One round of preemption is enough: what leaves by copies is counted as pending, so nobody else is stopped for it."""
    simulation, clients = crowd()
    link = simulation.links[0]
    run_until(simulation, lambda: counters(simulation)["preemptions"] > 0)
    before = counters(simulation)["preemptions"]
    link.worker.freeze_transfers = True
    run(simulation, 20)
    assert counters(simulation)["preemptions"] == before
    link.worker.freeze_transfers = False
    done(simulation, *clients)


@pytest.mark.parametrize("cache_off", [True])
def test_what_must_stay_out_of_every_tier_is_recomputed(cache_off: bool) -> None:
    simulation, gateway = make(SHORT, store=True, num_blocks=17)
    simulation.add_store(simulation.links[0].worker.store)  # type: ignore[arg-type]
    clients = [simulation.submit(gateway, [seed] * 13, 30, cache_off=cache_off) for seed in (1, 2, 3)]
    run_until(simulation, lambda: counters(simulation)["preemptions"] > 0)
    done(simulation, *clients)
    assert counters(simulation)["swaps"] == 0 and counters(simulation)["exported_blocks"] == 0


def test_a_victims_blocks_go_out_while_its_last_step_runs() -> None:
    """Its full blocks are final: the copies are ordered with the stop, and only what the last steps have filled goes later."""
    simulation, clients = crowd()
    orders: list[tuple[int, str]] = []
    feed = simulation.feed

    def watched(event: Any) -> Any:
        effects = feed(event)
        orders.extend(
            (simulation.events, type(order).__name__)
            for _epoch, batch in effects.orders
            for order in batch
            if isinstance(order, Stop | Offload)
        )
        return effects

    simulation.feed = watched  # type: ignore[method-assign]
    run_until(simulation, lambda: counters(simulation)["swaps"] > 0)
    (worker,) = simulation.core.cell.fleet.workers.values()
    victims = [item for item in worker.sequences.values() if item.swap]
    assert victims and all(item.stopping == "preempt" for item in victims), "not released yet"
    first_stop = next(at for at, name in orders if name == "Stop")
    assert (first_stop, "Offload") in orders
    assert any(transfer.purpose == "swap" for transfer in worker.transfers.values())
    for victim in victims:
        assert victim.swapped_blocks == victim.computed_len // worker.block_tokens
    # what is under way counts as coming back, so that no second round begins for the same shortage
    held = sum(worker.pool.is_held_once(block) for item in victims for block in item.blocks)
    assert worker.pending_release() >= held > 0
    done(simulation, *clients)
    assert counters(simulation)["loaded_blocks"] > 0


def test_a_victim_that_finishes_or_is_cancelled_on_its_way_out_leaves_nothing() -> None:
    simulation, clients = crowd()
    run_until(simulation, lambda: counters(simulation)["swaps"] > 0)
    (worker,) = simulation.core.cell.fleet.workers.values()
    victim = next(item for item in worker.sequences.values() if item.swap)
    client = next(item for item in clients if item.request_id == victim.choice.request.request_id)
    simulation.cancel(client)
    simulation.settle()
    simulation.check_clean()
    assert client.outcome == "cancelled"
