"""Every instrument of the gateway, and the observer that feeds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from octavo.errors import OctavoError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from octavo_gateway.live import LiveRequest
from octavo_gateway.requests import Cost

_TTFT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TOKEN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_DURATION_BUCKETS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class GatewayMetrics:
    """Names follow the Prometheus form of the GenAI server metrics; seconds and tokens."""

    def __init__(self, registry: CollectorRegistry, live_count: Callable[[], int]) -> None:
        self._registry = registry
        self._requests = Counter(
            "octavo_gateway_requests", "Requests by how they ended.", ["outcome", "reason"], registry=registry
        )
        self._tokens = Counter("octavo_gateway_tokens", "Tokens of ended requests.", ["type"], registry=registry)
        self._ttft = Histogram(
            "octavo_gateway_time_to_first_token_seconds",
            "Request received to first token, at the gateway.",
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._itl = Histogram(
            "octavo_gateway_inter_token_seconds",
            "Time per token between two arrivals of one request.",
            buckets=_TOKEN_BUCKETS,
            registry=registry,
        )
        self._duration = Histogram(
            "octavo_gateway_request_duration_seconds",
            "Request received to its end.",
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._acks = Histogram(
            "octavo_gateway_client_first_token_seconds",
            "Time to first token on the client's clock, as acknowledged.",
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._device = Counter(
            "octavo_gateway_cost_device_seconds",
            "Device time that ended requests took, by phase and outcome.",
            ["phase", "outcome"],
            registry=registry,
        )
        self._kv = Counter(
            "octavo_gateway_cost_kv_byte_seconds",
            "Bytes of KV that ended requests held, times seconds, by tier and outcome.",
            ["tier", "outcome"],
            registry=registry,
        )
        self._saved = Counter(
            "octavo_gateway_cost_saved_prefill_tokens",
            "Prompt tokens that were not computed, by what saved them.",
            ["source"],
            registry=registry,
        )
        live = Gauge("octavo_gateway_live_requests", "Requests under way.", registry=registry)
        live.set_function(live_count)

    def watch_viewers(self, viewers: Callable[[], int]) -> None:
        """Who looks at the live view now."""
        gauge = Gauge("octavo_gateway_page_viewers", "Open live views.", registry=self._registry)
        gauge.set_function(viewers)

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def token_gap(self, seconds: float, tokens: int) -> None:
        self._itl.observe(seconds / tokens)

    def ended(self, live: LiveRequest) -> None:
        """Counts a request once, at its terminal."""
        self._requests.labels(live.outcome, live.error.reason if live.error else "").inc()
        self._duration.observe(live.completed - live.received)
        if live.admitted is not None:
            self._tokens.labels("prompt").inc(len(live.admitted.prompt_ids))
            self._tokens.labels("cached").inc(live.cached_tokens)
            self._tokens.labels("completion").inc(live.completion_tokens)

        self._cost(live.outcome, live.cost)

    def _cost(self, outcome: str, cost: Cost) -> None:
        """What a request took, under the outcome that it came to."""
        for phase in ("prefill", "decode", "recompute"):
            self._device.labels(phase, outcome).inc(getattr(cost, f"{phase}_device_us") / 1e6)
        for tier in ("pool", "dram", "nvme"):
            self._kv.labels(tier, outcome).inc(getattr(cost, f"kv_{tier}_byte_s"))
        for source in ("prefix", "tier", "sibling"):
            self._saved.labels(source).inc(getattr(cost, f"saved_{source}_tokens"))

    def refused(self, error: OctavoError) -> None:
        """A request that never became live."""
        self._requests.labels(error.default_reason, error.reason).inc()

    def acked(self, first_token_ms: float) -> None:
        """A client's own time to first token."""
        if first_token_ms > 0:
            self._acks.observe(first_token_ms / 1e3)
