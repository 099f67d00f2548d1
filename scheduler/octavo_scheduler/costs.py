"""First cost model: how long a step, a prefill and a tier transfer take. Calibrated by the worker, refined by reports.

Step time is fixed + prefill * tokens + decode * sequences + context * context tokens. Each report nudges every
coefficient by the relative error times its share of the prediction (a normalized LMS step in log space), so that
coefficients stay positive and features of very different size need no scaling.
"""

from __future__ import annotations

from octavo_scheduler.events import Calibration

_LEARNING_RATE = 0.05
_EMA = 0.1
_LINK_EMA, _LINK_EMA_CHANGED = 0.3, 0.6
_LINK_CHANGED = 2.0
"""A transfer so many times faster or slower than believed is news of the link rather than noise."""
PEER_BYTES_PER_US, PEER_FIXED_US = 100.0, 3000.0
"""Of blocks from another host until one was fetched: a 1 Gbit/s network."""


class StepCosts:
    """One worker's step time, microseconds."""

    __slots__ = ("context_token_us", "decode_seq_us", "error_ratio", "fixed_us", "prefill_token_us", "step_us")

    def __init__(self, calibration: Calibration) -> None:
        self.fixed_us = max(1.0, calibration.fixed_us)
        self.prefill_token_us = max(0.01, calibration.prefill_token_us)
        self.decode_seq_us = max(0.01, calibration.decode_seq_us)
        self.context_token_us = max(0.0001, calibration.context_token_us)
        self.step_us = self.fixed_us + self.decode_seq_us
        """Running mean of the observed step time."""
        self.error_ratio = 0.0
        """Running mean of |observed - predicted| / predicted, before learning from the step."""

    def predict_step_us(self, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> float:
        """Predicted time of one step."""
        return (
            self.fixed_us
            + self.prefill_token_us * prefill_tokens
            + self.decode_seq_us * decode_seqs
            + self.context_token_us * context_tokens
        )

    def predict_prefill_us(self, tokens: int, budget: int) -> float:
        """Predicted time to prefill `tokens` in chunks of `budget` with nothing beside it."""
        chunks = -(-tokens // max(1, budget))
        return chunks * self.fixed_us + tokens * self.prefill_token_us

    def prefill_share(self, steps: int, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> float:
        """Which part of such steps is prefill, as predicted; the fixed part goes with the larger of the two."""
        if not prefill_tokens:
            return 0.0
        prefill_us = self.prefill_token_us * prefill_tokens
        decode_us = (
            self.decode_seq_us * decode_seqs + self.context_token_us * context_tokens * bool(decode_seqs)
        ) * steps
        return prefill_us / (prefill_us + decode_us)

    def observe(self, wall_us: int, steps: int, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> None:
        """Learns from `steps` steps that took `wall_us` in all; `prefill_tokens` are over all of them."""
        if steps <= 0 or wall_us <= 0:
            return
        observed_us = wall_us / steps
        self.step_us += _EMA * (observed_us - self.step_us)
        prefill = prefill_tokens / steps
        predicted_us = self.predict_step_us(0, decode_seqs, context_tokens) + self.prefill_token_us * prefill
        relative = (observed_us - predicted_us) / predicted_us
        self.error_ratio += _EMA * (abs(relative) - self.error_ratio)
        error = max(-0.5, min(0.5, relative)) * _LEARNING_RATE
        self.fixed_us *= 1 + error * self.fixed_us / predicted_us
        if prefill:
            self.prefill_token_us *= 1 + error * self.prefill_token_us * prefill / predicted_us
        self.decode_seq_us *= 1 + error * self.decode_seq_us * decode_seqs / predicted_us
        self.context_token_us *= 1 + error * self.context_token_us * context_tokens / predicted_us


class LinkCosts:
    """Fixed cost and bandwidth of a worker's tier link, refined by every whole transfer.

    The bandwidth is a geometric mean of the latest transfers: a link that becomes ten times slower is noticed as soon as
    one that becomes ten times faster.
    """

    __slots__ = ("bytes_per_us", "fixed_us", "observed")

    def __init__(self, bytes_per_us: float = 500.0, fixed_us: float = 1000.0) -> None:
        self.bytes_per_us = bytes_per_us
        self.fixed_us = fixed_us
        self.observed = 0

    def predict_us(self, size_bytes: int) -> float:
        """Predicted time of one transfer."""
        return self.fixed_us + size_bytes / self.bytes_per_us

    def observe(self, size_bytes: int, lookup_us: int, transfer_us: int) -> None:
        """Learns from one finished transfer."""
        if size_bytes > 0 and transfer_us > 0:
            self.observed += 1
            ratio = size_bytes / transfer_us / self.bytes_per_us
            changed = not 1 / _LINK_CHANGED < ratio < _LINK_CHANGED
            weight = max(_LINK_EMA_CHANGED if changed else _LINK_EMA, 1 / self.observed)
            self.bytes_per_us *= ratio**weight
            self.fixed_us += weight * (lookup_us - self.fixed_us)
