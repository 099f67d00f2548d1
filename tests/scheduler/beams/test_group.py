"""Beam searches in the core: what they come to, whatever happens to their blocks, worker or neighbours."""

from __future__ import annotations

from random import Random

import pytest
from octavo_scheduler.beams.rule import BeamRow, BeamRule
from octavo_scheduler.events import Reported
from octavo_scheduler.policy import Policy

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.harness import Client, Simulation

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def cell(num_blocks: int = 80, max_seqs: int = 8, *, seed: int = 1, **policy: object) -> Simulation:
    simulation = Simulation(Random(seed), Policy(max_num_seqs=max_seqs, **policy), delay_us=0)  # type: ignore[arg-type]
    simulation.checked = True
    simulation.add_worker(
        ChaosWorker(simulation.rng, num_blocks=num_blocks, block_tokens=4, max_seqs=max_seqs, calm=True)
    )
    simulation.add_gateway()
    return simulation


def gateway(simulation: Simulation) -> int:
    return next(iter(simulation.gateways))


def search(simulation: Simulation, width: int, max_tokens: int, rule: BeamRule, **options: object) -> Client:
    return simulation.submit(gateway(simulation), PROMPT, max_tokens, n=width, beams=rule, **options)


def run(simulation: Simulation, steps: int) -> None:
    for _ in range(steps):
        simulation.advance(3000)
        for link in simulation.links:
            simulation.run_link(link)
        simulation.deliver(gateway(simulation))


def ends_well(simulation: Simulation, *clients: Client) -> None:
    simulation.settle()
    simulation.check_clean()
    assert [client.outcome for client in clients] == ["finished"] * len(clients)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 13])
def test_a_search_comes_to_what_the_textbook_says(width: int, max_tokens: int) -> None:
    """Clients compare tokens, reasons and scores with a search over whole token lists."""
    simulation = cell()
    client = search(simulation, width, max_tokens, BeamRule(width))
    ends_well(simulation, client)
    assert len(client.ended) == width and all(client.got)
    assert simulation.core.cell.counters["beam_steps"] <= max_tokens


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -1.0])
def test_end_tokens_end_hypotheses(early: bool, penalty: float) -> None:
    reasons: set[str] = set()
    for stop_ids in ((5, 6, 7, 8, 9, 10), tuple(range(20)), (11,)):
        simulation = cell()
        client = search(simulation, 4, 12, BeamRule(2, penalty, early, stop_ids))
        ends_well(simulation, client)
        assert len(client.got) == 2
        reasons |= {reason for reason, _count in client.ended.values()}
    assert "stop" in reasons or penalty > 1  # which favours the longest


@pytest.mark.parametrize(("max_tokens", "outcome"), [(1, "failed"), (2, "finished"), (9, "finished")])
def test_fewer_answers_than_were_asked_for_are_no_success(
    monkeypatch: pytest.MonkeyPatch, max_tokens: int, outcome: str
) -> None:
    """Two tokens have two answers of one token and four of two: what is there is right, what is not is no empty answer."""
    monkeypatch.setattr("tests.scheduler.chaos_beams.VOCAB", 2)
    simulation = cell()
    client = search(simulation, 4, max_tokens, BeamRule(4))
    simulation.settle()
    simulation.check_clean()
    assert client.outcome == outcome and all(client.got) == any(client.got) == (outcome == "finished")
    assert len({tuple(got) for got in client.got}) == (4 if outcome == "finished" else 1)


def test_nothing_is_told_before_the_end() -> None:
    simulation = cell()
    client = search(simulation, 3, 20, BeamRule(3))
    run(simulation, 10)
    assert client.accepted == 1 and not any(client.got) and simulation.core.cell.counters["beam_steps"] > 3
    ends_well(simulation, client)


def test_full_blocks_are_shared_and_only_the_partial_one_is_copied() -> None:
    """The beams of a group hold less than so many independent choices, and forks take no block."""
    simulation = cell()
    search(simulation, 4, 40, BeamRule(4))
    run(simulation, 40)
    (worker,) = simulation.core.cell.fleet.workers.values()
    tables = [sequence.blocks for sequence in worker.sequences.values()]
    assert len(tables) == 4 and simulation.core.cell.counters["beam_forks"] > 5
    prompt_blocks = len(PROMPT) // 4
    assert len(set().union(*tables)) < prompt_blocks + sum(len(table) - prompt_blocks for table in tables)
    lasts = [table[sequence.length // 4] for table, sequence in zip(tables, worker.sequences.values(), strict=True)]
    assert len(set(lasts)) == 4, "two beams write into one block"
    simulation.settle()
    simulation.check_clean()


def test_a_cancel_in_the_middle_gives_every_block_back() -> None:
    simulation = cell()
    client = search(simulation, 4, 40, BeamRule(4))
    run(simulation, 15)
    simulation.cancel(client)
    simulation.settle()
    simulation.check_clean()
    assert client.outcome == "cancelled" and not any(client.got)
    ((found, outcome, freed),) = client.cancel_answers
    assert (found, outcome) == (True, "cancelled") and freed > 0


@pytest.mark.parametrize("cache_off", [False, True])
def test_a_preempted_group_goes_on_where_it_was(cache_off: bool) -> None:
    """It leaves as a whole, computes what its beams have said again, and comes to the same beams."""
    simulation = cell(num_blocks=28, default_output_tokens=1, max_overcommit=4.0)
    first = simulation.submit(gateway(simulation), [7] * 9, 60)
    client = search(simulation, 4, 24, BeamRule(4), cache_off=cache_off)
    ends_well(simulation, first, client)
    counters = simulation.core.cell.counters
    assert counters["preemptions"] >= 4 and counters["recomputed_tokens"] > 2 * len(PROMPT)
    assert counters["beam_steps"] == 24, "steps were done again"


def test_a_group_that_was_preempted_often_runs_to_its_end() -> None:
    """Its blocks are then seated to its end, and forks share and copy as before."""
    simulation = cell(num_blocks=30, default_output_tokens=1, max_overcommit=4.0)
    ordinary = simulation.submit(gateway(simulation), [7] * 9, 60)
    client = search(simulation, 4, 24, BeamRule(4))
    ends_well(simulation, ordinary, client)
    request = simulation.core.cell.registry.find("default", client.request_id)
    assert request is not None and {choice.preemptions for choice in request.choices} == {4}


@pytest.mark.parametrize("dead", [False, True])
def test_a_lost_worker_is_no_loss(dead: bool) -> None:
    simulation = cell()
    client = search(simulation, 3, 30, BeamRule(2, 1.0, False, (5, 6)))
    run(simulation, 20)
    steps = simulation.core.cell.counters["beam_steps"]
    assert steps > 5
    simulation.disconnect(simulation.links[0], dead=dead)
    ends_well(simulation, client)
    assert simulation.core.cell.counters["worker_losses"] == 1


def test_a_resubmit_to_another_scheduler_searches_again() -> None:
    simulation = cell()
    client = search(simulation, 3, 10, BeamRule(3))
    run(simulation, 8)
    (lost,) = simulation.lose_gateway(gateway(simulation))
    simulation.resubmit(lost, simulation.add_gateway())
    ends_well(simulation, client)
    anew = cell()
    again = search(anew, 3, 10, BeamRule(3), request_id="again")
    again.attempt = 2
    ends_well(anew, again)


def test_whoever_attaches_is_told_the_same_at_the_end() -> None:
    """While it searches there is nothing to tell; afterwards the stored result is told from its beginning."""
    simulation = cell()
    client = search(simulation, 3, 10, BeamRule(2))
    run(simulation, 6)
    second = simulation.add_gateway()
    for _ in range(2):  # while it runs, and when it has ended
        reader = Client(client.request_id, second, PROMPT, 10, client.seeds, [], beams=client.beams)
        simulation.gateways[second][client.request_id] = reader
        simulation.attach(second, client.request_id)
        simulation.deliver(second)
        assert reader.accepted and bool(any(reader.got)) == bool(client.outcome)
        simulation.settle()
        simulation.deliver(second)
        assert reader.outcome == client.outcome == "finished" and reader.got == client.got and len(reader.ended) == 2
    simulation.check_clean()


def test_searches_beside_each_other_and_ordinary_requests() -> None:
    simulation = cell(max_seqs=12, num_blocks=120)
    clients = [search(simulation, 3, 15, BeamRule(3)), search(simulation, 4, 20, BeamRule(1, early_stopping=True))]
    clients += [simulation.submit(gateway(simulation), [at, 2, 3], 25, n=1 + at % 2) for at in range(3)]
    ends_well(simulation, *clients)
    assert simulation.core.cell.counters["preemptions"] == 0


def test_what_a_search_costs_is_what_its_beams_took() -> None:
    """The device time of all steps is booked to the two requests; the search's part grows with its width."""
    costs = []
    for width in (1, 4):
        simulation = cell()
        ends_well(simulation, search(simulation, width, 20, BeamRule(1)))
        registry = simulation.core.cell.registry
        request = registry.find("default", "r2")
        assert request is not None
        costs.append(request.cost)
    assert costs[1].decode_us > 1.5 * costs[0].decode_us
    assert costs[0].pool_byte_s < costs[1].pool_byte_s < 4 * costs[0].pool_byte_s, "common blocks count once"


@pytest.mark.parametrize(
    ("width", "max_tokens", "field"),
    [(9, 4, "beam_width"), (4, 300, "max_tokens")],
)
def test_what_can_never_fit_is_refused_at_once(width: int, max_tokens: int, field: str) -> None:
    """All beams run to their end together: a pool that would hold one of them is not enough."""
    simulation = cell(num_blocks=100)
    client = search(simulation, width, max_tokens, BeamRule(1))
    assert client.outcome == "rejected" and client.message.startswith(field), client.message
    one = simulation.submit(gateway(simulation), PROMPT, 300)
    ends_well(simulation, one)


@pytest.mark.parametrize(
    "row",
    [
        BeamRow(99, 9, (1,), (-0.5,)),
        BeamRow(-1, 8, (1,), (-0.5,)),
        BeamRow(-1, 9, (), ()),
    ],
    ids=["unknown", "another length", "empty"],
)
def test_a_row_that_cannot_be_true_closes_the_epoch(row: BeamRow) -> None:
    simulation = cell()
    search(simulation, 2, 5, BeamRule(2))
    (worker,) = simulation.core.cell.fleet.workers.values()
    leader = next(iter(worker.sequences.values()))
    row.seq = leader.seq if row.seq < 0 else row.seq
    report = Reported(simulation.now_us, worker.epoch, 1, 1, [leader.slot], [0], computed_len=[9], beam_rows=[row])
    simulation.feed(report)
    assert simulation.core.cell.counters["protocol_errors"] == 1 and "continuation" in simulation.closed[0]
