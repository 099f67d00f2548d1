"""The search for the highest good rate, on servers of a known limit."""

from __future__ import annotations

import pytest
from null_server import NullServer
from octavo.errors import InternalError
from octavo_cli.bench.http_target import HttpTarget
from octavo_cli.bench.options import Options, plan_at
from octavo_cli.bench.page import goodput_curve
from octavo_cli.bench.sweep import BISECTIONS, RatePoint, best_rate, next_rate, sweep
from octavo_cli.bench.workloads import Shape


def searched(limit: float, first: float) -> list[RatePoint]:
    points: list[RatePoint] = []
    while (rate := next_rate(points, first)) is not None:
        points.append(RatePoint(rate, 1.0 if rate <= limit else 0.5, min(rate, limit), ()))
    return points


@pytest.mark.parametrize(("limit", "first"), [(37.0, 1.0), (1.3, 1.0), (0.3, 4.0), (6.0, 3.0), (99.9, 100.0)])
def test_the_limit_is_found_within_a_few_percent(limit: float, first: float) -> None:
    points = searched(limit, first)
    assert 0.95 * limit < best_rate(points) <= limit
    assert len(points) <= 8 + BISECTIONS


def test_a_server_that_is_never_good_or_always_good_ends_the_search() -> None:
    assert best_rate(searched(0.0, 1.0)) == 0.0
    assert best_rate(searched(float("inf"), 1.0)) > 1000
    lucky = [RatePoint(4.0, 0.5, 1.0, ()), RatePoint(2.0, 0.95, 2.0, ()), RatePoint(8.0, 1.0, 8.0, ())]
    assert best_rate(lucky) == 2.0


async def test_a_sweep_measures_and_draws_its_curve() -> None:
    options = Options(
        arrivals="constant", duration_s=0.4, slo="ttft=150ms", warmup=1, shape=Shape(prompt_tokens=4, max_tokens=1)
    )
    server = NullServer(slow_after=10)  # the warm-up and the 8 of 20/s are quick, all that follow are not
    async with server.running(), HttpTarget(server.url) as target:
        said: list[str] = []
        measured = await sweep(target, lambda rate: plan_at(options, rate), 20.0, said.append)
    names = {item.name for item in measured.figures.results}
    assert {
        "max_rate",
        "attainment/r20",
        "goodput/r20",
        "ttft_p99/r20",
    } <= names and measured.figures.benchmark == "sweep"
    assert measured.figures.value("max_rate") == 20.0 and measured.figures.value("attainment/r40") < 0.9
    assert goodput_curve(measured.figures).count("<svg") == 2 and any("rate 20/s" in line for line in said)


async def test_a_server_that_answers_nothing_ends_the_sweep_at_once() -> None:
    server = NullServer(error_after=1)
    options = Options(arrivals="constant", duration_s=0.3, slo="ttft=9s", warmup=0, shape=Shape(max_tokens=3))
    async with server.running(), HttpTarget(server.url) as target:
        with pytest.raises(InternalError, match="requests failed, one with stream-error"):
            await sweep(target, lambda rate: plan_at(options, rate), 20.0, lambda line: None)
    assert len(server.bodies) <= 7  # one rate, not thirteen


async def test_a_rate_at_which_nothing_arrives_ends_the_search() -> None:
    server = NullServer(refuse_share=1)
    options = Options(arrivals="poisson", duration_s=0.2, slo="ttft=9s", warmup=0, shape=Shape(max_tokens=1))
    async with server.running(), HttpTarget(server.url) as target:
        measured = await sweep(target, lambda rate: plan_at(options, rate), 40.0, lambda line: None)
    assert measured.figures.value("max_rate") == 0.0
