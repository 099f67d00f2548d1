"""The prompts and figures of bench blend; the blending itself is the worker's to test."""

from __future__ import annotations

import itertools

import pytest
from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.blend import ASKED_TOKENS, blend_cases, blend_figures, blend_ratios


def test_no_passage_follows_the_one_before_it_and_the_question_is_in_one() -> None:
    for case in blend_cases(range(4000), 40, 4, 64, seed=3):
        starts = [chunk[0] for chunk in case["chunks"]]
        assert len(set(starts)) == 4 and all(b != a + 64 for a, b in itertools.pairwise(starts))
        assert case["question"] in [chunk[:ASKED_TOKENS] for chunk in case["chunks"]]
    assert blend_cases(range(4000), 2, 4, 64, 3) == blend_cases(range(4000), 2, 4, 64, 3)


def test_figures_are_means_over_the_prompts() -> None:
    answers = [
        {"0.15": {"top1": value, "kl": 0.5, "computed": 0.2}, "unrotated": {"top1": 0.0, "kl": 4.0, "computed": 0.1}}
        for value in (0.5, 1.0)
    ]
    found = {item.name: item for item in blend_figures(answers, 16)}
    assert found["top1/r15"].value == 0.75 and found["top1/r15"].n == 32 and found["computed/r15"].n == 2
    assert found["kl/unrotated"].value == 4.0


@pytest.mark.parametrize("text", ["", "a", "0,2", "-1"])
def test_bad_ratios_and_chunks_name_the_option(text: str) -> None:
    with pytest.raises(BadPlan, match="--ratios"):
        blend_ratios(text)
    with pytest.raises(BadPlan, match="--chunks"):
        blend_cases(range(100), 1, 4, 64, 0)
    assert blend_ratios("0,0.15") == [0.0, 0.15]
