"""Loads in a cell: computed from the head meanwhile, booked, told in the kv.load span; a link that slows down and recovers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from octavo.keys import extend_keys
from octavo_scheduler.books.ledger_wire import ledger_answer, ledger_figures, totals
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.tally import Tally
from octavo_scheduler.simulate.workload import NAMESPACE, Row, prompt_of

from tests.scheduler.harness import Client, Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until


def offloaded(policy: Policy, prompt: list[int], **options: Any) -> tuple[Simulation, int]:
    """A cell whose store holds the prompt's blocks, and whose pool holds them no more."""
    simulation, gateway = make(policy, store=True, num_blocks=25, **options)
    store = simulation.links[0].worker.store
    simulation.add_store(store)  # type: ignore[arg-type]
    first = simulation.submit(gateway, prompt, 2)
    run_until(simulation, lambda: first.outcome and len(store.held) >= len(prompt) // 4)  # type: ignore[union-attr]
    simulation.flush_store("host")
    (worker,) = simulation.core.cell.fleet.workers.values()
    for key in worker.index.heads():
        worker.index.drop(key)
    worker.costs.prefill_token_us = 100_000.0
    return simulation, gateway


def asked_again(simulation: Simulation, gateway: int, prompt: list[int], **options: Any) -> Client:
    again = simulation.submit(gateway, [*prompt, 9, 9], 4, **options)
    done(simulation, again)
    return again


@pytest.mark.parametrize("steps", [1, 4, 40])
def test_the_head_is_computed_while_the_tail_is_loaded(steps: int) -> None:
    """Whichever of both ends first: the chaos worker checks every position that is read."""
    prompt = list(range(64))
    policy = Policy(load_path="overlap", max_num_batched_tokens=8, max_num_batched_tokens_alone=8)
    simulation, gateway = offloaded(policy, prompt)
    (worker,) = simulation.core.cell.fleet.workers.values()
    worker.link.bytes_per_us, worker.block_bytes = 0.005, 1000  # a block takes 200 ms, as its prefill does 400
    link = simulation.links[0].worker
    link.calm_steps = steps
    before = link.computed_tokens
    again = asked_again(simulation, gateway, prompt)
    (load,) = [fact for fact in simulation.facts if fact.name == "kv.load"]
    said = load.attributes
    assert said["decision"] == "overlap" and 0 < int(said["head_blocks"]) < 16
    assert said["blocks"] == said["blocks_asked"] == 16 - int(said["head_blocks"])
    assert link.computed_tokens - before == 66 - 4 * int(said["blocks"]) + 3
    assert again.cached_tokens == 4 * int(said["blocks"])
    assert {"lookup_ms", "queue_ms", "transfer_ms", "deserialize_ms", "suffix_prefill_ms"} <= said.keys()
    assert said["predicted_overlap_ms"] < min(said["predicted_recompute_ms"], said["predicted_whole_load_ms"])


@pytest.mark.parametrize("ok", [0, 1])
def test_a_load_that_falls_short_beside_a_head_costs_prefill_only(ok: int) -> None:
    prompt = list(range(64))
    simulation, gateway = offloaded(Policy(load_path="overlap"), prompt)
    store = simulation.links[0].worker.store
    assert store is not None
    kept = list(store.held)[:: 16 // (ok + 1)] if ok else []
    missing = [key for key in store.held if key not in kept]
    for key in missing:
        del store.held[key]  # the scheduler does not know
    asked_again(simulation, gateway, prompt)


def test_a_sequence_that_leaves_while_both_go_on_leaves_nothing() -> None:
    prompt = list(range(64))
    policy = Policy(load_path="overlap", max_num_batched_tokens=8, max_num_batched_tokens_alone=8)
    simulation, gateway = offloaded(policy, prompt)
    simulation.links[0].worker.calm_steps = 6
    again = simulation.submit(gateway, [*prompt, 9, 9], 4)
    run(simulation, 3)
    simulation.cancel(again)
    simulation.settle()
    simulation.check_clean()
    assert counters(simulation)["abandoned_copies"] == 1


def test_a_load_is_booked_with_its_tier() -> None:
    prompt = list(range(64))
    simulation, gateway = offloaded(Policy(load_path="load"), prompt)
    asked_again(simulation, gateway, prompt, tenant="default")
    cell = simulation.core.cell
    book = cell.ledger.books["tier_load"]
    assert (book.entries, book.hits, book.hit_tokens) == (1, 1, 64)
    assert book.saved_ms == pytest.approx(6400, rel=0.1) and 0 <= book.cost_ms < 100 and book.cost_bytes == 16_000
    answer = ledger_answer(cell, "tier_load")
    assert [(row.tenant, row.prompt) for row in answer.rows] == [("default", "32-127")]
    assert not ledger_answer(cell, "tier_load", "nobody").rows
    assert totals(cell)["tier_load"].net_ms == book.net_ms
    assert ledger_figures(cell)["ledger_tenant_net_ms"]["tier_load", "default"] == book.net_ms


# -- a link that slows down --------------------------------------------------------------------------------------------

HARDWARE = Hardware(
    "w", 4000.0, 50.0, 200.0, 0.02, num_blocks=2001, block_bytes=1_000_000, host_blocks=200_000,
    tier_bytes_per_us=20_000.0, tier_fixed_us=300.0, max_model_len=8192,
)  # fmt: skip
APART_US = 200_000
SLOW_AT, BACK_AT, REQUESTS = 60, 260, 900


def slowed(load_path: str, share: float) -> tuple[CellRun, list[Tally], dict[int, str]]:
    """Prompts of 1,024 stored tokens, one after another; the link is 1,000 times slower from SLOW_AT to BACK_AT."""
    rows = [Row(number * APART_US, ((f"d{number}", 1024), (f"q{number}", 32)), 1) for number in range(REQUESTS)]
    ways: dict[int, str] = {}

    def watch(_event: object, effects: Any) -> None:
        for fact in effects.facts:
            if fact.name == "kv.load":
                ways[int(str(fact.attributes["octavo.request_id"]).removeprefix("r"))] = str(
                    fact.attributes["decision"]
                )

    policy = Policy(order="fcfs", load_path=load_path, counterfactual_share=share)
    run_ = CellRun(policy, HARDWARE, 1, list(enumerate(rows)), 1_000_000, watch)
    for number in range(REQUESTS):
        keys = extend_keys(NAMESPACE, prompt_of(((f"d{number}", 1024),)), HARDWARE.block_tokens)
        for store in run_.stores.values():
            store.hold(keys)

    def at(speed: float) -> Any:
        def change(worker: Any) -> None:
            worker.hardware = replace(worker.hardware, tier_bytes_per_us=speed)

        return change

    run_.at(SLOW_AT * APART_US - 1000, at(20.0))
    run_.at(BACK_AT * APART_US - 1000, at(20_000.0))
    result = run_.run()
    return run_, sorted(result.tallies, key=lambda tally: tally.number), ways


def test_loads_stop_on_a_slow_link_and_come_back() -> None:
    run_, tallies, ways = slowed("auto", 0.01)
    assert sum(number in ways for number in range(SLOW_AT)) >= 0.9 * SLOW_AT
    settled = range(SLOW_AT + 50, BACK_AT)
    assert sum(number in ways for number in settled) <= 0.04 * len(settled), "the sampled ones alone"
    _, plain, _ = slowed("recompute", 0.0)

    def median_ms(of: list[Tally]) -> float:
        return sorted(of[number].ttft_us for number in settled)[len(settled) // 2] / 1000

    assert median_ms(tallies) <= 1.1 * median_ms(plain)
    last = range(REQUESTS - 100, REQUESTS)
    assert sum(number in ways for number in last) >= 90, "they came back"
    assert run_.core.cell.ledger.books["tier_load"].hits > 0
