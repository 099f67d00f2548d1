"""What an event costs must not grow with the number of requests that wait. Counted in calls, not in time."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Any

from octavo_scheduler.cell import SWEEP_FIRST
from octavo_scheduler.events import Cancelled, ChoiceStart, Submitted
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.harness import Simulation
from tests.scheduler.test_core import make, run, run_until


def calls_of(work: Callable[[], Any]) -> int:
    """Python calls that `work` makes: a cost that no machine's speed changes."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def crowded(waiting: int) -> tuple[Simulation, int]:
    policy = Policy(max_waiting_requests=1_000_000, max_waiting_prompt_tokens=10**9)
    simulation, gateway = make(policy, num_blocks=17, max_seqs=2)
    for _ in range(waiting):
        simulation.submit(gateway, [1, 2, 3], 20, cache_off=True)
    run_until(simulation, lambda: any(client.got[0] for client in simulation.clients))
    return simulation, gateway


def test_events_cost_the_same_with_few_and_many_waiting() -> None:
    costs = []
    for waiting in (50, 3000):
        simulation, gateway = crowded(waiting)
        core, now_us = simulation.core, simulation.now_us
        ids = [client.request_id for client in simulation.clients]
        costs.append(
            (
                calls_of(lambda: run(simulation)),  # noqa: B023
                calls_of(lambda: core.handle(Cancelled(now_us, gateway, "never seen", "client_cancel"))),  # noqa: B023
                calls_of(lambda: core.handle(Cancelled(now_us, gateway, ids[-1], "client_cancel"))),  # noqa: B023
                calls_of(lambda: core.handle(Cancelled(now_us, gateway, ids[0], "client_cancel"))),  # noqa: B023
            )
        )
    for few, many in zip(*costs, strict=True):
        assert many < 2 * few + 100, costs


def test_ended_requests_leave_the_timers_long_before_their_deadlines() -> None:
    simulation, gateway = make()
    for _ in range(2 * SWEEP_FIRST):
        client = simulation.submit(gateway, [1, 2], 1, deadline_us=3600 * SECOND_US, cache_off=True)
        simulation.cancel(client)
        simulation.deliver(gateway)
    assert len(simulation.core.cell.timers) <= SWEEP_FIRST


def test_the_queue_can_change_while_it_is_walked() -> None:
    simulation, _ = crowded(100)
    queue = simulation.core.cell.queue
    seen = []
    with queue.in_turn(simulation.now_us) as turn:
        for request in turn:
            seen.append(request.request_id)
            queue.remove(request)
            if len(seen) % 2:
                ahead = queue.peek(simulation.now_us)
                if ahead is not None:
                    queue.remove(ahead)
    assert len(seen) == len(set(seen)) and len(queue) == 0


def test_a_request_that_comes_alone_starts_with_few_calls() -> None:
    """Nobody waits, nothing is cached, one worker: the plain way must stay plain (230 Python functions once were 105)."""
    simulation, gateway = make(Policy(max_num_seqs=64), num_blocks=600, max_seqs=64)
    counts = []
    for number in range(8):
        seen: list[str] = []

        def profile(frame: FrameType, event: str, _argument: object, seen: list[str] = seen) -> None:
            if event == "call" and "octavo_scheduler" in frame.f_code.co_filename:
                seen.append(frame.f_code.co_name)

        submit = Submitted(
            simulation.now_us, gateway, f"alone{number}", array("I", [number] * 9), 4, [ChoiceStart(number)]
        )
        sys.setprofile(profile)
        try:
            effects = simulation.core.handle(submit)
        finally:
            sys.setprofile(None)
        assert any(type(order).__name__ == "Admit" for _epoch, orders in effects.orders for order in orders)
        counts.append(len(seen))
    assert sorted(counts)[len(counts) // 2] <= 110, counts
