"""Facts of the core as spans and log lines. The core's clock is monotonic; spans carry wall time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from octavo.rpc.tracing import record_span
from opentelemetry import trace

from octavo_scheduler.orders import Fact

SPANS = ("queue", "kv.load", "preempted", "cancel")


class Observer:
    """Records a span per fact and one log line per request end."""

    def __init__(self, tracer: trace.Tracer | None, log: logging.Logger) -> None:
        self._tracer = tracer
        self._log = log

    def record(self, facts: Iterable[Fact], now_us: int) -> None:
        """`now_us` is the core's time of the event that the facts belong to."""
        for fact in facts:
            if fact.name == "request_end":
                self._log.info(
                    "request %s %s%s tokens=%s ms=%.1f",
                    fact.attributes["octavo.request_id"],
                    fact.attributes["outcome"],
                    f" ({fact.attributes['reason']})" if fact.attributes["reason"] else "",
                    fact.attributes["tokens"],
                    (fact.end_us - fact.start_us) / 1000,
                )
            elif self._tracer is not None and fact.traceparent and fact.name in SPANS:
                offset_ns = time.time_ns() - now_us * 1000
                attributes = {
                    name if name.startswith("octavo.") else f"octavo.{name}": value
                    for name, value in fact.attributes.items()
                }
                record_span(
                    self._tracer,
                    fact.name,
                    fact.traceparent,
                    fact.start_us * 1000 + offset_ns,
                    fact.end_us * 1000 + offset_ns,
                    attributes,
                )
