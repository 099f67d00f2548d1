"""Service level objectives of one request: `ttft=500ms,itl_p99=50ms` and whether a request met them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.figures import quantile

from octavo_cli.bench.sample import Sample
from octavo_cli.bench.work import BadPlan

_TERM = re.compile(r"(\w+)=(\d+(?:\.\d+)?)(us|ms|s)", re.ASCII)
_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def _itl(share: float) -> Callable[[Sample], float | None]:
    return lambda sample: quantile(sample.gaps_ms, share) if sample.gaps_ms else None


METRICS: Mapping[str, Callable[[Sample], float | None]] = {
    "ttft": lambda sample: sample.ttft_ms,
    "tpot": lambda sample: sample.tpot_ms,
    "e2e": lambda sample: sample.e2e_ms,
    "itl_p50": _itl(0.5),
    "itl_p95": _itl(0.95),
    "itl_p99": _itl(0.99),
    "itl_max": lambda sample: sample.stall_ms,
}
"""Each of one request; its ITL quantiles are over its own gaps."""

NEED_A_TOKEN = ("ttft", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in milliseconds; none: every whole answer is a good one."""

    bounds_ms: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{name}={bound:g}ms" for name, bound in self.bounds_ms)

    def met(self, sample: Sample) -> bool:
        """A whole answer within every bound; an answer of one token has no gap that could be too long."""
        return sample.outcome == "ok" and not self.missed(sample)

    def missed(self, sample: Sample) -> list[str]:
        """The metrics that were over their bound; an answer without a token never had its first or last one in time."""
        measured = ((name, bound, METRICS[name](sample)) for name, bound in self.bounds_ms)
        return [
            name
            for name, bound, value in measured
            if (value > bound if value is not None else name in NEED_A_TOKEN and not sample.arrivals)
        ]


def parse_slo(text: str) -> Slo:
    """`ttft=500ms,itl_p99=50ms`; empty: no bound. Raises BadPlan naming the term."""
    bounds: dict[str, float] = {}
    if text and not text.replace(",", "").strip():
        raise BadPlan(f"--slo: {text!r} holds no bound; write ttft=500ms,itl_p99=50ms", field="slo")
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _TERM.fullmatch(term)
        if not match or match.group(1) not in METRICS:
            raise BadPlan(
                f"--slo: {term!r} is no bound; write ttft=500ms with one of {', '.join(METRICS)}", field="slo"
            )
        if match.group(1) in bounds:
            raise BadPlan(f"--slo: {match.group(1)} is bound twice; leave one out", field="slo")
        bounds[match.group(1)] = float(match.group(2)) * _UNIT_MS[match.group(3)]
    return Slo(tuple(bounds.items()))
