"""Limits: what bounds the speed of a backend's steps, for the benchmarks' floors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a step must read, multiply-adds that it must do, and measurements of the machine with the same threads."""

    weight_bytes: int
    """Of the matrices and norms that every step reads; the embedding only where it is the head too."""
    kv_token_bytes: int
    """KV read per token of context and sequence."""
    token_macs: int
    """Multiply-adds of the matrices per token, without head and attention."""
    head_macs: int
    """Multiply-adds of the head per row that samples."""
    threads: int
    stream_bytes_per_s: Callable[[], float]
    """Measures now: streaming reads of about `weight_bytes`."""
    peak_macs_per_s: Callable[[], float]
    """Measures now: the format's product with its data in the first cache."""
    pair_macs: int = 0
    """Multiply-adds of attention per pair of a query and a visible key, over all layers."""
