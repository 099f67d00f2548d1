"""The search alone: which continuations go on, in whose place, and when it is over."""

from __future__ import annotations

from array import array
from math import inf

import pytest
from octavo_scheduler.beams.rule import BeamRow, BeamRule, TokenScore
from octavo_scheduler.beams.search import BeamSearch, Move, common_length


def outputs(*said: list[int]) -> list[array]:
    return [array("I", tokens) for tokens in said]


def offer(search: BeamSearch, *found: dict[int, float]) -> None:
    for beam, items in enumerate(found):
        search.rows[beam] = BeamRow(beam + 1, 1, tuple(items), tuple(items.values()))


def test_the_first_step_looks_at_one_beam_alone() -> None:
    search = BeamSearch(BeamRule(2), 2)
    same = {7: -0.1, 8: -0.5, 9: -2.0, 1: -3.0}
    offer(search, same, same)
    assert search.step(outputs([], []), last=False) == [Move(0, 0, 7), Move(1, 0, 8)]
    assert search.sums == [-0.1, -0.5] and search.order == [0, 1] and not search.rows


def test_children_take_the_places_of_those_that_die() -> None:
    search = BeamSearch(BeamRule(3), 3)
    search.sums, search.order = [-1.0, -5.0, -0.5], [2, 0, 1]
    offer(search, {1: -0.2, 2: -3.0}, {3: -0.1}, {4: -0.1, 5: -0.2, 6: -9.0})
    assert search.step(outputs([1], [2], [3]), last=False) == [Move(2, 2, 4), Move(1, 2, 5), Move(0, 0, 1)]
    assert search.sums == pytest.approx([-1.2, -0.7, -0.6]) and search.order == [2, 1, 0]


def test_equal_sums_go_by_the_better_beam() -> None:
    search = BeamSearch(BeamRule(2), 2)
    search.sums, search.order = [-1.0, -1.0], [1, 0]
    offer(search, {3: -0.5, 4: -0.5}, {5: -0.5, 6: -0.5})
    assert search.step(outputs([1], [2]), last=False) == [Move(1, 1, 5), Move(0, 1, 6)]


def test_an_end_counts_only_among_the_best() -> None:
    """As many as there are beams; one behind them is neither a hypothesis nor a beam."""
    search = BeamSearch(BeamRule(2, stop_ids=(9,)), 2)
    offer(search, {1: -0.1, 2: -0.2, 9: -0.3, 3: -0.4}, {})
    assert [move.token for move in search.step(outputs([], []), last=False)] == [1, 2] and not search.ended
    offer(search, {9: -0.1, 4: -0.6, 5: -3.0, 6: -4.0}, {9: -0.05, 7: -0.9, 8: -4.0, 3: -5.0})
    assert search.step(outputs([1], [2]), last=False) == [], "what goes on is worse than both that have ended"
    assert [(list(item.tokens), item.reason, item.stop_token) for item in search.ended] == [
        ([1, 9], "stop", 9), ([2, 9], "stop", 9),
    ]  # fmt: skip
    assert [item.score for item in search.ended] == pytest.approx([-0.1, -0.125])


@pytest.mark.parametrize("early", [True, False])
def test_when_enough_have_ended_it_may_be_over(early: bool) -> None:
    """Without early stopping a beam that can still come among the best keeps it going."""
    search = BeamSearch(BeamRule(1, 1.0, early, (9,)), 2)
    search.sums = [-0.1, -0.2]
    offer(search, {9: -0.1, 1: -0.3}, {9: -0.3, 2: -0.15})
    assert len(search.step(outputs([5], [6]), last=False)) == 2 and len(search.ended) == 1
    offer(search, {9: -1.0, 4: -1.1}, {3: -0.01, 9: -2.0})
    moves = search.step(outputs([5, 1], [6, 2]), last=False)
    assert len(search.ended) == 2 and [move.token for move in moves] == ([] if early else [3, 4])


def test_the_last_step_ends_them_all() -> None:
    search = BeamSearch(BeamRule(2, length_penalty=0.0), 2)
    search.sums = [-1.0, -2.0]
    offer(search, {1: -0.5, 2: -0.7}, {3: -0.1, 4: -0.2})
    assert search.step(outputs([8], [9]), last=True) == []
    assert [(list(item.tokens), item.reason) for item in search.ended] == [([8, 1], "length"), ([8, 2], "length")]
    assert [item.score for item in search.ended] == [item.sum_logprob for item in search.ended]


def test_fewer_continuations_than_beams() -> None:
    """A vocabulary of two tokens and three beams: the third only follows, and offers nothing until there are enough."""
    search = BeamSearch(BeamRule(3), 3)
    offer(search, {1: -0.5, 2: -0.9}, {1: -0.5, 2: -0.9}, {1: -0.5, 2: -0.9})
    assert search.step(outputs([], [], []), last=False) == [Move(0, 0, 1), Move(1, 0, 2), Move(2, 0, 1)]
    assert search.sums == [-0.5, -0.9, -inf]
    offer(search, {1: -0.5, 2: -0.9}, {1: -0.5, 2: -0.9}, {1: -9.0, 2: -inf})
    moves = search.step(outputs([1], [2], [1]), last=False)
    assert [(move.parent, move.token) for move in moves] == [(0, 1), (0, 2), (1, 1)] and -inf not in search.sums


def test_paths_are_kept_where_they_are_told() -> None:
    search = BeamSearch(BeamRule(1, logprobs=1), 2)
    offer(search, {1: -0.1, 2: -0.2, 3: -5.0}, {})
    search.step(outputs([], []), last=False)
    offer(search, {4: -9.0, 5: -9.5}, {6: -0.1, 7: -0.2})
    search.step(outputs([1], [2]), last=True)
    assert search.ended[0].told == (TokenScore(2, -0.2, (1,), (-0.1,)), TokenScore(6, -0.1, (6,), (-0.1,)))


def test_common_length() -> None:
    assert common_length(outputs([1, 2, 3], [1, 2, 4], [1, 2, 3])) == 2
    assert common_length(outputs([1, 2], [3, 2])) == 0 and common_length(outputs([1, 2])) == 2
    assert common_length(outputs([], [])) == 0
