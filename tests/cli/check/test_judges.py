"""The judges of the gate on answers that were written down: what is right passes, each fault is named."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from octavo.client import TokenLogprob
from octavo_cli.check import logprobs, parity, quality, reclaim, sampling
from octavo_cli.check.reference import Greedy, Quality
from octavo_cli.check.result import Unjudged, Wrong
from octavo_cli.check.subject import Blocks

REFERENCE = Greedy("text", (1, 2), (5, 6, 7), (-0.5, -1.0, -0.2), (3.0, 0.1, 2.0))
BF16 = parity.TOLERANCES["bfloat16"]


def entry(*values: float) -> TokenLogprob:
    top = tuple(TokenLogprob(k, "", b"", value) for k, value in enumerate(values))
    return TokenLogprob(0, "", b"", values[0], top)


def test_equal_tokens_and_close_logprobs_are_parity() -> None:
    done = parity.compare_greedy(REFERENCE, [5, 6, 7], [-0.51, -0.99, -0.21], BF16.tie)
    facts = parity.judge([done], BF16)
    assert done.agreed == 3 and facts["logprob_mean_difference"] == pytest.approx(0.01)
    with pytest.raises(Wrong, match=r"logprobs differ by 0.0100 on average; at most 0.0005"):
        parity.judge([done], parity.TOLERANCES["float32"])


def test_a_tie_may_turn_and_nothing_else_may() -> None:
    assert not parity.compare_greedy(REFERENCE, [5, 9, 9], [-0.5, -1.1, -3.0], BF16.tie).fault
    clear = parity.compare_greedy(REFERENCE, [8, 6, 7], [-0.5, -1.0, -0.2], BF16.tie)
    with pytest.raises(Wrong, match="1 of 1 prompts left the reference, one: token 0 is 8, the reference has 5"):
        parity.judge([clear], BF16)
    assert parity.compare_greedy(REFERENCE, [5, 6], [-0.5, -1.0], BF16.tie).fault == "ended after 2 of 3 tokens"


def test_logprobs_that_moved_are_no_parity() -> None:
    moved = parity.compare_greedy(REFERENCE, [5, 6, 7], [-0.6, -1.1, -0.3], BF16.tie)
    with pytest.raises(Wrong, match=r"logprobs differ by 0.1000 on average"):
        parity.judge([moved], BF16)
    once = parity.compare_greedy(REFERENCE, [5, 6, 7], [-0.5, -1.5, -0.2], BF16.tie)
    with pytest.raises(Wrong, match=r"a logprob differs by 0.500|on average"):
        parity.judge([once], BF16)


def test_logprobs_of_a_distribution_pass_and_shifted_ones_do_not() -> None:
    good = entry(math.log(0.9), math.log(0.07), math.log(0.02))
    assert logprobs.judge([good])["mass_most"] == pytest.approx(0.99)
    for shift, said in (
        (0.1, "have a probability of 1.094 together"),
        (-0.1, "no position reaches a probability of 0.97"),
    ):
        values = [item.logprob + shift for item in good.top]
        with pytest.raises(Wrong, match=said):
            logprobs.judge([entry(*values)])
    with pytest.raises(Wrong, match="not in order"):
        logprobs.judge([entry(math.log(0.3), math.log(0.6))])
    with pytest.raises(Wrong, match="greedy chose 4, the best alternative is 0"):
        logprobs.judge([replace(good, token_id=4)])
    with pytest.raises(Wrong, match="the chosen token has"):
        logprobs.judge([replace(good, logprob=-1.0)])


def test_draws_of_the_right_distribution_pass_and_of_others_fail() -> None:
    draw = random.Random(1)
    tokens, shares = [3, 1, 4], [0.6, 0.3, 0.1]
    good = draw.choices(tokens, shares, k=512)
    assert sampling.judge_draws(good, tokens, shares) > 0.01
    for wrong in ([0.5, 0.3, 0.2], [0.8, 0.15, 0.05]):
        with pytest.raises(Wrong, match="do not fall as the model's probabilities"):
            sampling.judge_draws(draw.choices(tokens, wrong, k=512), tokens, shares)
    with pytest.raises(Wrong, match="top_k 3 let token 9 through"):
        sampling.judge_draws([*good, 9], tokens, shares)


def test_the_small_vocabulary_ends_at_the_widest_gap() -> None:
    values = [-0.1 * k for k in range(20)]
    values = [value - (3.0 if k >= 7 else 0.0) for k, value in enumerate(values)]
    assert sampling.small_vocabulary(values) == 7
    assert sampling.shares_at([0.0, math.log(0.5)], 1.0) == pytest.approx([2 / 3, 1 / 3])
    assert sampling.shares_at([0.0, math.log(0.5)], 0.5) == pytest.approx([0.8, 0.2])


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"leaked": 1}, Wrong, "1 blocks are held by nobody"),
        ({"free": 99}, Wrong, "1 blocks did not come back"),
        ({"total": 90, "free": 90}, Wrong, "the pool had 100 blocks and has 90"),
        ({"audits_failed": 1}, Wrong, "audit found blocks that nobody holds"),
        ({"running": 2, "free": 90}, Unjudged, "2 requests run or wait; repeat this on an idle cluster"),
    ],
)
def test_blocks_that_are_missing(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    before = Blocks(100, 100, 0, 0, 0)
    assert reclaim.judge(before, before)["blocks_missing"] == 0
    with pytest.raises(error, match=said):
        reclaim.judge(before, replace(before, **changes))


def test_quality_against_the_reference() -> None:
    reference = Quality(20.0, 270, 0.9167, 24)
    assert quality.judge(replace(reference, perplexity=20.5, accuracy=0.8333), reference)["perplexity_ratio"] == 1.025
    with pytest.raises(Wrong, match=r"perplexity is 1.050 times the reference's; at most 1.03"):
        quality.judge(replace(reference, perplexity=21.0), reference)
    with pytest.raises(Wrong, match="3 questions fewer are answered"):
        quality.judge(replace(reference, accuracy=0.7917), reference)
    with pytest.raises(Unjudged, match="recorded on other texts"):
        quality.judge(replace(reference, tokens=100), reference)
