"""Each of the six symptoms, from spans and from a bench's figures, and what is said when there is nothing to say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from octavo.figures import Figure, Figures
from octavo.ttft import PARTS
from octavo_cli.commands.diagnose import seconds_of
from octavo_cli.diagnosis import SYMPTOMS, Facts, NothingToDiagnose, Targets, diagnose, facts_of, facts_of_figures
from octavo_cli.spans import Span

MS = 1_000_000


def request(
    number: int,
    parts_ms: dict[str, float],
    *,
    tokens: int = 20,
    itl_ms: float = 10.0,
    stall_ms: float = 12.0,
    **said: Any,
) -> Span:
    ttft_ms = sum(parts_ms.values())
    total_ms = ttft_ms + itl_ms * (tokens - 1)
    attributes = {f"octavo.ttft.{name}_us": int(parts_ms.get(name, 0) * 1000) for name in PARTS}
    attributes |= {
        "gen_ai.latency.time_to_first_token": ttft_ms / 1e3,
        "gen_ai.latency.e2e": total_ms / 1e3,
        "gen_ai.usage.output_tokens": tokens,
        "octavo.longest_stall_us": int(stall_ms * 1000),
        **{f"octavo.{key}": value for key, value in said.items()},
    }  # fmt: skip
    return Span(f"{number:032x}", f"r{number}", "", "request", "gateway", 0, int(total_ms * MS), attributes, (), "")


def child(number: int, name: str, duration_ms: float, **said: Any) -> Span:
    attributes = {f"octavo.{key.replace('__', '.')}": value for key, value in said.items()}
    return Span(
        f"{number:032x}",
        f"{name}{number}",
        f"r{number}",
        name,
        "gpuworker",
        0,
        int(duration_ms * MS),
        attributes,
        (),
        "",
    )


CALM = {"gateway": 0.5, "tokenize": 0.5, "queue": 1.0, "prefill": 40.0, "sample": 1.0, "transport": 1.0}
LATE = {name: {**CALM, name: 3000.0} for name in ("queue", "prefill", "kv_load", "transport")}
TIGHT = Targets(ttft_ms=500, itl_ms=50)


@pytest.mark.parametrize(
    ("symptom", "spans"),
    [
        ("queue", [request(1, LATE["queue"])]),
        ("prefill", [request(1, LATE["prefill"])]),
        ("kv_load", [request(1, LATE["kv_load"])]),
        ("transport", [request(1, LATE["transport"])]),
        ("decode", [request(1, CALM, itl_ms=400.0, stall_ms=420.0)]),
        ("preemption", [request(1, CALM, stall_ms=2000.0, preemptions=1), request(2, CALM)]),
    ],
)
def test_each_symptom_is_the_first_row(symptom: str, spans: list[Span]) -> None:
    first = diagnose(facts_of(spans), TIGHT)[0]
    assert first.symptom == symptom and first.over
    advice = SYMPTOMS[symptom]
    assert (first.phase, first.bound, first.compare, first.cost) == (
        advice.phase,
        advice.bound,
        advice.compare,
        advice.cost,
    )


def test_what_steps_achieved_says_what_bound_them() -> None:
    steps = {"step__bound": "host", "step__memory_share": 0.1, "step__compute_share": 0.05}
    spans = [request(1, CALM, itl_ms=400.0), child(1, "decode", 7000.0, **steps), child(1, "prefill", 40.0)]
    first = diagnose(facts_of(spans), TIGHT)[0]
    assert (first.symptom, first.bound) == ("decode", "host")
    assert "10% of peak bytes/s, 5% of peak FLOP/s" in first.evidence


def test_a_load_says_its_bandwidth() -> None:
    spans = [request(1, LATE["kv_load"]), child(1, "kv.load", 3000.0, bytes=600_000_000)]
    assert "200 MB/s" in diagnose(facts_of(spans), TIGHT)[0].evidence


def test_a_healthy_cluster_has_no_row_over_its_target() -> None:
    findings = diagnose(facts_of([request(1, CALM), request(2, CALM)]), TIGHT)
    assert findings and not any(item.over for item in findings)
    assert findings[0].symptom in ("decode", "prefill")


def test_only_requests_of_the_time_count() -> None:
    old, new = request(1, LATE["queue"]), request(2, LATE["prefill"])
    late = Span(**{**{name: getattr(new, name) for name in new.__slots__}, "end_ns": 10**15})
    facts = facts_of([old, late], since_ns=10**14)
    assert facts.requests == 1 and diagnose(facts, TIGHT)[0].symptom == "prefill"


def search(number: int, parts_ms: dict[str, float]) -> Span:
    """A beam search's request: its steps are in the relay, and all its tokens come at once."""
    return request(number, parts_ms, tokens=160, itl_ms=0.001, stall_ms=0.001, beam_width=4)


def beams(number: int, start_ms: float, duration_ms: float, steps: int) -> list[Span]:
    """Decode spans of two beams of one residency; the second begins a little later."""
    found = [child(number, "decode", duration_ms, decode__steps=steps) for _ in range(2)]
    return [
        replace(item, start_ns=int((start_ms + at) * MS), end_ns=int((start_ms + duration_ms) * MS))
        for at, item in enumerate(found)
    ]


def test_the_steps_of_a_beam_search_are_decode() -> None:
    facts = facts_of([search(1, {**CALM, "relay": 3003.0}), *beams(1, 50.0, 3000.0, 30)])
    assert facts.parts_ms["relay"] == pytest.approx(3.0) and facts.parts_ms["retry"] == 0.0
    assert facts.itl_ms == [pytest.approx(100.0)] and facts.ttft_ms == [pytest.approx(47.0)] and facts.stall_ms == []
    first = diagnose(facts, TIGHT)[0]
    assert first.symptom == "decode" and first.over
    assert not any(item.symptom == "transport" and item.over for item in diagnose(facts, TIGHT))


def test_what_lies_between_two_stays_of_a_search_is_a_wait() -> None:
    """Two residencies of 1 s and 0.5 s, 2 s apart."""
    spans = [*beams(1, 50.0, 1000.0, 10), *beams(1, 3050.0, 500.0, 10)]
    facts = facts_of([search(1, {**CALM, "relay": 3500.0}), *spans])
    assert facts.parts_ms["retry"] == pytest.approx(2000.0) and facts.parts_ms["relay"] == pytest.approx(0.0)
    assert facts.itl_ms == [pytest.approx(75.0)] and facts.ttft_ms == [pytest.approx(2044.0)]


def test_a_search_whose_worker_left_no_spans_is_no_transport_either() -> None:
    facts = facts_of([search(1, {**CALM, "relay": 3000.0})])
    assert facts.parts_ms["relay"] == facts.parts_ms["retry"] == 0.0 and facts.itl_ms == []
    assert diagnose(facts, TIGHT)[0].symptom == "prefill"


def test_the_worst_symptom_is_listed_however_small_it_is() -> None:
    findings = diagnose(facts_of([request(1, {"prefill": 1.0, "queue": 0.1}, itl_ms=0.01)]), TIGHT)
    assert [item.symptom for item in findings] == ["prefill"] and findings[0].score < 0.05


def test_without_requests_there_is_nothing_to_diagnose() -> None:
    with pytest.raises(NothingToDiagnose, match="widen --last"):
        diagnose(Facts(), Targets())


def bench(**values: float) -> Figures:
    rows = tuple(Figure(name, value, "ms", 10) for name, value in values.items())
    return Figures("serve", rows, {}, {}, "x")


@pytest.mark.parametrize(
    ("values", "symptom"),
    [
        (
            {
                "ttft_p50": 900,
                "ttft_p95": 1500,
                "server_ttft_p50": 890,
                "server_queue_p50": 800,
                "server_prefill_p50": 60,
            },
            "queue",
        ),
        (
            {
                "ttft_p50": 900,
                "ttft_p95": 1500,
                "server_ttft_p50": 890,
                "server_queue_p50": 10,
                "server_prefill_p50": 860,
            },
            "prefill",
        ),
        (
            {
                "ttft_p50": 900,
                "ttft_p95": 1500,
                "server_ttft_p50": 20,
                "ttft_outside_server_p50": 880,
                "server_prefill_p50": 10,
            },
            "transport",
        ),
        (
            {
                "ttft_p50": 900,
                "ttft_p95": 1500,
                "server_ttft_p50": 890,
                "ttft_outside_server_p50": 3,
                "server_worker_wait_p50": 700,
                "server_prefill_p50": 180,
            },
            "queue",
        ),
        ({"ttft_p50": 40, "server_prefill_p50": 35, "server_ttft_p50": 39, "tpot_p50": 300, "itl_p50": 290}, "decode"),
    ],
)
def test_a_benchs_figures_name_the_phase_too(values: dict[str, float], symptom: str) -> None:
    assert diagnose(facts_of_figures(bench(**values)), TIGHT)[0].symptom == symptom


@pytest.mark.parametrize("suffix", ["", "/cold"])
def test_a_benchs_figures_are_told_as_they_are(suffix: str) -> None:
    rows = [("ttft_p50", 100.0, 20), ("ttft_p95", 200.0, 20), ("server_prefill_p50", 80.0, 20), ("server_ttft_p50", 90.0, 20),
            ("tpot_p50", 10.0, 20), ("tpot_p95", 30.0, 20), ("itl_p50", 9.0, 1260)]  # fmt: skip
    figures = [Figure(name + suffix, value, "ms", n) for name, value, n in rows]
    parts = [Figure(f"ttft_p50/miss{suffix}", 4000.0, "ms", 3), Figure(f"e2e_p50/short{suffix}", 1.0, "ms", 3)]
    other = [Figure("ttft_p50/warm", 1.0, "ms", 20), Figure("tpot_p50/warm", 900.0, "ms", 20)]
    facts = facts_of_figures(Figures("serve", (*figures, *parts, *other)))
    assert (facts.requests, facts.ttft_ms, facts.itl_ms) == (20, [100.0, 200.0], [10.0, 30.0])
    found = {item.symptom: item.evidence for item in diagnose(facts, TIGHT)}
    assert "median 80.0 ms" in found["prefill"] and "p90 of a request's mean gap 28.0 ms" in found["decode"]


def test_figures_of_something_else_are_refused() -> None:
    with pytest.raises(NothingToDiagnose, match="no ttft_p50"):
        facts_of_figures(bench(decode=1.0))


def test_durations() -> None:
    assert [seconds_of(text) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]
    with pytest.raises(ValueError, match="write 90s, 10m or 2h"):
        seconds_of("ten")
