"""Who waits for certain workers keeps those, and starts when it would have started without whoever passes it."""

from __future__ import annotations

from random import Random

import pytest
from octavo_scheduler.limits.jam import MOST_LOOKED_AT
from octavo_scheduler.policy import Policy

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.harness import Client, Simulation
from tests.scheduler.scenes import counters, done, run, run_until

CLASSES = {"default": {}, "fast": {"pool": "fast"}}
LARGE, SMALL = 37, 11  # blocks of 4 tokens, one of them is nobody's


def cell(order: str = "fcfs", labels: bool = False, **options: object) -> tuple[Simulation, int]:
    """A worker with a large pool, or with a label, and one without."""
    policy = Policy(order=order, max_num_seqs=4, default_output_tokens=4, slo_classes=CLASSES, **options)  # type: ignore[arg-type]
    simulation = Simulation(Random(1), policy, delay_us=0)
    for number, blocks in enumerate((LARGE, LARGE if labels else SMALL)):
        worker = ChaosWorker(Random(number), f"w{number}", num_blocks=blocks, max_seqs=4, calm=True)
        worker.pool_labels = ["fast"] if labels and not number else []
        simulation.add_worker(worker)
    return simulation, simulation.add_gateway()


def large(simulation: Simulation, gateway: int, output: int = 20, tenant: str = "big", **options: object) -> Client:
    """Fits the large worker alone, and that one only when nothing else large is there."""
    prompt = list(range(118))
    return simulation.submit(gateway, prompt, output, cache_off=True, tenant=tenant, **options)  # type: ignore[arg-type]


def small(simulation: Simulation, gateway: int, output: int = 4, tenant: str = "small", **options: object) -> Client:
    return simulation.submit(gateway, [1, 2, 3], output, cache_off=True, tenant=tenant, **options)  # type: ignore[arg-type]


def where(simulation: Simulation, client: Client) -> str:
    for worker in simulation.core.cell.fleet.workers.values():
        if any(item.choice.request.request_id == client.request_id for item in worker.sequences.values()):
            return worker.worker_id
    return ""


def test_smaller_ones_pass_to_the_worker_that_the_head_cannot_use() -> None:
    simulation, gateway = cell()
    first = large(simulation, gateway)
    head = large(simulation, gateway)
    passer = small(simulation, gateway)
    assert (where(simulation, first), where(simulation, head), where(simulation, passer)) == ("w0", "", "w1")
    assert counters(simulation)["passing_starts"] == 1
    done(simulation, first, head, passer)


def test_nobody_takes_the_worker_that_the_head_waits_for() -> None:
    """The large worker has room for the small one, and the small worker has none."""
    simulation, gateway = cell()
    first = large(simulation, gateway)
    head = large(simulation, gateway)
    filling = [small(simulation, gateway, 30) for _ in range(6)]
    assert {where(simulation, client) for client in filling} == {"w1", ""}
    done(simulation, first, head, *filling)


def test_who_fits_everywhere_lets_nobody_pass() -> None:
    simulation, gateway = cell(labels=True)
    running = [large(simulation, gateway) for _ in range(2)]
    head = large(simulation, gateway)
    behind = small(simulation, gateway)
    assert [where(simulation, client) for client in (*running, head, behind)] == ["w0", "w1", "", ""]
    assert not counters(simulation)["passing_starts"]
    done(simulation, *running, head, behind)


def test_a_label_is_kept_as_a_size_is() -> None:
    """Before, a request of any pool took the room for which one of the pool waited."""
    simulation, gateway = cell(labels=True)
    first = large(simulation, gateway, slo_class="fast")
    head = large(simulation, gateway, slo_class="fast")
    passers = [small(simulation, gateway, 30) for _ in range(6)]
    of_pool = small(simulation, gateway, slo_class="fast")
    assert (where(simulation, first), where(simulation, head), where(simulation, of_pool)) == ("w0", "", "")
    assert {where(simulation, client) for client in passers} == {"w1", ""}
    done(simulation, first, head, *passers, of_pool)


def started_us(order: str, seed: int, passers: bool) -> tuple[int, dict[str, int]]:
    """When the head started, and when whoever passed it did: one large after another, small ones meanwhile or not.

    A small one on the large worker would be in its way: two large ones leave no room there.
    """
    simulation, gateway = cell(order)
    draw = Random(seed)
    large(simulation, gateway, draw.randint(5, 30))
    run(simulation, draw.randint(0, 3))
    head = large(simulation, gateway, draw.randint(1, 20))
    others: list[Client] = []
    for _ in range(60):
        if draw.random() < 0.4:
            output = draw.randint(1, 20)
            if passers:
                others.append(small(simulation, gateway, output, tenant=draw.choice(("small", "smaller"))))
            else:
                draw.choice((1, 2))
        run(simulation)
    requests = {item.request_id: item for item in simulation.core.cell.registry._by_name.values()}
    done(simulation, head, *others)
    return requests[head.request_id].admitted_us, {
        item.request_id: requests[item.request_id].admitted_us for item in others
    }


@pytest.mark.parametrize(
    "order", ["fcfs", "priority", "slo", "fair", "slo-fair"]
)  # under sjf the small ones are before it
def test_the_head_starts_when_it_would_have_started_without_the_passers(order: str) -> None:
    passed = 0
    for seed in range(4):
        alone_us, _ = started_us(order, seed, passers=False)
        beside_us, others = started_us(order, seed, passers=True)
        assert beside_us == alone_us > 0
        passed += sum(other_us < beside_us for other_us in others.values())
    assert passed > 10, "nobody passed: nothing was tested"


def test_whoever_passes_is_charged_and_makes_no_lost_one_sooner() -> None:
    simulation, gateway = cell("slo-fair")
    large(simulation, gateway)
    head = large(simulation, gateway, tenant="a")
    request = simulation.core.cell.registry.find("a", head.request_id)
    assert request is not None
    (before,) = {account.virtual_us for account in request.accounts}
    passer = small(simulation, gateway, tenant="a")
    assert where(simulation, passer) == "w1"
    (after,) = {account.virtual_us for account in request.accounts}
    assert after > before, "its service counts as any"
    taken = simulation.core.cell.registry.find("a", passer.request_id)
    assert taken is not None and taken.passing
    simulation.settle()


def test_a_round_looks_at_so_many_that_need_the_same_workers() -> None:
    simulation, gateway = cell()
    first = large(simulation, gateway)
    waiting = [large(simulation, gateway, 1) for _ in range(MOST_LOOKED_AT + 2)]
    behind = small(simulation, gateway)
    assert where(simulation, behind) == "", "a round does not go through all that wait"
    run_until(simulation, lambda: behind.outcome)
    assert sum(bool(client.outcome) for client in waiting) <= 6, "but it is no further back than that"
    done(simulation, first, *waiting, behind)
