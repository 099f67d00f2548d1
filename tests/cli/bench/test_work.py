"""Workloads: what they share, how they grow, and that their digest names them."""

from __future__ import annotations

import statistics

import pytest
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload, draw_tokens, with_cancels
from octavo_cli.bench.workloads import WORKLOADS, Shape, make_workload


def prompts(workload: Workload) -> list[list[int]]:
    return [draw_tokens(session.turns[0].pieces, 49152) for session in workload.sessions]


def common(a: list[int], b: list[int]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_equal_pieces_are_equal_tokens_and_longer_ones_begin_alike() -> None:
    short, long = draw_tokens([Piece("a", 10)], 49152), draw_tokens([Piece("a", 30)], 49152)
    assert long[:10] == short != draw_tokens([Piece("b", 10)], 49152)
    assert min(long) >= 49152 // 50 and max(long) < 49152
    assert set(draw_tokens([Piece("tiny", 200)], 3)) == {0, 1, 2}


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_is_a_function_of_shape_and_seed(name: str) -> None:
    shape = Shape(requests=12, prompt_tokens=40, max_tokens=8, prefix_tokens=64, turns=3)
    made = make_workload(name, shape)
    assert made.digest() == make_workload(name, shape).digest()
    other = Shape(requests=12, prompt_tokens=40, max_tokens=8, prefix_tokens=64, turns=3, seed=1)
    assert made.digest() != make_workload(name, other).digest()
    assert made.requests == 12


def test_random_prompts_share_nothing_and_shared_ones_their_prefix() -> None:
    alone = prompts(make_workload("random", Shape(requests=6, prompt_tokens=40)))
    assert {common(a, b) for a in alone for b in alone if a is not b} <= {0, 1}
    shared = prompts(make_workload("shared-prefix", Shape(requests=40, prompt_tokens=16, prefix_tokens=64, prefixes=2)))
    assert {len(prompt) for prompt in shared} == {80}
    assert {min(64, common(a, b)) for a in shared for b in shared if a is not b} <= {0, 1, 64}
    assert sum(common(shared[0], b) >= 64 for b in shared) > 5


def test_lengths_have_their_mean_and_spread() -> None:
    made = make_workload("random", Shape(requests=4000, prompt_tokens=200, length_spread=0.5))
    lengths = [session.turns[0].new_tokens for session in made.sessions]
    assert statistics.fmean(lengths) == pytest.approx(200, rel=0.05)
    assert statistics.stdev(lengths) / statistics.fmean(lengths) == pytest.approx(0.5, rel=0.1)
    assert {session.turns[0].new_tokens for session in make_workload("random", Shape(requests=5)).sessions} == {128}


def test_agents_pause_and_come_back_with_known_documents() -> None:
    made = make_workload("rag", Shape(requests=40, turns=4, pause_s=2.0, prefixes=2, prefix_tokens=100))
    assert len(made.sessions) == 10 and all(session.turns[0].pause_s == 0 for session in made.sessions)
    pauses = [turn.pause_s for session in made.sessions for turn in session.turns[1:]]
    assert all(pauses) and statistics.fmean(pauses) == pytest.approx(2.0, rel=0.5)
    assert len({turn.pieces for session in made.sessions for turn in session.turns[1:]}) == 2


def test_cancels_reach_their_share_and_never_the_last_token() -> None:
    made = with_cancels(make_workload("random", Shape(requests=2000, max_tokens=3)), 0.3, 9, 0)
    leaving = [turn.cancel_after for session in made.sessions for turn in session.turns if turn.cancel_after]
    assert len(leaving) / 2000 == pytest.approx(0.3, abs=0.04) and set(leaving) == {2}


def test_a_digest_sees_every_part() -> None:
    base = Session("s", (Turn(4, (Piece("a", 3),)),))
    others = [
        Session("t", base.turns),
        Session("s", base.turns, at_s=1.0),
        Session("s", (Turn(5, (Piece("a", 3),)),)),
        Session("s", (Turn(4, (Piece("a", 4),)),)),
        Session("s", (Turn(4, text="a"),)),
        Session("s", (Turn(4, (Piece("a", 3),), pause_s=1.0),)),
        Session("s", (Turn(4, (Piece("a", 3),), cancel_after=2),)),
    ]
    digests = {Workload("w", (session,)).digest() for session in [base, *others]}
    assert len(digests) == 1 + len(others)
    with pytest.raises(BadPlan, match="has no request"):
        Workload("w", ())
