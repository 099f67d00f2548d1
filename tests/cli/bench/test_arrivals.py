"""Arrival processes have the statistics they promise, and are pure functions of their seed."""

from __future__ import annotations

import itertools
import statistics

import pytest
from octavo_cli.bench.arrivals import OpenLoop, arrival_times
from octavo_cli.bench.work import BadPlan


def gaps_of(loop: OpenLoop, count: int = 20_000) -> list[float]:
    times = arrival_times(loop, count, (), 7)
    return [after - before for before, after in itertools.pairwise([0.0, *times])]


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_of(OpenLoop("poisson", 5.0))
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05)
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)  # 1/e


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 3.0])
def test_gamma_keeps_the_rate_and_has_its_burstiness(burstiness: float) -> None:
    gaps = gaps_of(OpenLoop("gamma", 5.0, burstiness=burstiness))
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.08)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness, rel=0.1)


def test_constant_is_constant_and_begins_at_once() -> None:
    assert arrival_times(OpenLoop("constant", 4.0), 4, (), 0) == [0.0, 0.25, 0.5, 0.75]


def test_a_duration_bounds_the_arrivals_and_seeds_decide_them() -> None:
    loop = OpenLoop("poisson", 100.0, duration_s=1.0)
    times = arrival_times(loop, 10_000, (), 1)
    assert 60 < len(times) < 140 and times[-1] < 1.0 and times == sorted(times)
    assert times == arrival_times(loop, 10_000, (), 1) != arrival_times(loop, 10_000, (), 2)
    assert len(arrival_times(loop, 5, (), 1)) == 5


def test_replay_keeps_the_traces_gaps() -> None:
    loop = OpenLoop("replay", 0.0, speed=2.0)
    assert arrival_times(loop, 4, [10.0, 11.0, 11.0, 14.0], 0) == [0.0, 0.5, 0.5, 2.0]
    assert arrival_times(OpenLoop("replay", 0.0, duration_s=1.5), 4, [10.0, 11.0, 11.0, 14.0], 0) == [0.0, 1.0, 1.0]
    with pytest.raises(BadPlan, match="go backwards"):
        arrival_times(loop, 2, [2.0, 1.0], 0)
    with pytest.raises(BadPlan, match="needs a trace"):
        arrival_times(loop, 2, [1.0, None], 0)
