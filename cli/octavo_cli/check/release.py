"""The release gate of a manifest: the checks, then a benchmark held against its bounds, over the internal channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError
from octavo.figures import Figures, to_json
from octavo.manifest import ReleaseGate

from octavo_cli.bench.closed import closed_loop
from octavo_cli.check.gate import Report, chosen_checks, run_checks
from octavo_cli.check.reference import read_reference, shipped
from octavo_cli.check.result import Result
from octavo_cli.check.subject import Subject
from octavo_cli.probe import Probe

SOCKET = "release-gate.sock"
"""In the run folder; the gateway serves it while the gate is closed."""
REPORT = "release-gate.json"
NEEDED = ("parity", "quality")
"""One of these must have passed: a gate that compared nothing with a reference has shown nothing of the model."""
CONCURRENCY, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 128, 32


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says, and all that it rests on."""

    passed: bool
    said: str
    report: Report | None = None
    figures: Figures | None = None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "passed": self.passed,
            "said": self.said,
            "checks": self.report.to_json() if self.report else None,
            "bench": to_json(self.figures) if self.figures else None,
        }


def bounds_missed(settings: ReleaseGate, figures: Figures) -> list[str]:
    """The manifest's bounds that the benchmark did not keep, in words."""
    values = {item.name: item.value for item in figures.results}
    missed = []
    for name, bound, key in (
        ("ttft_p99", settings.max_ttft_p99_ms, "release_gate.max_ttft_p99_ms"),
        ("itl_p99", settings.max_itl_p99_ms, "release_gate.max_itl_p99_ms"),
    ):
        if bound and name not in values:
            missed.append(f"{name} was not measured, and {key} bounds it")
        elif bound and values[name] > bound:
            missed.append(f"{name} is {values[name]:.1f} ms, {key} allows {bound:g}")
    output = values.get("throughput/output", 0.0)
    if output < settings.min_output_tokens_per_s:
        wanted = settings.min_output_tokens_per_s
        missed.append(f"output is {output:.1f} tokens/s, release_gate.min_output_tokens_per_s wants {wanted:g}")
    for name, word in (("errors", "failed"), ("rejected", "were refused")):
        if values.get(name, 0.0):
            missed.append(f"{values[name]:g} requests of the benchmark {word}")
    return missed


def judge(settings: ReleaseGate, report: Report, figures: Figures | None) -> Verdict:
    """Passes when nothing failed, a reference was met, and every bound was kept."""
    wrong = [f"{item.name}: {item.said}" for item in report.results if item.verdict == "fail"]
    if not wrong and not any(item.verdict == "pass" for item in report.results if item.name in NEEDED):
        unsaid = next((item.said for item in report.results if item.name in NEEDED), "parity and quality are skipped")
        wrong.append(f"nothing was compared with a reference: {unsaid}")
    if figures is not None:
        wrong += bounds_missed(settings, figures)
    said = "; ".join(wrong) if wrong else f"{report.model} is {report.claim}"
    return Verdict(not wrong, said, report, figures)


async def run_gate(
    settings: ReleaseGate, run_dir: Path, scheduler: str, api_keys: Sequence[str], done: Callable[[Result], None]
) -> Verdict:
    """Checks and measures the cluster of a run folder before it is ready, and tells its gateway the verdict.

    Raises OctavoError when the gateway's internal channel does not answer; the gate then stays closed.
    """
    url = f"unix:{run_dir / SOCKET}"
    first, second = (*api_keys, "", "")[:2]
    try:
        async with Subject(url, scheduler, first, second, settings.precision) as subject:
            model = (await subject.model()).id
            reference = read_reference(Path(settings.reference)) if settings.reference else shipped(model)
            names = chosen_checks((), settings.skip)
            report = await run_checks(subject, reference, names, settings.variant, done)
        verdict = judge(settings, report, None)
        if verdict.passed and settings.bench_requests:
            measured = await closed_loop(
                url,
                concurrency=CONCURRENCY,
                requests=settings.bench_requests,
                prompt_tokens=PROMPT_TOKENS,
                max_tokens=OUTPUT_TOKENS,
                api_key=first,
            )
            verdict = judge(settings, report, measured.figures)
    except OctavoError as error:
        verdict = Verdict(False, f"the checks could not be made: {error}")
    async with Probe(url, timeout_s=10.0) as probe:
        await probe.decide(verdict.passed, verdict.said)
    return verdict
