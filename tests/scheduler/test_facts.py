"""What the core says of every wait, refusal and interrupted residency, and where cached tokens came from."""

from __future__ import annotations

from array import array

from octavo.keys import extend_keys
from octavo_scheduler.core import Core
from octavo_scheduler.events import (
    ChoiceStart,
    FirstToken,
    GatewayJoined,
    Reported,
    StoreInventory,
    StoreJoined,
    Submitted,
    TransferDone,
    WorkerJoined,
)
from octavo_scheduler.orders import Admit, Fact, Load
from octavo_scheduler.policy import Policy

from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import done, make, run, run_until


def named(simulation: Simulation, name: str) -> list[Fact]:
    return [fact for fact in simulation.facts if fact.name == name]


def test_a_load_that_ends_in_the_report_of_the_first_token_counts_as_cached() -> None:
    core = Core(Policy(), 0)
    core.handle(StoreJoined(1, "s", 1))
    root = bytes(32)
    prompt = list(range(20))
    keys = extend_keys(root, prompt, 16)
    core.handle(StoreInventory(2, "s", 1, 0, keys, True))
    core.handle(WorkerJoined(3, 7, "w", 33, 16, 4, 512, block_bytes=64, store_id="s"))
    core.handle(GatewayJoined(4, 1, "g"))
    worker = core.cell.fleet.workers[7]
    worker.costs.prefill_token_us = 1e6  # so that a load is worth it
    effects = core.handle(
        Submitted(5, 1, "r", array("I", prompt), 2, [ChoiceStart(1)], prompt_keys=keys, namespace_root=root)
    )
    ordered = [order for _epoch, orders in effects.orders for order in orders]
    load = next(order for order in ordered if isinstance(order, Load))
    admit = next(order for order in ordered if isinstance(order, Admit))
    assert load.keys == keys
    report = Reported(
        6, 7, 1, 1, slots=[admit.slot], counts=[1], tokens=array("I", [9]), computed_len=[20],
        transfers_done=[TransferDone(load.xfer_id, 1, 64, 1, 1, "nvme")],
        first_tokens=[FirstToken(admit.seq, 900, 50, 1, load_us=800, sample_us=20, dispatch_us=7, report_us=9)], prefill_tokens=4,
    )  # fmt: skip
    core.handle(report)
    request = core.cell.registry.find("default", "r")
    assert request is not None
    assert request.cached_tokens == 16 and request.cached_by_tier == {"nvme": 16}
    assert (request.kv_load_us, request.worker_wait_us, request.prefill_us, request.sample_us) == (800, 100, 50, 20)
    assert (request.dispatch_us, request.report_us) == (7, 9)


def test_an_end_in_the_queue_leaves_its_wait() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    first = simulation.submit(gateway, [1, 2, 3], 30)
    run_until(simulation, lambda: first.got[0])
    waiting = simulation.submit(gateway, [4, 5, 6], 4)
    run(simulation)
    simulation.cancel(waiting)
    done_facts = [fact for fact in named(simulation, "queue") if fact.attributes["outcome"] == "cancelled"]
    assert len(done_facts) == 1 and done_facts[0].end_us > done_facts[0].start_us
    assert [fact.attributes["reason"] for fact in named(simulation, "cancel")] == ["client_cancel"]
    done(simulation, first)


def test_a_refusal_is_a_fact_with_its_reason() -> None:
    simulation, gateway = make(Policy(max_waiting_requests=1, max_num_seqs=1))
    running = simulation.submit(gateway, [1, 2, 3], 20)
    run_until(simulation, lambda: running.got[0])
    clients = [simulation.submit(gateway, [4, 5, number], 2) for number in range(3)]
    run(simulation)
    facts = named(simulation, "rejected")
    assert [fact.attributes["reason"] for fact in facts] == ["rejected-queue-requests"] * 2
    assert all(fact.attributes["waiting"] == 1 for fact in facts)
    done(simulation, running, clients[0])


def test_a_deadline_waits_for_its_blocks_like_a_cancel() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100, deadline_us=40_000)
    simulation.settle()
    assert client.outcome == "deadline"
    (cancel,) = named(simulation, "cancel")
    assert cancel.attributes["reason"] == "deadline" and cancel.attributes["blocks_freed"] >= 1
    simulation.check_clean()


def test_a_lost_worker_leaves_an_attempt_and_a_wait() -> None:
    simulation, gateway = make(workers=2)
    client = simulation.submit(gateway, [1, 2, 3], 40)
    run_until(simulation, lambda: client.got[0])
    epoch = next(worker.epoch for worker in simulation.core.cell.fleet.workers.values() if worker.sequences)
    simulation.disconnect(next(link for link in simulation.links if link.epoch == epoch), dead=True)
    done(simulation, client)
    (attempt,) = named(simulation, "attempt")
    (waited,) = named(simulation, "preempted")
    assert attempt.attributes["reason"] == waited.attributes["reason"] == "worker-lost"
    assert attempt.attributes["worker_id"] != waited.attributes["worker_id"]
    assert attempt.attributes["tokens"] >= 1 and waited.attributes["attempt"] == 2
    assert waited.attributes["recomputed_tokens"] > 0
    assert simulation.core.cell.counters["recomputed_tokens"] == waited.attributes["recomputed_tokens"]


def test_the_end_says_what_a_request_was() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3, 4, 5], 10)
    done(simulation, client)
    (end,) = named(simulation, "request_end")
    said = end.attributes
    assert (said["outcome"], said["tokens"], said["prompt_tokens"], said["choices"]) == ("finished", 10, 5, 1)
    assert 0 < int(said["first_token_us"]) <= end.end_us - end.start_us
