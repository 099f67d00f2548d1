"""Sampled: what a step drew."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_gpuworker.orders import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Sampled:
    """Per row: the token, or -1 where the row's logits were not finite; and the logprobs of rows that asked."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
