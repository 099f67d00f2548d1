"""What feeds the gateway's instruments; their names stand in instruments.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from octavo.errors import OctavoError
from octavo.rpc.instruments import Instruments, QuickHistogram, length_class
from octavo.ttft import PARTS
from prometheus_client import CollectorRegistry

from octavo_gateway.instruments import TABLE
from octavo_gateway.live import LiveRequest
from octavo_gateway.requests import Cost
from octavo_gateway.tool_calls import is_tool_call
from octavo_gateway.ttft import OVERLAP_US

UNKNOWN_CLASS = "unknown"
PROVIDER = "octavo"


GAPS = "octavo_gateway_inter_token_seconds"


class Load(Protocol):
    """The cell's load as the scheduler tells it."""

    requests_waiting: int
    requests_running: int
    blocks_total: int
    blocks_free: int
    block_tokens: int


class GatewayMetrics:
    """Fed by live requests, once at each moment and once at the end. `slo_classes`: name -> {ttft_ms, itl_p99_ms}."""

    def __init__(
        self,
        registry: CollectorRegistry,
        live_count: Callable[[], int],
        slo_classes: Mapping[str, Mapping[str, float | str]] | None = None,
        default_class: str = "default",
        model: str = "",
    ) -> None:
        self._gaps_s = QuickHistogram(next(item for item in TABLE if item.name == GAPS))
        registry.register(self._gaps_s)
        self._of = Instruments(registry, TABLE, leave_out=(GAPS,))
        self._of.gauge("octavo_gateway_live_requests").set_function(live_count)
        self._classes = dict(slo_classes or {})
        self._default_class = default_class
        self._model = model
        self._of.counter("octavo_gateway_ttft_overlaps").inc(0)
        self._of.gauge("vllm:lora_requests_info").labels("0", "", "").set(time.time())

    def itl_target_s(self, slo_class: str) -> float:
        """The class's bound of the inter-token latency; 0: none."""
        return float(self._classes.get(slo_class or self._default_class, {}).get("itl_p99_ms", 0.0)) / 1e3

    def watch_viewers(self, viewers: Callable[[], int]) -> None:
        """Who looks at the live view now."""
        self._of.gauge("octavo_gateway_page_viewers").set_function(viewers)

    def first_token(self, seconds: float) -> None:
        self._of.histogram("octavo_gateway_time_to_first_token_seconds").observe(seconds)

    def token_gaps(self, seconds: float, arrivals: int) -> None:
        """Tokens came so many times, each after `seconds` per token."""
        self._gaps_s.observe(seconds, arrivals)

    def cell_load(self, load: Load) -> None:
        """What the scheduler said of its cell, for routers that read vLLM's names."""
        of, model = self._of, self._model
        of.gauge("vllm:num_requests_waiting").labels(model).set(load.requests_waiting)
        of.gauge("vllm:num_requests_running").labels(model).set(load.requests_running)
        used = 1 - load.blocks_free / load.blocks_total if load.blocks_total else 0.0
        of.gauge("vllm:kv_cache_usage_perc").labels(model).set(used)
        config = of.gauge("vllm:cache_config_info")
        config.clear()
        config.labels(model, str(load.block_tokens), str(load.blocks_total)).set(1)

    def ended(self, live: LiveRequest) -> None:
        """Counts a request once, at its terminal."""
        of = self._of
        of.counter("octavo_gateway_requests").labels(live.outcome, live.error.reason if live.error else "").inc()
        self._cost(live.outcome, live.cost)
        if live.admitted is None:
            return
        prompt_tokens = len(live.admitted.prompt_ids)
        tokens = of.counter("octavo_gateway_tokens")
        tokens.labels("prompt").inc(prompt_tokens)
        tokens.labels("cached").inc(live.cached_tokens)
        tokens.labels("completion").inc(live.completion_tokens)
        lengths = length_class(prompt_tokens), length_class(live.completion_tokens)
        of.histogram("octavo_gateway_request_duration_seconds").labels(*lengths).observe(live.completed - live.received)
        self._first_token_parts(live, lengths[0])
        if live.gap_tokens:
            of.histogram("octavo_gateway_longest_stall_seconds").observe(live.longest_gap_s)
        if live.finished and live.gap_tokens:
            per_token_s = (live.last_token - live.first_token) / live.gap_tokens
            of.histogram("octavo_gateway_time_per_output_token_seconds").labels(*lengths).observe(per_token_s)
        if live.finished:
            calls = sum(bool(c.tool_calls) or is_tool_call(c.pieces, c.tail) for c in live.choices)
            for _ in range(calls):
                of.histogram("octavo_gateway_time_to_valid_tool_call_seconds").observe(live.last_token - live.received)
        self._gen_ai(live, "chat" if live.admitted.kind == "chat" else "text_completion")
        self._judge(live)

    def _gen_ai(self, live: LiveRequest, operation: str) -> None:
        """The same under OpenTelemetry's names, for dashboards that are made for any server."""
        of, labels = self._of, (operation, PROVIDER, self._model)
        error_type = live.error.reason if live.error else ""
        duration = of.histogram("gen_ai_server_request_duration_seconds").labels(*labels, error_type)
        duration.observe(live.completed - live.received)
        if not live.finished or not live.first_token:
            return
        first_s = live.first_token - live.received
        of.histogram("gen_ai_server_time_to_first_token_seconds").labels(*labels).observe(first_s)
        if live.gap_tokens:
            per_token_s = (live.last_token - live.first_token) / live.gap_tokens
            of.histogram("gen_ai_server_time_per_output_token_seconds").labels(*labels).observe(per_token_s)

    def _first_token_parts(self, live: LiveRequest, prompt_class: str) -> None:
        if not live.first_token:
            return
        by_class = self._of.histogram("octavo_gateway_time_to_first_token_by_class_seconds")
        by_class.labels(prompt_class, "hit" if live.cached_tokens else "miss").observe(live.first_token - live.received)
        measured = live.ttft_parts()
        if measured is None:
            return
        parts, overlap_us = measured
        by_part = self._of.histogram("octavo_gateway_ttft_part_seconds")
        for name in PARTS:
            by_part.labels(name).observe(getattr(parts, f"{name}_us") / 1e6)
        if overlap_us > OVERLAP_US:
            self._of.counter("octavo_gateway_ttft_overlaps").inc()

    def _judge(self, live: LiveRequest) -> None:
        """Counts the request as goodput or as a miss of its SLO class."""
        if live.admitted is None or live.outcome == "cancelled":
            return
        name = live.admitted.slo_class or self._default_class
        if name not in self._classes and name != self._default_class:
            name = UNKNOWN_CLASS  # a client's own word must not become a label
        cause = self.missed_by(live)
        result = "missed" if cause else "met"
        self._of.counter("octavo_gateway_slo_requests").labels(name, result, cause).inc()

    def missed_by(self, live: LiveRequest) -> str:
        """Why an ended request missed its class; empty: it met it. p99 of its gaps: at most 1% of its tokens came late."""
        if not live.finished:
            return live.outcome
        name = live.admitted.slo_class if live.admitted is not None else ""
        target_s = float(self._classes.get(name or self._default_class, {}).get("ttft_ms", 0.0)) / 1e3
        if target_s and live.first_token and live.first_token - live.received > target_s:
            measured = live.ttft_parts()
            return measured[0].largest() if measured is not None else "ttft"
        if live.late_tokens > 0.01 * live.gap_tokens:
            return "itl"
        return ""

    def _cost(self, outcome: str, cost: Cost) -> None:
        """What a request took, under the outcome that it came to."""
        for phase in ("prefill", "decode", "recompute"):
            self._of.counter("octavo_gateway_cost_device_seconds").labels(phase, outcome).inc(
                getattr(cost, f"{phase}_device_us") / 1e6
            )
        for tier in ("pool", "dram", "nvme"):
            self._of.counter("octavo_gateway_cost_kv_byte_seconds").labels(tier, outcome).inc(
                getattr(cost, f"kv_{tier}_byte_s")
            )
        for source in ("prefix", "tier", "sibling"):
            self._of.counter("octavo_gateway_cost_saved_prefill_tokens").labels(source).inc(
                getattr(cost, f"saved_{source}_tokens")
            )

    def refused(self, error: OctavoError) -> None:
        """A request that never became live."""
        self._of.counter("octavo_gateway_requests").labels(error.default_reason, error.reason).inc()

    def acked(self, first_token_ms: float) -> None:
        """A client's own time to first token."""
        if first_token_ms > 0:
            self._of.histogram("octavo_gateway_client_first_token_seconds").observe(first_token_ms / 1e3)
