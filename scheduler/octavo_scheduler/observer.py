"""Facts of the core as spans, metrics and log lines. The core's clock is monotonic; spans carry wall time."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from octavo.rpc.tracing import parse_traceparent, record_span
from opentelemetry import trace

from octavo_scheduler.orders import Fact

SPANS = ("queue", "rejected", "kv.load", "attempt", "preempted", "handoff", "pause", "cancel")
KEPT_ATTEMPTS = 4096
"""Interrupted residencies whose spans the next wait of their request may still link to."""


class Observer:
    """Records a span per fact, one log line per request end, and hands every fact to `count`."""

    def __init__(
        self, tracer: trace.Tracer | None, log: logging.Logger, count: Callable[[Fact], None] = lambda fact: None
    ) -> None:
        self._tracer = tracer
        self._log = log
        self._count = count
        self._attempts: OrderedDict[str, trace.SpanContext] = OrderedDict()  # request id -> its interrupted residency

    def record(self, facts: Iterable[Fact], now_us: int) -> None:
        """`now_us` is the core's time of the event that the facts belong to."""
        for fact in facts:
            self._count(fact)
            if fact.name == "request_end":
                self._log_end(fact)
            elif self._tracer is not None and fact.traceparent and fact.name in SPANS:
                self._span(self._tracer, fact, time.time_ns() - now_us * 1000)

    def _span(self, tracer: trace.Tracer, fact: Fact, offset_ns: int) -> None:
        request_id = str(fact.attributes.get("octavo.request_id", ""))
        interrupted = self._attempts.pop(request_id, None) if fact.name == "preempted" else None
        context = record_span(
            tracer,
            fact.name,
            fact.traceparent,
            fact.start_us * 1000 + offset_ns,
            fact.end_us * 1000 + offset_ns,
            {
                name if name.startswith("octavo.") else f"octavo.{name}": value
                for name, value in fact.attributes.items()
            },
            links=[interrupted] if interrupted is not None else (),
        )
        if fact.name == "attempt":
            self._attempts[request_id] = context
            while len(self._attempts) > KEPT_ATTEMPTS:
                self._attempts.popitem(last=False)

    def _log_end(self, fact: Fact) -> None:
        said = fact.attributes
        parent = parse_traceparent(fact.traceparent) if fact.traceparent else None
        self._log.info(
            "request %s %s%s tokens=%s ms=%.1f",
            said["octavo.request_id"],
            said["outcome"],
            f" ({said['reason']})" if said["reason"] else "",
            said["tokens"],
            (fact.end_us - fact.start_us) / 1000,
            extra={
                "request_id": said["octavo.request_id"],
                "trace_id": f"{parent.trace_id:032x}" if parent is not None else "",
            },
        )
