"""compose(): decodes first, then prefill by rank inside the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from octavo.step import SeqView, StepBudget, compose


def test_two_decodes_leave_510_of_512_tokens_to_prefill() -> None:
    seqs = [SeqView(0, 0, 100, 99, 112), SeqView(1, 1, 50, 49, 64), SeqView(2, 2, 4000, 0, 4096)]
    step = compose(seqs, StepBudget(512, 2048, 32))
    assert [(chunk.slot, chunk.count) for chunk in step.chunks] == [(0, 1), (1, 1), (2, 510)]
    assert step.decode_seqs == 2
    assert step.prefill_tokens == 510
    assert not step.chunks[2].samples


def test_budget_opens_up_without_decodes() -> None:
    step = compose([SeqView(0, 0, 4000, 0, 4096)], StepBudget(512, 2048, 32))
    assert step.chunks[0].count == 2048


def test_prefill_follows_rank_not_slot() -> None:
    step = compose([SeqView(0, 5, 400, 0, 400), SeqView(1, 1, 400, 0, 400)], StepBudget(512, 512, 32))
    assert [(chunk.slot, chunk.count) for chunk in step.chunks] == [(1, 400), (0, 112)]


def test_sequence_without_a_block_is_starved_not_run() -> None:
    step = compose([SeqView(0, 0, 17, 16, 16), SeqView(1, 0, 5, 4, 16)], StepBudget(512, 512, 32))
    assert step.starved == [0]
    assert [chunk.slot for chunk in step.chunks] == [1]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 60), st.integers(0, 60), st.integers(0, 80), st.booleans()),
        max_size=20,
    ),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 8),
)
def test_never_over_budget_never_past_capacity(
    rows: list[tuple[int, int, int, int, bool]], decodes: int, alone: int, most: int
) -> None:
    seqs = [
        SeqView(slot, rank, length, min(computed, length - 1), capacity, paused)
        for slot, (rank, length, computed, capacity, paused) in enumerate(rows)
    ]
    step = compose(seqs, StepBudget(decodes, alone, most))
    by_slot = {seq.slot: seq for seq in seqs}
    assert len(step.chunks) <= most
    assert step.prefill_tokens <= max(decodes, alone)
    for chunk in step.chunks:
        seq = by_slot[chunk.slot]
        assert chunk.count >= 1
        assert chunk.start == seq.computed
        assert chunk.start + chunk.count <= min(seq.length, seq.capacity)
        assert chunk.samples == (chunk.start + chunk.count == seq.length)
    runnable = [seq for seq in seqs if not seq.paused and seq.capacity > seq.computed]
    assert bool(step.chunks) == bool(runnable)
