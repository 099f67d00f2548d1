"""SLO classes and deadlines: parsed and carried with the request; what a passed deadline is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_scheduler.request import Outcome


@dataclass(frozen=True, slots=True)
class SloClass:
    """Targets of a class in milliseconds; 0: none."""

    name: str
    ttft_ms: float = 0.0
    itl_p99_ms: float = 0.0
    policy: str = ""
    """Policy of a queue of its own; empty: it shares the main queue."""
    weight: float = 1.0
    """Share of that queue against the others."""
    deadline_ms: float = 0.0
    """Of a request that brings no deadline of its own."""
    on_overload: str = "queue"
    """When the predicted TTFT misses the target: `queue` waits anyhow, `reject` refuses, `degrade` gives less."""
    pool: str = ""
    """Label of the workers that it runs on; empty: any."""
    degrade_pool: str = ""
    """Label of the workers that a degraded request runs on."""
    degrade_max_tokens: float = 0.0
    """Output tokens of a degraded request at most."""


def parse_classes(classes: Mapping[str, Mapping[str, float | str]]) -> dict[str, SloClass]:
    """The manifest's `scheduler.slo_classes`."""
    return {name: SloClass(name, **targets) for name, targets in classes.items()}  # type: ignore[arg-type]


def resolve(name: str, default: str, classes: Mapping[str, SloClass]) -> SloClass | None:
    """The class that a request names, or the default for an empty name; None when it is unknown."""
    return classes.get(name or default) or (SloClass(default) if not name else None)


def deadline_outcome(work_done: bool) -> Outcome:
    """What ends a request whose deadline has passed: in the queue before any work, or after some."""
    if work_done:
        return Outcome("deadline", "evicted-deadline", "the deadline passed while the request was being served")
    return Outcome("deadline", "rejected-deadline", "the deadline passed before the request could start")
