"""Orders that a decoding worker gets: blocks far ahead while there is room, names with what goes anyway."""

from __future__ import annotations

import pytest
from octavo_scheduler.orders import Grant, Label, Order
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import done, make, run, run_until

STREAMS, OUTPUT, SIZE = 4, 96, 4


def decoding(policy: Policy, num_blocks: int = 400) -> tuple[Simulation, list[list[Order]]]:
    """STREAMS requests that have begun to decode; what they are ordered from now on, message by message."""
    simulation, gateway = make(policy, num_blocks=num_blocks)
    clients = [simulation.submit(gateway, [at, 1, 2, 3, 4], OUTPUT) for at in range(STREAMS)]
    run_until(simulation, lambda: all(client.got[0] for client in clients))
    messages: list[list[Order]] = []
    handle = simulation.core.handle

    def listening(event):  # type: ignore[no-untyped-def]
        effects = handle(event)
        messages.extend(orders for _epoch, orders in effects.orders)
        return effects

    simulation.core.handle = listening  # type: ignore[method-assign]
    return simulation, messages


def tables(simulation: Simulation) -> list[tuple[int, int]]:
    """(positions that stand, blocks that are granted) of every sequence."""
    (worker,) = simulation.core.cell.fleet.workers.values()
    return [(item.length, len(item.blocks)) for item in worker.sequences.values()]


def ahead(**options: int) -> Policy:
    return Policy(grant_ahead_us=1, **{"default_output_tokens": OUTPUT, **options})  # type: ignore[arg-type]


def test_with_room_most_steps_need_no_order() -> None:
    counts = []
    for spare in (0, 4):
        simulation, messages = decoding(ahead(spare_blocks=spare))
        run(simulation, 60)
        simulation.core.cell.fleet.workers[simulation.links[0].epoch].audit()
        counts.append(len(messages))
        assert all(length <= blocks * SIZE for length, blocks in tables(simulation))
    assert counts[1] * 3 <= counts[0]


def test_one_that_needs_blocks_brings_them_to_all() -> None:
    simulation, messages = decoding(ahead())
    run_until(simulation, lambda: any(isinstance(order, Grant) for told in messages for order in told))
    granted = next(told for told in messages if any(isinstance(order, Grant) for order in told))
    assert {order.seq for order in granted if isinstance(order, Grant)} == set(
        simulation.core.cell.fleet.workers[simulation.links[0].epoch].sequences
    )


def test_no_more_than_the_predicted_growth_is_granted_ahead() -> None:
    simulation, _messages = decoding(ahead(default_output_tokens=8))
    # 5 of the prompt and 8 predicted, where 8 blocks would be more than the horizon and 4 to spare
    assert {blocks for _length, blocks in tables(simulation)} == {4}


def test_where_all_together_might_lack_room_nobody_gets_more_than_the_horizon() -> None:
    # 22 blocks are predicted for each, so that all run; 25 they might ask for, and 96 there are
    simulation, _messages = decoding(ahead(default_output_tokens=80), num_blocks=97)
    for _ in range(40):
        run(simulation)
        assert len(tables(simulation)) == STREAMS
        assert all(blocks * SIZE - length <= SIZE + 3 for length, blocks in tables(simulation))


def test_names_of_decoded_blocks_wait_for_another_order_and_come_before_it() -> None:
    simulation, messages = decoding(ahead(spare_blocks=12))
    run(simulation, 60)
    naming = [told for told in messages if any(isinstance(order, Label) for order in told)]
    assert naming and all(isinstance(told[0], Label) and len(told) > 1 for told in naming)
    assert len(messages) < 10


@pytest.mark.parametrize("end", ["a second later", "when nothing runs"])
def test_names_do_not_wait_for_ever(end: str) -> None:
    simulation, messages = decoding(ahead(spare_blocks=100))
    (worker,) = simulation.core.cell.fleet.workers.values()
    run_until(simulation, lambda: bool(worker.orders))
    if end == "a second later":
        simulation.advance(SECOND_US + 1)
        assert messages and not worker.orders and worker.sequences
        return
    for client in simulation.clients:
        done(simulation, client)
    run(simulation, 3)
    named = {key for told in messages for order in told if isinstance(order, Label) for key in order.keys}
    assert not worker.orders and len(named) >= STREAMS * (OUTPUT // SIZE - 1)
