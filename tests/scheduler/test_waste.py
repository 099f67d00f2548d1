"""Paging's promise: a sequence holds less than one block more than its tokens and its granted horizon need."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_scheduler.batching import ahead_tokens, wanted_positions

from tests.scheduler.scenes import done, make, run


@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 120), st.integers(1, 70)), min_size=1, max_size=6))
def test_waste_per_sequence_stays_below_one_block(block_tokens: int, requests: list[tuple[int, int]]) -> None:
    simulation, gateway = make(num_blocks=2000 // block_tokens, block_tokens=block_tokens, max_seqs=4)
    clients = [simulation.submit(gateway, [7] * length, count, cache_off=True) for length, count in requests]
    worker = simulation.core.cell.fleet.workers[next(iter(simulation.core.cell.fleet.workers))]
    longest_ahead, seen = 0, 0
    while any(client.outcome is None or not client.outcome for client in clients):
        longest_ahead = max(longest_ahead, ahead_tokens(worker, simulation.core.cell.policy))
        for sequence in worker.running():
            seen += 1
            wanted = wanted_positions(sequence, longest_ahead)
            assert len(sequence.blocks) * block_tokens - wanted < block_tokens, sequence
        run(simulation)
    assert seen
    done(simulation, *clients)
