"""CAG against RAG: the worked numbers, break-even, and a deployment's own rates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from octavo_cli.main import app
from octavo_cli.size.cag import Plan, Rates, break_even, check, chunk_tokens, self_hosted
from octavo_cli.size.shape import BadSize
from typer.testing import CliRunner

PLAN = Plan(100_000, chunk_tokens("10x500"), 500, 500, cp=1.0, cc=0.1, retrieval=0.0, build=0.0, reuse=100)
RATES = Rates(1000.0, 100.0, 0.0, 512, 100, 40_000_000, 1e9, 2000.0, "test")


def test_5550_against_10550_equivalents_and_5500_against_500_uncached() -> None:
    assert (PLAN.rag_equivalents, PLAN.cag_equivalents) == (5550, 10550)
    assert (PLAN.rag_uncached, PLAN.cag_uncached) == (5500, 500)


def test_prices_are_equivalents_at_cp_plus_retrieval_or_the_build_s_share() -> None:
    plan = replace(PLAN, cp=3.0, cc=0.3, retrieval=0.01, build=0.4)
    assert plan.rag_price == pytest.approx(5550 * 3.0 / 1e6 + 0.01)
    assert plan.cag_price == pytest.approx(10550 * 3.0 / 1e6 + 0.4 / 100)


def test_break_even_is_where_both_ways_cost_the_same() -> None:
    plan = replace(PLAN, retrieval=0.01, build=0.4)  # RAG 0.01555, CAG 0.01055 a use: 0.4 / 0.005 = 80 uses
    assert plan.break_even == 80
    at, before = replace(plan, reuse=80), replace(plan, reuse=79)
    assert at.cag_price <= at.rag_price + 1e-12 and before.cag_price > before.rag_price


def test_cag_that_costs_more_each_time_never_pays() -> None:
    assert PLAN.break_even == math.inf
    assert break_even(5.0, 0.0) == math.inf and break_even(0.0, 1.0) == 1.0


def test_self_hosted_times_follow_the_rates() -> None:
    hosted = self_hosted(PLAN, RATES, retrieval_ms=20.0, hours=1.0, scarcity=0.0, loaded=False)
    assert hosted.build_ms == pytest.approx(197 * 1.0 + 100_500 * 0.1)
    assert hosted.suffix_ms == pytest.approx(1.0 + 50.0)
    assert hosted.rag_ms == pytest.approx(20.0 + 11 * 1.0 + 550.0)
    assert (hosted.storage_ms, hosted.transfer_ms) == (0.0, 0.0)
    assert hosted.break_even == math.ceil(hosted.build_ms / (hosted.rag_ms - hosted.suffix_ms))
    assert hosted.cag_ms == pytest.approx(hosted.build_ms / 100 + 51.0)


def test_storage_is_the_share_of_a_scarce_pool_and_transfer_the_bytes() -> None:
    hosted = self_hosted(PLAN, RATES, retrieval_ms=0.0, hours=0.5, scarcity=0.5, loaded=True)
    assert hosted.storage_ms == pytest.approx(100_500 * 100 / 40_000_000 * 0.5 * 3.6e6 * 0.5 / 100)
    assert hosted.transfer_ms == pytest.approx(2.0 + 100_500 * 100 / 1e9 * 1000)


def test_a_long_context_costs_every_step_that_reads_it() -> None:
    reading = replace(RATES, context_token_us=0.01)
    assert reading.prefill_ms(500, 100_500) - reading.prefill_ms(500) == pytest.approx(100_500 * 0.01 / 1000)


@pytest.mark.parametrize("text", ["10", "2x250"])
def test_chunks(text: str) -> None:
    assert chunk_tokens(text) in (10, 500)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cp": 0.0}, "--cp"),
        ({"reuse": 0}, "--reuse"),
        ({"question": 0}, "--question"),
        ({"build": -1.0}, "--build"),
        ({"cp": math.nan}, "--cp"),
        ({"build": math.inf}, "--build"),
        ({"context": 10**20}, "--context"),
        ({"chunks": 10**20}, "--chunks"),
    ],
)
def test_what_cannot_be_reckoned_with_names_the_option(changes: dict[str, float], word: str) -> None:
    with pytest.raises(BadSize, match=word):
        check(replace(PLAN, **changes))
    with pytest.raises(BadSize, match="COUNTxTOKENS"):
        chunk_tokens("tenx5")


@pytest.mark.parametrize("text", ["²x5", "9" * 5000, "", "x", "-1x5"])
def test_odd_chunks_are_refused(text: str) -> None:
    with pytest.raises(BadSize, match="COUNTxTOKENS"):
        chunk_tokens(text)


@pytest.mark.parametrize("option", ["--retrieval-ms", "--hours", "--prefill-us", "--load-gib-s", "--scarcity"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_options_that_are_no_usable_number_are_named(option: str, value: str) -> None:
    done = CliRunner().invoke(app, ["size", "cag", option, value])
    assert isinstance(done.exception, BadSize) and str(done.exception).startswith(f"{option}:")
