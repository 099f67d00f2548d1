"""The core when processes leave, stand still or lie: drains, own standstills, stuck kvstores, keys that do not fit."""

from __future__ import annotations

from array import array

import pytest
from octavo.keys import extend_keys
from octavo_scheduler.events import ChoiceStart, Reported, Submitted, Tick
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.chaos import tokens_of
from tests.scheduler.harness import Client
from tests.scheduler.scenes import counters, done, make, run, run_until

# -- drain of a worker ---------------------------------------------------------------------------------------------


def test_a_draining_worker_finishes_what_it_runs_and_is_given_nothing_new() -> None:
    simulation, gateway = make(workers=2)
    clients = [simulation.submit(gateway, [number, 2, 3], 20) for number in range(4)]
    run_until(simulation, lambda: all(client.got[0] for client in clients))
    leaving = simulation.links[0]
    held = set(leaving.worker.sequences)
    assert held, "the worker that leaves must have work"
    leaving.worker.drain()
    run(simulation)
    clients += [simulation.submit(gateway, [9, number, 3], 5) for number in range(3)]
    run_until(simulation, lambda: "drained" in simulation.closed)
    assert set(leaving.worker.sequences) <= held
    done(simulation, *clients)
    assert all(client.times.attempts == 1 for client in clients)  # type: ignore[attr-defined]
    assert (counters(simulation)["workers_drained"], counters(simulation)["worker_losses"]) == (1, 0)


def test_with_only_draining_workers_new_requests_are_refused_and_waiting_ones_wait() -> None:
    simulation, gateway = make(max_seqs=1)
    first = simulation.submit(gateway, [1, 2, 3], 12)
    waiting = simulation.submit(gateway, [4, 5, 6], 3)
    run_until(simulation, lambda: first.got[0])
    simulation.links[0].worker.drain()
    run_until(simulation, lambda: not simulation.core.cell.fleet.accepting())
    late = simulation.submit(gateway, [7, 8, 9], 3)
    assert (late.outcome, late.reason) == ("rejected", "rejected-not-ready")
    run_until(simulation, lambda: "drained" in simulation.closed)
    assert first.outcome == "finished" and not waiting.outcome
    done(simulation, first, waiting)


def test_an_idle_draining_worker_leaves_at_once() -> None:
    simulation, _ = make()
    simulation.links[0].worker.drain()
    run(simulation, 3)
    assert simulation.closed == ["drained"]


# -- a process that stood still ------------------------------------------------------------------------------------


def test_own_standstill_is_not_the_workers_silence() -> None:
    policy = Policy(worker_silence_us=5 * SECOND_US, progress_timeout_us=10 * SECOND_US)
    simulation, gateway = make(policy)
    client = simulation.submit(gateway, [1, 2, 3], 30)
    run_until(simulation, lambda: client.got[0])
    simulation.now_us += (
        60 * SECOND_US
    )  # SIGSTOP, then SIGCONT: the tick comes before the reports that wait in the socket
    simulation.feed(Tick(simulation.now_us))
    assert simulation.closed == []
    done(simulation, client)
    assert client.times.attempts == 1  # type: ignore[attr-defined]


def test_a_silent_worker_is_still_found_after_a_standstill() -> None:
    simulation, gateway = make(Policy(worker_silence_us=5 * SECOND_US))
    simulation.submit(gateway, [1, 2, 3], 30)
    simulation.now_us += 60 * SECOND_US
    simulation.feed(Tick(simulation.now_us))
    for _ in range(7):
        simulation.now_us += SECOND_US
        simulation.feed(Tick(simulation.now_us))
    assert any("silent" in why for why in simulation.closed)


# -- a kvstore that is stuck ---------------------------------------------------------------------------------------


def test_a_stuck_store_costs_one_load_limit_and_is_then_left_alone() -> None:
    simulation, gateway = make(store=True, num_blocks=17)
    prompts = [[10 * number + k for k in range(16)] for number in range(6)]
    for prompt in prompts:
        done(simulation, simulation.submit(gateway, prompt, 2))
    worker = simulation.links[0].worker
    directory = simulation.core.cell.fleet.stores["host"]
    assert len(directory) > 8
    worker.freeze_transfers = True
    before = counters(simulation)["loads_started"]
    first = simulation.submit(gateway, prompts[0], 2)
    run_until(simulation, lambda: any(item.kind == "load" for item in worker.transfers.values()))
    simulation.now_us += simulation.policy.load_limit_us
    worker.freeze_transfers = False
    for transfer in worker.transfers.values():
        transfer.ok_blocks = 0
    run_until(simulation, lambda: first.outcome)
    second = simulation.submit(gateway, prompts[1], 2)
    done(simulation, first, second)
    assert counters(simulation)["loads_started"] == before + 1, "a stuck store was asked again at once"
    simulation.now_us += 6 * SECOND_US
    simulation.feed(Tick(simulation.now_us))
    done(simulation, simulation.submit(gateway, prompts[2], 2))
    assert counters(simulation)["loads_started"] == before + 2, "a store that answers again is asked again"


# -- keys of short prompts -----------------------------------------------------------------------------------------


def test_output_of_a_prompt_below_one_block_is_cached_under_the_namespace_root() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2], 14, seeds=[5])
    done(simulation, first)
    longer = simulation.submit(gateway, [1, 2, *first.got[0][:10]], 3)
    done(simulation, longer)
    assert longer.cached_tokens == 8


def test_keys_that_do_not_fit_the_prompt_are_not_trusted() -> None:
    simulation, gateway = make()
    done(simulation, simulation.submit(gateway, [1, 2, 3, 4, 5, 6, 7, 8, 9], 4))
    foreign = extend_keys(b"n" * 32, [1, 2, 3, 4, 5, 6, 7, 8], 4)
    simulation.gateways[gateway]["bad"] = bad = Client("bad", gateway, [1, 2, 3, 4, 9], 4, [77], [])
    simulation.clients.append(bad)
    event = Submitted(
        simulation.now_us, gateway, "bad", tokens_of(bad.prompt), 4, [ChoiceStart(77)], prompt_keys=foreign
    )
    simulation.feed(event)
    done(simulation, bad)
    assert bad.cached_tokens == 0


# -- a pool that is far too small for what was admitted ------------------------------------------------------------


def test_sixteen_growing_requests_in_a_pool_for_four_never_stall_nor_thrash() -> None:
    policy = Policy(default_output_tokens=1)  # nothing is reserved for growth: the worst prediction there is
    simulation, gateway = make(policy, store=True, num_blocks=33, max_seqs=16)
    clients = [simulation.submit(gateway, [number, 1, 2, 3, 4, 5], 90) for number in range(16)]
    stalled = longest = 0
    before = 0
    while not all(client.outcome for client in clients):
        run(simulation)
        tokens = sum(len(client.got[0]) for client in clients)
        stalled = 0 if tokens > before else stalled + 1
        longest, before = max(longest, stalled), tokens
        assert stalled < 50, "50 boundaries without a token"
    done(simulation, *clients)
    preempted = [client.times.preemptions for client in clients]  # type: ignore[attr-defined]
    assert 0 < max(preempted) <= 4, (preempted, longest)


@pytest.mark.parametrize("calm", [False, True])
def test_a_worker_that_claims_to_have_computed_what_does_not_exist_yet_is_closed_at_once(calm: bool) -> None:
    """Within its blocks, but beyond prompt and tokens: such KV would be indexed under keys that are not its own."""
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3, 4, 5], 40)
    run_until(simulation, lambda: len(client.got[0]) >= 2)
    link = simulation.links[0]
    (worker,) = simulation.core.cell.fleet.workers.values()
    (sequence,) = worker.sequences.values()
    beyond = sequence.length + (2 if calm else 1)
    assert beyond <= len(sequence.blocks) * worker.block_tokens
    tokens = array("I", [7] if calm else [])
    simulation.feed(
        Reported(
            simulation.now_us, link.epoch, worker.steps + 1, 1, slots=[sequence.slot], counts=[len(tokens)],
            tokens=tokens, computed_len=[beyond],
        )
    )  # fmt: skip
    assert len(simulation.closed) == 1 and f"computed_len {beyond} is impossible" in simulation.closed[0]
    assert counters(simulation)["protocol_errors"] == 1 and not simulation.core.cell.fleet.workers
    run_until(simulation, lambda: client.outcome)
    assert client.outcome == "finished", "another epoch resumes it"


@pytest.mark.parametrize("prefill_tokens", [0, 3])
def test_a_report_of_no_step_tells_nothing_of_times(prefill_tokens: int) -> None:
    simulation, gateway = make(store=True, workers=2)
    client = simulation.submit(gateway, [1] * 9, 12)
    run_until(simulation, lambda: len(client.got[0]) >= 2)
    for link in simulation.links:
        worker = simulation.core.cell.fleet.workers[link.epoch]
        before = worker.costs.predict_step_us(1, 1, 1)
        told = Reported(simulation.now_us, link.epoch, worker.steps, 0, wall_us=100, decode_seqs=1)
        told.prefill_tokens = prefill_tokens
        simulation.feed(told)
        assert worker.costs.predict_step_us(1, 1, 1) == before
    run_until(simulation, lambda: client.outcome)
    assert client.outcome == "finished" and not simulation.closed
