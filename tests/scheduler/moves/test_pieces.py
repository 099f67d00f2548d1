"""Prefills that are handed over go in pieces, so that most of their blocks leave while the rest is computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from octavo_scheduler.events import Calibration, WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.pieces import LEAST_BLOCKS, piece_tokens
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.hardware import given_models
from octavo_scheduler.simulate.roles import role_figures
from octavo_scheduler.simulate.workload import Row

from tests.scheduler.moves.test_handoff import CHUNKS, PROMPT, pair
from tests.scheduler.scenes import done, run_until


def worker(fixed_us: float = 5000.0) -> Worker:
    made = Worker(
        WorkerJoined(
            0, 1, "w", 65, 16, 4, 8000, block_bytes=2_000_000, calibration=Calibration(fixed_us, 30.0, 1.0, 0.0)
        ),
        Policy(),
    )
    made.link.bytes_per_us = 5000.0
    return made


def test_a_piece_costs_as_much_in_steps_as_it_leaves_to_copy() -> None:
    source, target = worker(), worker()
    piece = piece_tokens(source, target, 3000, 1, 2048)
    assert piece % 16 == 0

    def cost_us(tokens: int) -> float:
        return 3000 / tokens * 5000.0 + tokens * 2 * 2_000_000 / 5000.0 / 16

    assert cost_us(piece) == pytest.approx(min(map(cost_us, range(16, 3000, 16))), rel=0.01)
    assert piece_tokens(source, target, 3000, 4, 2048) == pytest.approx(2 * piece, abs=16), (
        "others wait for each step too"
    )
    source.link.bytes_per_us = target.link.bytes_per_us = 1e9
    assert piece_tokens(source, target, 3000, 1, 2048) == 2048, "copies that cost nothing ask for whole steps"
    source.link.bytes_per_us = 0.001
    assert piece_tokens(source, target, 3000, 1, 2048) == 16 * LEAST_BLOCKS


def test_whole_steps_come_back_with_the_end_of_the_last_such_prefill() -> None:
    policy = replace(CHUNKS, max_num_batched_tokens=32, max_num_batched_tokens_alone=32)
    simulation, gateway = pair(policy)
    source = simulation.core.cell.fleet.by_name("w0")
    assert source is not None
    source.link.bytes_per_us, source.costs.fixed_us = 1.0, 100.0
    client = simulation.submit(gateway, PROMPT, 12)
    run_until(simulation, lambda: source.pace.alone)
    assert source.pace.alone == 4 * LEAST_BLOCKS < policy.budget_alone
    run_until(simulation, lambda: simulation.links[0].worker.budget.alone == source.pace.alone)
    done(simulation, client)
    assert source.pace.alone == 0 and simulation.links[0].worker.budget.alone == policy.budget_alone


def test_most_of_what_is_handed_over_leaves_during_the_prefill() -> None:
    hardware = given_models()["h200-8b"]
    hardware = replace(hardware, host_blocks=2 * hardware.num_blocks)
    rows = [Row(number * 300_000, ((f"p{number}", 3000),), 40) for number in range(12)]
    (result,) = run_fleet(Plan(hardware, Policy(), 2, roles=("prefill", "decode")), rows)
    figures = {item.name: item.value for item in role_figures(hardware, result, result.ended_us)}
    assert figures["handoffs"] == 12
    assert figures["handoff_overlapped"] > 0.7  # 0.2 in whole steps of 2,048
    assert figures["handoff_p50"] < 60  # 238 then
