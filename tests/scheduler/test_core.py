"""The core against calm chaos workers: one behaviour per test, on a virtual clock."""

from __future__ import annotations

from random import Random

from octavo_scheduler.policy import Policy

from tests.scheduler.chaos import ChaosStore, ChaosWorker
from tests.scheduler.harness import Simulation


def make(
    policy: Policy | None = None, store: bool = False, workers: int = 1, **options: object
) -> tuple[Simulation, int]:
    simulation = Simulation(Random(1), policy, delay_us=0)
    host = ChaosStore(Random(2)) if store else None
    if host is not None:
        simulation.add_store(host)
    for number in range(workers):
        settings = {"num_blocks": 33, "max_seqs": 4, "calm": True, "store": host, **options}
        simulation.add_worker(ChaosWorker(Random(3), f"w{number}", **settings))  # type: ignore[arg-type]
    return simulation, simulation.add_gateway()


def test_one_request_finishes_with_the_expected_tokens() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3, 4, 5], 10)
    simulation.settle()
    assert client.outcome == "finished" and client.ended[0] == ("length", 10)
    simulation.check_clean()


def test_siblings_share_one_prefill() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, list(range(1, 19)), 6, n=4)
    simulation.settle()
    assert client.outcome == "finished"
    assert len({tuple(tokens) for tokens in client.got}) == 4
    assert simulation.core.cell.counters["prefill_tokens"] == 18
    simulation.check_clean()


def test_a_full_pool_preempts_and_all_finish() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1), num_blocks=17)
    clients = [simulation.submit(gateway, [9, i, 2], 40) for i in range(4)]
    simulation.settle()
    assert [client.outcome for client in clients] == ["finished"] * 4
    assert simulation.core.cell.counters["preemptions"] > 0
    simulation.check_clean()
