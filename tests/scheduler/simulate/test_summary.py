"""Figures of a run, worked out by hand."""

from __future__ import annotations

from collections import Counter

from octavo.figures import quantile
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, Sample
from octavo_scheduler.simulate.fairness import ServiceGaps
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.summary import Summary, gap_quantile, summarise
from octavo_scheduler.simulate.tally import Tally

from tests.scheduler.simulate.scenes import ROUND, row

CLASSES = {"default": {"ttft_ms": 50.0, "itl_p99_ms": 20.0}, "batch": {"ttft_ms": 5000.0}}


def values(summary: Summary) -> dict[str, float]:
    return {figure.name: figure.value for figure in summary.figures}


def test_figures_of_two_requests() -> None:
    plan = Plan(ROUND, Policy(slo_classes=CLASSES, max_num_seqs=1), 1)
    # 13.2 ms to the first token, 11 ms between tokens; the second waits for the first's 46.2 ms
    rows = [row(0, name="a"), row(0, name="b"), row(1000, name="c", slo_class="batch"), row(1001, prompt=20_000)]
    found = values(summarise(plan, run_fleet(plan, rows), cost_per_hour=3600.0))
    assert found["ttft_p50"] == 13.2 and found["itl_p50"] == found["itl_p99"] == 11.0
    assert found["e2e_p50"] == 46.2
    assert (found["finished"], found["rejected"], found["unsent"]) == (3, 1, 0)
    assert found["slo_attainment"] == 0.5  # the second's first token came after 59 ms, the last was refused
    assert found["slo_attainment/batch"] == 1.0 and found["slo_attainment/default"] == 1 / 3
    assert found["goodput"] == 2 / found["duration"]
    assert found["worker_s_per_good_request"] == found["cost_per_good_request"] == found["duration"] / 2
    assert found["running_max"] == 1 and found["waiting_max"] == 1
    assert 0 < found["kv_use_mean"] < found["kv_use_max"] < 0.02
    assert found["busy_share"] > 0.1 and found["preemptions"] == 0


def test_the_course_over_time_holds_every_stretch() -> None:
    plan = Plan(ROUND, Policy(max_num_seqs=4), 2, cell_workers=1)
    rows = [row(20 * i, output=30, name=f"p{i}") for i in range(100)]
    summary = summarise(plan, run_fleet(plan, rows))
    assert 20 < len(summary.points) <= 101
    times = [point.at_s for point in summary.points]
    assert times == sorted(times) and times[0] == 0
    assert all(
        point.ttft_p99_ms >= point.ttft_p50_ms for point in summary.points if point.ttft_p50_ms and point.ttft_p99_ms
    )
    assert summary.points[-1].waiting == 0 and max(point.running for point in summary.points) > 1


def test_a_cell_that_has_ended_counts_as_idle() -> None:
    plan = Plan(ROUND, Policy(), 2, cell_workers=1)
    early = CellResult([], [Sample(0, 1, 2, 0.5)], ended_us=1_000_000)
    late = CellResult([Tally(0, row(0))], [Sample(0, 0, 1, 0.5), Sample(10, 3, 4, 1.0)], ended_us=2_000_000)
    summary = summarise(plan, [early, late])
    assert [(point.waiting, point.running, point.kv_share) for point in summary.points] == [(1, 3, 0.5), (3, 4, 0.5)]
    assert values(summary)["duration"] == 2.0


def test_pooled_gaps_and_one_request_agree_with_the_plain_quantile() -> None:
    assert gap_quantile({100: 3, 500: 1}, 0.5) == 1.0 and gap_quantile({100: 3, 500: 1}, 0.99) == 5.0
    tally = Tally(0, row(0), times=[0, 1000, 3000, 7000, 8000])
    gaps: Counter[int] = Counter()
    tally.close(gaps, 10, 0)
    assert gaps == {100: 2, 200: 1, 400: 1} and tally.itl_max_us == 4000
    assert tally.itl_p99_us == round(quantile([1000, 2000, 4000, 1000], 0.99))


def test_a_service_gap_counts_only_while_both_wait() -> None:
    gaps = ServiceGaps()
    gaps.arrived("a")
    gaps.service_ms["a"] = 100.0
    gaps.sample()
    gaps.arrived("b")  # what a got before b was there is nobody's injury
    gaps.sample()
    gaps.service_ms["a"] = 130.0
    gaps.sample()
    gaps.service_ms["b"] = 20.0
    gaps.sample()
    assert gaps.max_gap_ms == 30.0
    gaps.ended("b")
    gaps.service_ms["a"] = 900.0
    gaps.sample()
    assert gaps.max_gap_ms == 30.0
