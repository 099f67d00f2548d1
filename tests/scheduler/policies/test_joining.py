"""Static, dynamic and continuous batching, in the core and in the simulator."""

from __future__ import annotations

from octavo.step import SeqView, StepBudget, compose
from octavo_scheduler.policies.about import ABOUT_US
from octavo_scheduler.policies.joining import IN_ORDER, PRESSED_US, beside
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult
from octavo_scheduler.simulate.hardware import Hardware

from tests.scheduler.policies.scenes import names, policy_of, queue_of, request
from tests.scheduler.scenes import done, make
from tests.scheduler.scenes import run as iterate
from tests.scheduler.simulate.scenes import ROUND, row, run

NO_TARGETS = {"default": {}}
OUTPUTS = {"A": 12, "B": 5, "C": 8, "D": 6, "E": 6}
STEP_MS = 13.0  # three decodes


def batch(batching: str, **options: object) -> dict[str, list[float]]:
    """A 12, B 5, C 8 tokens with D and E waiting, three slots: (first token, last token) of each in ms."""
    rows = [row(0, prompt=1, output=tokens, name=name) for name, tokens in OUTPUTS.items()]
    policy = Policy(
        order="fcfs", max_num_seqs=3, batching=batching, prefix_cache=False, slo_classes=NO_TARGETS, **options
    )  # type: ignore[arg-type]
    result: CellResult = run(rows, ROUND, policy)
    return {
        name: [tally.ttft_us / 1000, tally.e2e_us / 1000] for name, tally in zip(OUTPUTS, result.tallies, strict=True)
    }


def test_continuous_batching_fills_a_slot_in_the_next_iteration() -> None:
    """The answer to the report that releases B admits D into B's slot, beside A and C that run on."""
    simulation, gateway = make(Policy(order="fcfs", max_num_seqs=3), max_seqs=3)
    clients = {
        name: simulation.submit(gateway, [1, 2], tokens, cache_off=True, request_id=name)
        for name, tokens in OUTPUTS.items()
    }
    seats: dict[str, tuple[int, float]] = {}
    link = simulation.links[0]
    for _ in range(40):
        iterate(simulation)
        for sequence in link.worker.slots.values():
            name = next(item.request_id for item in clients.values() if sequence.seed in item.seeds)
            seats.setdefault(name, (sequence.slot, simulation.links[0].worker.steps))
    done(simulation, *clients.values())
    assert seats["D"][0] == seats["B"][0] and seats["E"][0] == seats["C"][0]
    # step 6 was launched before the worker knew how step 5 ended: the first one composed after that has D in it
    assert (seats["D"][1] - seats["B"][1], seats["E"][1] - seats["C"][1]) == (OUTPUTS["B"] + 1, OUTPUTS["C"] + 1)


def test_simulated_steps_lose_only_the_step_that_was_under_way() -> None:
    times = batch("continuous")
    assert 0 < times["D"][0] - times["B"][1] <= 2 * STEP_MS
    assert 0 < times["E"][0] - times["C"][1] <= 2 * STEP_MS


def test_static_batching_waits_for_the_whole_batch() -> None:
    times = batch("static")
    assert times["B"][1] < times["C"][1] < times["A"][1] < min(times["D"][0], times["E"][0])
    assert times["D"][0] == times["E"][0]
    assert max(end for _first, end in times.values()) > max(end for _first, end in batch("continuous").values())


def test_dynamic_batching_waits_for_company_for_a_bounded_time() -> None:
    rows = [row(0, prompt=1, output=5), row(30, prompt=1, output=5)]
    policy = Policy(max_num_seqs=2, batching="dynamic", batching_max_wait_us=100_000, slo_classes=NO_TARGETS)
    full = run(rows, ROUND, policy).tallies
    # the second one makes the batch full: both begin then
    assert full[0].ttft_us - full[1].ttft_us == 30_000
    alone = run(rows[:1], ROUND, policy).tallies[0]
    static = run(rows[:1], ROUND, Policy(max_num_seqs=2, batching="static", slo_classes=NO_TARGETS)).tallies[0]
    assert alone.ttft_us - static.ttft_us == 100_000


def test_dynamic_batching_does_not_let_the_clock_start_anew_for_each_arrival() -> None:
    rows = [row(40 * number, prompt=1, output=3) for number in range(4)]
    policy = Policy(
        order="sjf", max_num_seqs=16, batching="dynamic", batching_max_wait_us=100_000, slo_classes=NO_TARGETS
    )
    first = min(run(rows, ROUND, policy).tallies, key=lambda tally: tally.number)
    assert 100_000 <= first.ttft_us < 140_000


def test_a_full_queue_begins_at_once() -> None:
    rows = [row(0, prompt=1, output=3, name=f"r{number}") for number in range(4)]
    policy = Policy(max_num_seqs=2, batching="dynamic", batching_max_wait_us=10**7, slo_classes=NO_TARGETS)
    tallies = run(rows, ROUND, policy).tallies
    assert max(tally.ttft_us for tally in tallies) < 10**6


def test_two_workers_have_batches_of_their_own() -> None:
    simulation, gateway = make(Policy(max_num_seqs=2, batching="static"), workers=2)
    clients = [simulation.submit(gateway, [1, 2, number], 6, cache_off=True) for number in range(6)]
    iterate(simulation, 2)
    assert [len(worker.sequences) for worker in simulation.core.cell.fleet.workers.values()] == [2, 2]
    done(simulation, *clients)


def test_a_budget_of_512_with_two_decodes_leaves_510_tokens_of_prefill() -> None:
    seqs = [SeqView(0, 0, 10, 9, 100), SeqView(1, 0, 10, 9, 100), SeqView(2, 1, 4000, 0, 4000)]
    step = compose(seqs, StepBudget(512, 2048, 8))
    assert (step.decode_seqs, step.prefill_tokens) == (2, 510)


def test_the_core_orders_that_budget_and_the_simulated_worker_follows_it() -> None:
    """Two streams run, 2,000 tokens come: the first step with both holds 510 of them."""
    plain = Hardware(
        "plain", 10_000.0, 100.0, 0.0, 0.0, num_blocks=1001, block_bytes=1, link_us=0, front_us=0, back_us=0
    )
    rows = [
        row(0, prompt=1, output=100, name="a"),
        row(0, prompt=1, output=100, name="b"),
        row(200, prompt=2000, output=1),
    ]
    result = run(rows, plain, Policy(max_num_batched_tokens=512, slo_classes=NO_TARGETS))
    # the stall of a stream is the step with the whole budget: 10 ms and 510 tokens at 0.1 ms
    assert max(tally.itl_max_us for tally in result.tallies[:2]) == 10_000 + 510 * 100


def flooded(order: str) -> tuple[CellResult, list[int]]:
    """A tenant that floods eight slots, another that asks now and then: TTFT of the other's, microseconds."""
    rows = [row(0, prompt=64, output=40, tenant="flood", name=f"f{number}") for number in range(60)]
    rows += [row(200 + 300 * number, prompt=64, output=4, tenant="small", name=f"s{number}") for number in range(5)]
    result = run(rows, ROUND, Policy(order=order, max_num_seqs=8, slo_classes=NO_TARGETS))
    return result, [tally.ttft_us for tally in result.tallies if tally.row.tenant == "small"]


def test_a_newcomer_finds_a_slot_beside_a_flood_under_fair_policies() -> None:
    for order in ("fair", "slo-fair"):
        _result, small = flooded(order)
        # before the first one came nobody knew of its tenant: all slots were taken until their sequences ended
        assert max(small[2:]) < 200_000, order
    assert max(flooded("fcfs")[1]) > 500_000


def test_a_tenant_alone_has_all_slots_and_so_it_has_once_the_other_has_gone() -> None:
    rows = [row(0, prompt=8, output=40, tenant="a", name=f"a{number}") for number in range(16)]
    policy = Policy(order="fair", max_num_seqs=8, slo_classes=NO_TARGETS)
    assert max(sample.running for sample in run(rows, ROUND, policy).samples) == 8
    other = row(1, prompt=8, output=1, tenant="b")
    late = [row(62_000, prompt=8, output=40, tenant="a", name=f"late{number}") for number in range(16)]
    shared = run([rows[0], other, *[row(500, prompt=8, output=40, tenant="a", name=f"n{i}") for i in range(16)], *late],
                 ROUND, policy).samples  # fmt: skip
    assert max(sample.running for sample in shared if 500_000 < sample.at_us < 1_500_000) == 6
    assert max(sample.running for sample in shared if sample.at_us > 62_100_000) == 8


def test_tenants_that_all_hold_much_leave_each_other_nothing() -> None:
    rows = [row(number, prompt=8, output=40, tenant="ab"[number % 2], name=f"r{number}") for number in range(40)]
    samples = run(rows, ROUND, Policy(order="fair", max_num_seqs=8, slo_classes=NO_TARGETS)).samples
    assert max(sample.running for sample in samples) == 8


def test_a_held_tenant_is_passed_over_as_a_whole() -> None:
    queue = queue_of(policy_of("fair"))
    for number in range(50):
        queue.push(request(f"a{number}", tenant="a"))
    queue.push(request("b0", tenant="b"))
    seen = []
    with queue.in_turn(0) as turn:
        for item in turn:
            seen.append(item.request_id)
            if item.tenant == "a":
                turn.pass_tenant()
    assert seen == ["a0", "b0"]
    assert len(names(queue)) == 51 and names(queue)[0] == "a0"


def test_a_tenant_is_passed_over_inside_the_queue_of_a_class() -> None:
    classes = {"default": {}, "chat": {"policy": "fair"}}
    queue = queue_of(policy_of("fcfs", slo_classes=classes))
    for number in range(5):
        queue.push(request(f"c{number}", tenant="a", slo_class="chat"))
        queue.push(request(f"d{number}", tenant="a", arrival_us=number))
    seen = []
    with queue.in_turn(0) as turn:
        for item in turn:
            seen.append(item.request_id)
            turn.pass_tenant()
    assert len([name for name in seen if name.startswith("c")]) == 1  # the plain queue goes one by one
    assert len(seen) == 6 and len(names(queue)) == 10


def test_a_tenant_alone_is_served_in_order_until_much_waits() -> None:
    simulation, gateway = make(Policy(order="slo-fair", max_num_seqs=4), num_blocks=257)
    simulation.submit(gateway, [1, 2], 60, tenant="a")
    simulation.submit(gateway, [1, 3], 60, tenant="a")
    cell = simulation.core.cell
    (worker,) = cell.fleet.workers.values()
    assert worker.of_tenant["a"] == 2 and beside(cell, worker, "a") == IN_ORDER
    simulation.submit(gateway, [1, 4], 60, tenant="b")
    assert (beside(cell, worker, "a"), beside(cell, worker, "b")) == (2, 1)
    cell.now_us += ABOUT_US
    cell.tenant_asked("a")
    assert beside(cell, worker, "a") == IN_ORDER, "the other has asked for nothing in a while"
    worker.costs.prefill_token_us = 1 + PRESSED_US / worker.backlog
    assert beside(cell, worker, "a") == 2, "with much ahead short ones go first"
