"""Which checks run, what the report claims, when a release passes; on subjects that are only pretended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from octavo.client import ModelInfo
from octavo.errors import Unavailable
from octavo.figures import Figure, Figures
from octavo.manifest import ReleaseGate
from octavo_cli.bench.work import BadPlan
from octavo_cli.check import gate
from octavo_cli.check.gate import CHECKS, Report, chosen_checks, run_checks
from octavo_cli.check.reference import BadReference, Quality, Reference, read_reference, shipped, write_reference
from octavo_cli.check.release import bounds_missed, judge
from octavo_cli.check.result import Result, Unjudged, Wrong
from octavo_cli.check.subject import Subject


class Pretended:
    async def model(self) -> ModelInfo:
        return ModelInfo("m", 8192, 49152, "llama", "f", 0)


def report(**verdicts: str) -> Report:
    return Report("m", tuple(Result(name, cast(Any, verdict), "because") for name, verdict in verdicts.items()))


def test_only_and_skip_name_checks() -> None:
    assert chosen_checks((), ()) == list(CHECKS)
    assert chosen_checks(("stops", "parity"), ("stops",)) == ["parity"]
    with pytest.raises(BadPlan, match="--skip: 'speed' is no check; use parity, logprobs"):
        chosen_checks((), ("speed",))


async def test_every_check_runs_whatever_became_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def passes(subject: Subject, reference: Reference | None) -> dict[str, Any]:
        return {"seen": 1}

    async def wrong(subject: Subject, reference: Reference | None) -> dict[str, Any]:
        raise Wrong("it is off", by=3)

    async def unjudged(subject: Subject, reference: Reference | None) -> dict[str, Any]:
        raise Unjudged("no reference")

    async def broken(subject: Subject, reference: Reference | None) -> dict[str, Any]:
        raise Unavailable("gone", reason="lost")

    checks = {"parity": wrong, "stops": unjudged, "usage": broken, "reclaim": passes}
    monkeypatch.setattr(gate, "CHECKS", checks)
    said: list[Result] = []
    subject = cast(Subject, Pretended())
    found = await run_checks(subject, None, list(checks), done=said.append)
    assert [(item.name, item.verdict) for item in found.results] == [
        ("parity", "fail"), ("stops", "skip"), ("usage", "fail"), ("reclaim", "pass")
    ]  # fmt: skip
    assert found.results[0].facts == {"by": 3} and "a request failed: lost: gone" in found.results[2].said
    assert not found.passed and found.claim == "not correct" and list(found.results) == said
    variant = await run_checks(subject, None, ["parity", "reclaim"], variant=True)
    assert variant.passed and variant.results[0].said == "a variant on purpose: it is off"
    assert variant.claim == "faster variant"


def test_what_may_be_claimed() -> None:
    assert report(parity="pass", quality="skip").claim == "the reference model"
    assert report(parity="skip", quality="pass").claim == "a variant whose quality is that of bfloat16"
    assert report(parity="skip", quality="skip").claim == "faster variant"
    assert report(parity="pass", quality="fail").claim == "not correct"
    assert report(parity="pass", quality="fail").why == "failed: quality"
    assert report(stops="pass").why == "neither parity nor quality was shown to hold"
    assert report(parity="pass", quality="skip").why == report(parity="skip", quality="pass").why == ""


def test_a_release_needs_a_reference_and_its_bounds() -> None:
    settings = ReleaseGate(max_ttft_p99_ms=500.0, max_itl_p99_ms=50.0, min_output_tokens_per_s=10.0)
    figures = Figures(
        "serve",
        (
            Figure("ttft_p99", 400.0, "ms"),
            Figure("itl_p99", 40.0, "ms"),
            Figure("throughput/output", 11.0, "tokens/s"),
            Figure("errors", 0.0, "requests"),
        ),
    )
    assert judge(settings, report(parity="pass"), figures).passed
    unsaid = judge(settings, report(parity="skip", stops="pass"), figures)
    assert not unsaid.passed and "nothing was compared with a reference: because" in unsaid.said
    failed = judge(settings, report(parity="pass", stops="fail"), None)
    assert not failed.passed and failed.said == "stops: because"
    slow = Figures(
        "serve",
        (*figures.results[:1], Figure("itl_p99", 60.0, "ms"), *figures.results[2:3], Figure("errors", 1.0, "requests")),
    )
    assert bounds_missed(settings, slow) == [
        "itl_p99 is 60.0 ms, release_gate.max_itl_p99_ms allows 50",
        "1 requests of the benchmark failed",
    ]
    assert bounds_missed(ReleaseGate(), figures) == []
    # a benchmark whose requests were refused, or that measured nothing of what is bounded, is no pass
    empty = Figures("serve", (Figure("throughput/output", 11.0, "tokens/s"), Figure("rejected", 2.0, "requests")))
    assert bounds_missed(settings, empty) == [
        "ttft_p99 was not measured, and release_gate.max_ttft_p99_ms bounds it",
        "itl_p99 was not measured, and release_gate.max_itl_p99_ms bounds it",
        "2 requests of the benchmark were refused",
    ]


def test_references_are_read_whole_or_refused(tmp_path: Path) -> None:
    known = shipped("SmolLM2")
    assert known is not None and len(known.parity) == 8 and known.quality is not None and shipped("nobody") is None
    path = tmp_path / "r.json"
    write_reference(path, known)
    assert read_reference(path) == known
    write_reference(path, Reference("m", quality=Quality(2.0, 3, 0.5, 4)))
    assert read_reference(path).parity == ()
    for text in (
        "{",
        "[" * 100_000,
        "[]",
        '{"model": "m", "parity": [{"text": "x"}]}',
        '{"model": "m", "quality": {"speed": 1}}',
    ):
        path.write_text(text)
        with pytest.raises(BadReference, match="is no reference"):
            read_reference(path)
    path.write_text(
        '{"model": "m", "parity": [{"text": "x", "prompt_ids": [1], "ids": [1, 2], "logprobs": [0], "margins": [1]}]}'
    )
    with pytest.raises(BadReference, match=r"parity\[0\]: its lists are not equally long"):
        read_reference(path)
    with pytest.raises(BadReference, match="cannot be read"):
        read_reference(tmp_path / "absent.json")
