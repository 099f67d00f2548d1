"""All checks in order, and the one sentence that they allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from octavo.errors import OctavoError

from octavo_cli.bench.work import BadPlan
from octavo_cli.check import isolation, logprobs, parity, quality, reclaim, sampling, stops, tools, usage
from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Check, Result, Unjudged, Wrong
from octavo_cli.check.subject import Subject

CHECKS: Mapping[str, Check] = {
    "parity": parity.check,
    "logprobs": logprobs.check,
    "sampling": sampling.check,
    "stops": stops.check,
    "usage": usage.check,
    "tools": tools.check,
    "isolation": isolation.check,
    "reclaim": reclaim.check,
    "quality": quality.check,
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a gate found. It passes when no check failed."""

    model: str
    results: tuple[Result, ...]
    variant: bool = False

    @property
    def passed(self) -> bool:
        return not any(item.verdict == "fail" for item in self.results)

    @property
    def claim(self) -> str:
        """What may be said of the served model beside its speed."""
        verdicts = {item.name: item.verdict for item in self.results}
        if not self.passed:
            return "not correct"
        if verdicts.get("parity") == "pass" and not self.variant:
            return "the reference model"
        if verdicts.get("quality") == "pass":
            return "a variant whose quality is that of bfloat16"
        return "faster variant"

    @property
    def why(self) -> str:
        """What stands in the way of a better claim; empty when there is none."""
        failed = [item.name for item in self.results if item.verdict == "fail"]
        if failed:
            return f"failed: {', '.join(failed)}"
        return "neither parity nor quality was shown to hold" if self.claim == "faster variant" else ""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        results = [asdict(item) for item in self.results]
        return {"model": self.model, "passed": self.passed, "claim": self.claim, "results": results}


def chosen_checks(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    """Names in their order. Raises BadPlan for one that does not exist."""
    for option, names in (("only", only), ("skip", skip)):
        for name in names:
            if name not in CHECKS:
                raise BadPlan(f"--{option}: {name!r} is no check; use {', '.join(CHECKS)}", field=option)
    return [name for name in CHECKS if (not only or name in only) and name not in skip]


async def run_checks(
    subject: Subject,
    reference: Reference | None,
    names: Sequence[str],
    variant: bool = False,
    done: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Every named check, whatever became of the others. `variant`: the weights differ from the reference's on purpose,
    so that only quality judges them. Raises OctavoError when nothing answers at all."""
    model = (await subject.model()).id
    results = []
    for name in names:
        result = await _run(name, subject, reference)
        if variant and name == "parity" and result.verdict == "fail":
            result = replace(result, verdict="skip", said=f"a variant on purpose: {result.said}")
        results.append(result)
        done(result)
    return Report(model, tuple(results), variant)


async def _run(name: str, subject: Subject, reference: Reference | None) -> Result:
    began_s = time.monotonic()
    try:
        facts = await CHECKS[name](subject, reference)
        result = Result(name, "pass", facts=facts)
    except Wrong as error:
        result = Result(name, "fail", str(error), error.facts)
    except Unjudged as error:
        result = Result(name, "skip", str(error))
    except OctavoError as error:
        result = Result(name, "fail", f"a request failed: {error.reason}: {error}")
    return replace(result, seconds=round(time.monotonic() - began_s, 3))
