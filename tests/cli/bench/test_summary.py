"""Figures of runs that were written down by hand."""

from __future__ import annotations

import pytest
from octavo.figures import Figure
from octavo_cli.bench.sample import Run, Sample, ServerTimes
from octavo_cli.bench.slo import Slo, parse_slo
from octavo_cli.bench.summary import attainment, length_class, summarize
from octavo_cli.bench.work import BadPlan


def sample(at_s: float, *arrivals: tuple[float, int], name: str = "", **given: object) -> Sample:
    """A request that was sent 2 ms late; arrivals are (seconds, tokens)."""
    tokens = sum(count for _, count in arrivals)
    made = Sample(name or f"s{at_s}", 0, at_s, sent_s=at_s + 0.002, arrivals=list(arrivals), outcome="ok")
    made.ended_s, made.output_tokens, made.prompt_tokens = (arrivals[-1][0] if arrivals else at_s + 1.0), tokens, 10
    for key, value in given.items():
        setattr(made, key, value)
    return made


def values(run: Run, slo: Slo = Slo(), cost: float = 0.0) -> dict[str, Figure]:  # noqa: B008  it is frozen
    return {item.name: item for item in summarize(run, slo, cost)}


def test_latencies_count_from_the_scheduled_arrival() -> None:
    run = Run((sample(1.0, (1.5, 1), (1.6, 1), (2.0, 2)),), client_cpu_s=0.1)
    found = values(run)
    assert found["ttft_p50"].value == pytest.approx(500.0)
    assert found["e2e_p50"].value == pytest.approx(1000.0)
    assert found["tpot_p50"].value == pytest.approx(500.0 / 3)
    assert found["itl_p50"].value == pytest.approx(250.0) and found["itl_p50"].n == 2
    assert found["itl_max"].value == found["stall_p50"].value == pytest.approx(400.0)
    assert found["send_lag_max"].value == pytest.approx(2.0)
    assert found["tokens_per_chunk"].value == pytest.approx(4 / 3)
    assert found["client_cpu"].value == pytest.approx(0.1) and found["wall"].value == pytest.approx(1.0)
    assert found["throughput/output"].value == pytest.approx(4.0) and found["throughput/total"].value == pytest.approx(
        14.0
    )


def test_one_chunk_has_no_gap_and_one_token_no_tpot() -> None:
    found = values(Run((sample(0.0, (0.5, 1)), sample(0.0, (0.7, 3), name="b"))))
    assert not {"itl_p50", "tpot_p50", "stall_p50"} & set(found) and found["e2e_p50"].n == 2


def test_hits_and_misses_are_apart() -> None:
    run = Run((sample(0.0, (0.1, 1), cached_tokens=5), sample(0.0, (0.9, 1), name="b", cached_tokens=0)))
    found = values(run)
    assert found["ttft_p50/hit"].value == pytest.approx(100.0) and found["ttft_p50/miss"].value == pytest.approx(900.0)
    assert found["cached_share"].value == pytest.approx(0.25)
    silent = values(Run((sample(0.0, (0.1, 1), cached_tokens=None),)))
    assert "cached_share" not in silent and "ttft_p50/miss" not in silent


def test_length_classes() -> None:
    assert [length_class(tokens) for tokens in (1, 32, 33, 256, 257)] == ["short", "short", "medium", "medium", "long"]
    found = values(Run((sample(0.0, (1.0, 20)), sample(0.0, (2.0, 300), name="b"))))
    assert found["e2e_p50/short"].value == pytest.approx(1000.0) and found["e2e_p50/long"].value == pytest.approx(
        2000.0
    )


def test_ends_are_counted_apart_and_never_as_output() -> None:
    run = Run(
        (
            sample(0.0, (1.0, 4)),
            sample(0.0, (0.5, 4), name="c", outcome="cancelled"),
            sample(0.0, name="r", outcome="rejected"),
            sample(0.0, (0.2, 2), name="f", outcome="failed"),
        )
    )
    found = values(run)
    assert [found[name].value for name in ("completed", "errors", "rejected", "cancelled")] == [1, 1, 1, 1]
    assert found["throughput/output"].value == pytest.approx(4.0) and found["attainment"].value == pytest.approx(1 / 3)
    assert found["e2e_p50"].n == 1 and found["ttft_p50"].n == 3


@pytest.mark.parametrize("cancelled", [0, 3, 9])
def test_all_that_was_spent_is_paid_by_what_was_of_use(cancelled: int) -> None:
    done = [sample(float(k), (k + 0.5, 5)) for k in range(10 - cancelled)]
    left = [sample(float(k), (k + 0.5, 5), outcome="cancelled") for k in range(10 - cancelled, 10)]
    late = sample(0.0, (9.5, 5), name="late")
    found = values(Run((*done, *left, late)), parse_slo("ttft=1s"), cost=3600.0)
    spent = 9.5  # one unit of money per second
    assert found["cost/total"].value == pytest.approx(spent)
    assert found["cost/request"].value == pytest.approx(spent / (len(done) + 1))
    assert found["cost/output_token"].value == pytest.approx(spent / (5 * (len(done) + 1)))
    assert found["cost/slo_request"].value == pytest.approx(spent / len(done))
    assert found["goodput"].value == pytest.approx(len(done) / 9.5)


def test_a_cost_over_nothing_is_left_out() -> None:
    found = values(Run((sample(0.0, (1.0, 2), outcome="failed"),)), cost=10.0)
    assert "cost/total" in found and not {"cost/request", "cost/output_token", "cost/slo_request"} & set(found)


def test_of_a_duplicate_the_first_answer_counts() -> None:
    twice = (sample(0.0, (3.0, 2), name="a"), sample(0.0, (1.0, 2), name="a", duplicate=True))
    found = values(Run(twice), cost=3600.0)
    assert (
        found["completed"].value == 1
        and found["duplicates"].value == 1
        and found["cost/request"].value == pytest.approx(3.0)
    )


def test_the_servers_account_stands_beside_the_clients() -> None:
    run = Run(
        (sample(0.0, (0.5, 1), server=ServerTimes(450.0, 460.0, queue_ms=3.0, prefill_ms=200.0, worker_wait_ms=240.0)),)
    )
    found = values(run)
    assert found["server_worker_wait_p50"].value == 240.0
    assert found["server_ttft_p50"].value == 450.0 and found["ttft_outside_server_p50"].value == pytest.approx(50.0)


def test_slo_terms() -> None:
    slo = parse_slo("ttft=500ms, itl_p99=0.05s,e2e=2000000us")
    assert dict(slo.bounds_ms) == {"ttft": 500.0, "itl_p99": 50.0, "e2e": 2000.0}
    good, slow = sample(0.0, (0.4, 1), (0.44, 1)), sample(0.0, (0.4, 1), (0.5, 1), name="b")
    assert slo.met(good) and slo.missed(slow) == ["itl_p99"]
    assert attainment(Run((good, slow)), slo) == 0.5
    for text in ("ttft", "ttft=5", "ttft=-1ms", "itl_p90=3ms"):
        with pytest.raises(BadPlan, match="--slo"):
            parse_slo(text)


def test_an_answer_without_a_token_met_no_bound_on_its_tokens() -> None:
    run = Run((sample(0.0), sample(1.0, (1.1, 1))))
    slo = parse_slo("ttft=500ms")
    assert attainment(run, slo) == 0.5 and values(run, slo)["slo_missed/ttft"].value == 1
    assert attainment(run, parse_slo("itl_p99=5ms")) == 1.0  # it has no gap that could be too long
