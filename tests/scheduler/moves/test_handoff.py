"""Handoff: what moves, what is recomputed, credit, and every way to be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import Policy
from octavo_scheduler.tiers import Transfer

from tests.scheduler.chaos import ChaosWorker, token_at
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Link, Simulation
from tests.scheduler.scenes import counters, done, run, run_until

CHUNKS = Policy(max_num_batched_tokens=8, max_num_batched_tokens_alone=8, max_offload_blocks=2)
PROMPT = list(range(1, 42))
BLOCK = 4


def pair(
    policy: Policy = CHUNKS,
    roles: tuple[str, ...] = ("prefill", "decode"),
    blocks: int | tuple[int, ...] = 65,
    seqs: int = 4,
) -> tuple[Simulation, int]:
    simulation = Simulation(Random(1), policy, delay_us=0)
    store = ChaosStore(Random(2))
    for number, role in enumerate(roles):
        worker = ChaosWorker(
            Random(3),
            f"w{number}",
            num_blocks=blocks if isinstance(blocks, int) else blocks[number],
            max_seqs=seqs,
            store=store,
            calm=True,
            role=role,
        )
        worker.calm_steps = 2
        simulation.add_worker(worker)
    simulation.add_store(store)
    return simulation, simulation.add_gateway()


def fact_of(simulation: Simulation) -> dict[str, Any]:
    return next(fact.attributes for fact in reversed(simulation.facts) if fact.name == "handoff")


def test_the_decode_recomputes_less_than_a_block() -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 12)
    done(simulation, client)
    prefiller, decoder = (link.worker for link in simulation.links)
    assert counters(simulation)["handoffs_done"] == 1
    assert counters(simulation)["handoff_recomputed_tokens"] == len(PROMPT) % BLOCK
    assert prefiller.computed_tokens == len(PROMPT)
    assert decoder.computed_tokens == len(PROMPT) % BLOCK + 11  # the tail, and all tokens but the last
    said = fact_of(simulation)
    assert (said["cause"], said["source"], said["target"], said["blocks"]) == ("done", "w0", "w1", len(PROMPT) // BLOCK)


def test_blocks_leave_while_the_prefill_runs() -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 12)
    done(simulation, client)
    assert 0 < counters(simulation)["handoff_early_blocks"] < counters(simulation)["handoff_blocks"]
    assert counters(simulation)["handoff_preloaded_blocks"] > 0


@pytest.mark.parametrize("prompt", [3, 4, 5, 8, 9])
def test_short_prompts_and_block_edges(prompt: int) -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT[:prompt], 6)
    done(simulation, client)
    assert counters(simulation)["handoff_recomputed_tokens"] == (prompt % BLOCK if prompt > BLOCK else 0)


def test_what_no_decode_pool_can_hold_is_served_whole_by_a_prefill_worker() -> None:
    simulation, gateway = pair(blocks=(17, 11))
    client = simulation.submit(gateway, PROMPT, 12)  # 13 blocks; the decode worker has 10
    after = simulation.submit(gateway, PROMPT[:9], 6)  # and it keeps nobody behind it waiting
    done(simulation, client)
    done(simulation, after)
    assert counters(simulation)["handoffs_started"] <= 1  # the short one's


def test_one_token_of_output_ends_where_it_was_prefilled() -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 1)
    done(simulation, client)
    assert counters(simulation)["handoffs_started"] == 0


def test_a_stop_at_the_first_token_needs_no_decode() -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 9, seeds=[77], stop_ids=[token_at(77, len(PROMPT))])
    done(simulation, client)
    assert client.ended[0] == ("stop", 1)
    assert fact_of(simulation)["cause"] == "short"
    assert simulation.links[1].worker.computed_tokens == 0


def test_private_prompts_are_served_in_one_place() -> None:
    simulation, gateway = pair()
    done(simulation, simulation.submit(gateway, PROMPT[::-1], 5, cache_off=True))
    assert counters(simulation)["handoffs_started"] == 0
    assert simulation.links[0].worker.computed_tokens == 0


@pytest.mark.parametrize("n", [2, 3])
def test_choices_are_handed_over_once_and_fork_where_they_decode(n: int) -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 5, n=n)
    done(simulation, client)
    prefiller, decoder = (link.worker for link in simulation.links)
    assert counters(simulation)["handoffs_done"] == 1 and counters(simulation)["handoffs_failed"] == 0
    assert prefiller.computed_tokens == len(PROMPT), "one prefill, of one choice"
    # each its tokens but the last, the tail of the prompt once for the first choice and once for the fork of the others
    assert decoder.computed_tokens <= n * 4 + 2 * (len(PROMPT) % BLOCK)
    assert counters(simulation)["handoff_blocks"] == len(PROMPT) // BLOCK, "each block travels once"
    assert all(len(tokens) == 5 for tokens in client.got)


def test_a_first_choice_that_ends_with_its_first_token_leaves_the_others_their_prefill() -> None:
    simulation, gateway = pair()
    stop = token_at(77, len(PROMPT))
    seed = next(at for at in range(1000) if token_at(at, len(PROMPT)) != stop)
    client = simulation.submit(gateway, PROMPT, 9, seeds=[77, seed], stop_ids=[stop])
    done(simulation, client)
    assert client.ended[0] == ("stop", 1) and len(client.got[1]) >= 1
    assert counters(simulation)["handoffs_done"] == 1
    assert simulation.links[0].worker.computed_tokens == len(PROMPT)


def test_choices_that_find_no_slot_beside_the_first_follow() -> None:
    simulation, gateway = pair(seqs=2)
    blocking = simulation.submit(gateway, PROMPT[:9], 30)
    run_until(simulation, lambda: len(blocking.got[0]) > 3)
    client = simulation.submit(gateway, PROMPT, 6, n=2)
    done(simulation, blocking, client)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("steps", range(1, 14, 2))
def test_a_group_survives_the_loss_of_either_worker_on_the_way(victim: int, steps: int) -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 6, n=2)
    run(simulation, steps)
    simulation.disconnect(simulation.links[victim], dead=True)
    done(simulation, client)


def test_without_a_kvstore_one_worker_does_both() -> None:
    simulation, gateway = pair()
    simulation.kill_store("host")
    done(simulation, simulation.submit(gateway, PROMPT, 5))
    assert counters(simulation)["handoffs_started"] == 0


def test_between_hosts_the_blocks_come_from_the_other_kvstore() -> None:
    simulation = Simulation(Random(1), CHUNKS, delay_us=0)
    stores = [ChaosStore(Random(2), "near"), ChaosStore(Random(2), "far")]
    stores[0].peers, stores[1].peers = {"far": stores[1]}, {"near": stores[0]}
    for number, role in enumerate(("prefill", "decode")):
        worker = ChaosWorker(
            Random(3), f"w{number}", num_blocks=65, max_seqs=4, store=stores[number], calm=True, role=role
        )
        worker.calm_steps = 2
        simulation.add_worker(worker)
    for store in stores:
        simulation.add_store(store)
    gateway = simulation.add_gateway()
    client = simulation.submit(gateway, PROMPT, 12)
    done(simulation, client)
    assert counters(simulation)["handoffs_done"] == 1
    assert counters(simulation)["handoff_preloaded_blocks"] > 0
    assert simulation.links[1].worker.computed_tokens == len(PROMPT) % BLOCK + 11


def test_prefill_workers_alone_serve_whole_requests() -> None:
    simulation, gateway = pair(roles=("prefill", "prefill"))
    done(simulation, simulation.submit(gateway, PROMPT, 5))
    assert counters(simulation)["handoffs_started"] == 0


def test_a_second_turn_is_prefilled_where_its_beginning_is_cached() -> None:
    """A decode worker that holds all but little needs nobody's help."""
    simulation, gateway = pair()
    first = simulation.submit(gateway, PROMPT, 8)
    done(simulation, first)
    again = simulation.submit(gateway, PROMPT + first.got[0][:-1], 4)
    done(simulation, again)
    more = simulation.submit(gateway, PROMPT + first.got[0] + [60, 61, 62, 63, 64, 65], 4)  # a tool's answer
    done(simulation, more)
    assert counters(simulation)["handoffs_started"] == 1


def test_a_pool_without_room_gives_no_credit() -> None:
    """Nothing is prefilled for a pool that is full; once it is not, the prefill begins."""
    simulation, gateway = pair(blocks=17)
    fleet = simulation.core.cell.fleet
    decoder = next(worker for worker in fleet.workers.values() if worker.role == "decode")
    taken = decoder.pool.take(12)
    table = Transfer(10**9, "offload", list(taken), [], simulation.now_us)  # somebody's hold, so that the audit agrees
    for block in taken:
        decoder.pool.hold_transfer(block)
        decoder.pool.drop(block)
    decoder.transfers[table.xfer_id] = table
    client = simulation.submit(gateway, PROMPT, 5)
    run(simulation, 40)
    assert counters(simulation)["handoffs_started"] == 0 and not client.got[0]
    del decoder.transfers[table.xfer_id]
    for block in taken:
        decoder.pool.drop_transfer(block)
    simulation.core.cell.admission_due = True  # as the report of such an end sets it
    done(simulation, client)
    assert counters(simulation)["handoffs_done"] == 1


def test_exports_stop_when_the_credit_ends_on_the_way() -> None:
    simulation, gateway = pair(blocks=33)
    client = simulation.submit(gateway, PROMPT * 2, 5)
    fleet = simulation.core.cell.fleet
    decoder = next(worker for worker in fleet.workers.values() if worker.role == "decode")
    run(simulation, 1)
    assert counters(simulation)["handoffs_started"] == 1
    slots, decoder.free_slots = decoder.free_slots, []
    run(simulation, 6)
    stopped_at = counters(simulation)["exported_blocks"]
    run(simulation, 2)
    assert counters(simulation)["exported_blocks"] == stopped_at
    assert counters(simulation)["handoff_credit_waits"] > 0
    decoder.free_slots = slots
    done(simulation, client)
    assert counters(simulation)["handoffs_done"] == 1


def test_a_decode_worker_waits_for_a_busy_prefill_worker() -> None:
    simulation, gateway = pair(seqs=1)
    clients = [simulation.submit(gateway, [seed, *PROMPT], 1 + seed) for seed in range(1, 5)]
    done(simulation, *clients)
    assert counters(simulation)["handoffs_done"] == len(clients)


# -- either end killed, at five points ------------------------------------------------------------------------------


def exporting(simulation: Simulation) -> bool:
    return bool(simulation.links[0].worker.transfers)


def preloading(simulation: Simulation) -> bool:
    return any(transfer.kind == "load" for transfer in simulation.links[1].worker.transfers.values())


POINTS: dict[str, Callable[[Simulation], bool]] = {
    "admitted": lambda simulation: counters(simulation)["handoffs_started"] > 0,
    "exporting": exporting,
    "preloading": preloading,
    "first token": lambda simulation: bool(simulation.core.cell.arriving),
    "decoding": lambda simulation: counters(simulation)["handoffs_done"] > 0,
}


def kill_at(point: str, victim: int) -> Simulation:
    simulation, gateway = pair(roles=("prefill", "decode", "decode"))
    client = simulation.submit(gateway, PROMPT, 12)
    run_until(simulation, lambda: POINTS[point](simulation))
    simulation.disconnect(simulation.links[victim], dead=True)
    done(simulation, client)
    simulation.check_integrity()
    return simulation


@pytest.mark.parametrize("victim", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("point", list(POINTS))
def test_killed_at(point: str, victim: int) -> None:
    """No block is held by anybody afterwards, and the client has the same tokens: `done` checks both."""
    simulation = kill_at(point, victim)
    assert not simulation.core.cell.arriving
    assert all(not worker.promised for worker in simulation.core.cell.fleet.workers.values())


@pytest.mark.parametrize("point", list(POINTS))
def test_cancelled_at(point: str) -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 12)
    run_until(simulation, lambda: POINTS[point](simulation))
    simulation.cancel(client)
    simulation.settle()
    assert client.outcome == "cancelled"
    simulation.check_clean()
    if point != "decoding":
        assert fact_of(simulation)["cause"] == "cancelled"


@pytest.mark.parametrize("point", ["exporting", "preloading", "first token"])
def test_the_kvstore_killed_at(point: str) -> None:
    simulation, gateway = pair()
    client = simulation.submit(gateway, PROMPT, 12)
    run_until(simulation, lambda: POINTS[point](simulation))
    simulation.kill_store("host")
    done(simulation, client)


def test_a_request_whose_handoffs_fail_is_served_in_one_place() -> None:
    """A kvstore that keeps nothing: after two vain handoffs the decode worker computes the prompt itself."""
    simulation, gateway = pair()
    store = simulation.stores["host"][0]
    store.put = lambda key, content, parent=b"": None  # type: ignore[method-assign]
    done(simulation, simulation.submit(gateway, PROMPT, 12))
    assert counters(simulation)["handoffs_failed"] >= 1


def test_the_order_of_the_workers_does_not_matter_to_the_hybrid() -> None:
    """`both` decides by cost: with nobody decoding there, handing over only adds a transfer."""
    simulation, gateway = pair(roles=("prefill", "both"))
    done(simulation, simulation.submit(gateway, PROMPT, 5))
    assert counters(simulation)["handoffs_started"] == 0


def by_name(simulation: Simulation, name: str) -> Worker:
    worker = simulation.core.cell.fleet.by_name(name)
    assert worker is not None
    return worker


def test_a_prefill_worker_of_a_hybrid_keeps_what_costs_more_to_hand_over_than_it_spares() -> None:
    """It has nothing else to do, and the other one decodes: on two workers the hybrid is no worse than both for both."""
    simulation, gateway = pair(roles=("prefill", "both"), blocks=129, seqs=8)
    running = [simulation.submit(gateway, [seed] * 3, 60) for seed in range(1, 7)]
    run(simulation, 4)
    assert len(simulation.links[1].worker.sequences) == 6, "what makes no difference is none of its business"
    late = simulation.submit(gateway, PROMPT, 5)
    run_until(simulation, lambda: late.got[0])
    assert [sequence.choice.request.request_id for sequence in by_name(simulation, "w0").sequences.values()] == [
        late.request_id
    ]
    done(simulation, late, *running)
    assert counters(simulation)["handoffs_started"] == 0


def test_a_prefill_worker_of_a_hybrid_keeps_nothing_that_its_pool_cannot_hold_to_the_end() -> None:
    simulation, gateway = pair(roles=("prefill", "both"), blocks=(17, 129), seqs=8)
    running = [simulation.submit(gateway, [seed] * 3, 60) for seed in range(1, 7)]
    run(simulation, 4)
    late = simulation.submit(gateway, PROMPT, 40)  # 20 blocks; it has 16
    run_until(simulation, lambda: late.got[0])
    assert len(by_name(simulation, "w0").sequences) == 0 or counters(simulation)["handoffs_started"] == 1
    done(simulation, late, *running)


def test_a_prefill_worker_beside_one_for_decode_keeps_nothing() -> None:
    simulation, gateway = pair()
    done(simulation, simulation.submit(gateway, PROMPT, 5))
    assert counters(simulation)["handoffs_done"] == 1


def test_a_hybrid_hands_over_what_would_hold_up_its_decodes() -> None:
    simulation, gateway = pair(roles=("prefill", "both"), blocks=129, seqs=8)
    running = [simulation.submit(gateway, [seed] * 3, 60) for seed in range(1, 7)]
    run(simulation, 4)
    link: Link = simulation.links[1]
    assert len(link.worker.sequences) == 6
    by_name(
        simulation, "w0"
    ).prefill_share = 0.9  # it is there for prompts: a decode would stand still for most of its time
    late = simulation.submit(gateway, PROMPT, 5)
    done(simulation, late, *running)
    assert counters(simulation)["handoffs_done"] == 1
