"""Half steps for one tenant's prefills while others are about."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_scheduler.events import ChoiceStopped
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policies.about import ABOUT_US
from octavo_scheduler.policies.guard import look
from octavo_scheduler.policies.pace import LEAST_TOKENS
from octavo_scheduler.policy import Policy

from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import done, make, run, run_until

BUDGET, ALONE = 64, 256
LONG = list(range(1, 60)) * 20


def flooded(order: str = "fair", small: str = "small") -> tuple[Simulation, int, Worker, Any]:
    """One tenant has just asked for a token; then another's long prompt begins."""
    policy = Policy(order=order, max_num_batched_tokens=BUDGET, max_num_batched_tokens_alone=ALONE)
    simulation, gateway = make(policy, num_blocks=1025, max_seqs=8)
    done(simulation, simulation.submit(gateway, [1, 2, 3], 1, tenant=small))
    (worker,) = simulation.core.cell.fleet.workers.values()
    flood = simulation.submit(gateway, LONG, 4, tenant="flood")
    run(simulation, 2)
    return simulation, gateway, worker, flood


def budgets(simulation: Simulation) -> tuple[int, int]:
    """As the worker was told."""
    budget = simulation.links[0].worker.budget
    return budget.with_decodes, budget.alone


@pytest.mark.parametrize("order", ["fair", "slo-fair"])
def test_a_prompt_of_one_tenant_goes_by_half_steps_while_another_is_about(order: str) -> None:
    simulation, gateway, _worker, flood = flooded(order)
    assert budgets(simulation) == (BUDGET // 2, BUDGET // 2)
    small = simulation.submit(gateway, list(range(40)), 3, tenant="small")
    run_until(simulation, lambda: budgets(simulation)[0] == 41)
    assert not small.got[0], "a step holds the newcomer's prompt, and none of the other's beside it"
    run_until(simulation, lambda: small.got[0])
    run_until(simulation, lambda: small.outcome)
    run(simulation, 2)
    assert budgets(simulation)[0] == BUDGET // 2, "and half of it again for the other's, until that has its first token"
    done(simulation, flood, small)


@pytest.mark.parametrize("order", ["fcfs", "priority", "sjf", "slo"])
def test_other_policies_know_no_tenants(order: str) -> None:
    simulation, _gateway, worker, _flood = flooded(order)
    assert not worker.pace.limit and budgets(simulation) == (BUDGET, ALONE)


def test_alone_or_alone_again_nobody_makes_way() -> None:
    simulation, _gateway, worker, _flood = flooded(small="flood")
    assert not worker.pace.limit
    simulation, gateway, worker, flood = flooded()
    done(simulation, flood)
    simulation.core.cell.tenants_about["small"] -= ABOUT_US
    again = simulation.submit(gateway, [9, *LONG], 4, tenant="flood")
    run(simulation, 2)
    assert not worker.pace.limit and budgets(simulation) == (BUDGET, ALONE)
    done(simulation, again)


def test_of_a_group_whose_leader_was_stopped_the_next_one_computes_the_prompt() -> None:
    policy = Policy(order="fair", max_num_batched_tokens=BUDGET, max_num_batched_tokens_alone=ALONE)
    simulation, gateway = make(policy, num_blocks=1025, max_seqs=8)
    for number in (7, 8, 9):
        simulation.submit(gateway, [number, *LONG], 4, tenant="flood")
    run(simulation, 2)
    pair = simulation.submit(gateway, [5] * (ALONE + 40), 3, n=2, tenant="small")
    pair.cuts[0] = 0
    simulation.feed(ChoiceStopped(simulation.now_us, gateway, pair.request_id, 0, 0))
    simulation.submit(gateway, [9] * 20, 1, tenant="flood")
    worker = simulation.core.cell.fleet.workers[simulation.links[0].epoch]
    assert worker.pace.limit == len(worker.sequences) - 1 + (ALONE + 40) // 2


def test_a_prompt_that_takes_several_steps_takes_equal_ones() -> None:
    simulation, gateway, _worker, flood = flooded()
    small = simulation.submit(gateway, [5] * (ALONE + 40), 2, tenant="small")
    run_until(simulation, lambda: budgets(simulation)[1] == 1 + (ALONE + 40) // 2)
    done(simulation, small, flood)
    assert simulation.core.cell.counters["prefill_tokens"] >= len(LONG) + ALONE + 40


def test_a_group_whose_prompt_is_there_has_the_least_step() -> None:
    """Its leader has nothing to prefill, and the others are counted until its first token."""
    simulation, gateway, worker, flood = flooded()
    other = simulation.submit(gateway, [8, *LONG], 4, tenant="flood")
    small = simulation.submit(gateway, list(range(40)), 3, n=2, tenant="small")
    run(simulation)
    own = [item for item in worker.sequences.values() if item.choice.request.tenant == "small"]
    leader = own[0].group[0]
    behind, leader.behind = leader.behind, 0
    look(simulation.core.cell, worker)
    leader.behind = behind
    assert len(own) == 2 and worker.pace.limit == len(worker.sequences) - 1 + LEAST_TOKENS
    done(simulation, flood, other, small)
