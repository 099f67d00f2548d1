"""Facts become spans with the right parent, times and attributes."""

from __future__ import annotations

import logging
import time
from random import Random

from octavo_scheduler.observer import Observer
from octavo_scheduler.orders import Fact
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.harness import Simulation

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def recorded(facts: list[Fact], now_us: int) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Observer(provider.get_tracer("test"), logging.getLogger("test")).record(facts, now_us)
    return exporter


def test_a_fact_becomes_a_child_span_with_wall_times() -> None:
    fact = Fact("queue", PARENT, 1_000, 5_000, {"octavo.request_id": "r", "cached_tokens": 3})
    before_ns = time.time_ns()
    (span,) = recorded([fact], 6_000).get_finished_spans()
    assert span.parent is not None and f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.end_time - span.start_time == 4_000_000
    assert abs(span.end_time - (before_ns - 1_000_000)) < 10**9
    assert dict(span.attributes or {}) == {"octavo.request_id": "r", "octavo.cached_tokens": 3}


def test_without_a_parent_there_is_no_span() -> None:
    assert recorded([Fact("queue", "", 1, 2)], 3).get_finished_spans() == ()


def test_a_cancelled_request_leaves_queue_and_cancel_facts() -> None:
    simulation = Simulation(Random(1), delay_us=0)
    simulation.add_worker(ChaosWorker(Random(3), "w0", num_blocks=33, calm=True))
    client = simulation.submit(simulation.add_gateway(), [1, 2, 3], 50)
    for _ in range(5):
        simulation.advance(3000)
        simulation.run_link(simulation.links[0])
    simulation.cancel(client)
    simulation.settle()
    facts = {fact.name: fact for fact in simulation.facts}
    assert set(facts) == {"queue", "residency", "request_end", "cancel"}
    cancel = facts["cancel"]
    assert cancel.attributes["reason"] == "client_cancel" and cancel.attributes["blocks_freed"] >= 1
    assert cancel.attributes["latency_us"] == cancel.end_us - cancel.start_us > 0
