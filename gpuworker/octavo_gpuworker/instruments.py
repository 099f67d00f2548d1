"""The worker's metrics: what docs/metrics.md lists of it."""

from __future__ import annotations

from typing import Final

from octavo.rpc.instruments import SHORT_BUCKETS, Instrument

PREFIX: Final = "octavo_worker_"

OBSERVED: Final = (
    Instrument(PREFIX + "steps", "counter", "Forward passes."),
    Instrument(PREFIX + "prefill_tokens", "counter", "Prompt tokens computed."),
    Instrument(PREFIX + "decode_tokens", "counter", "Output tokens sampled."),
    Instrument(PREFIX + "step_seconds", "counter", "Time of steps by part: forward, sample, host.", ("part",)),
    Instrument(
        PREFIX + "step_duration_seconds",
        "histogram",
        "Time of one step, by kind: prefill, decode, mixed.",
        ("kind",),
        SHORT_BUCKETS,
    ),
    Instrument(PREFIX + "busy_seconds", "counter", "Time of steps by kind: prefill, decode, mixed.", ("kind",)),
    Instrument(PREFIX + "step_bytes", "counter", "Bytes of weights and KV that steps read at least."),
    Instrument(PREFIX + "step_flops", "counter", "Floating-point operations that steps did at least."),
    Instrument(
        PREFIX + "bound_seconds",
        "counter",
        "Time of steps by what bound them: the larger share of a calibrated peak, or host when neither reaches a fifth.",
        ("bound",),
    ),
    Instrument(PREFIX + "transfers", "counter", "Transfers ended."),
    Instrument(PREFIX + "transfer_bytes", "counter", "Bytes moved between pool and kvstore."),
    Instrument(PREFIX + "transfer_seconds", "histogram", "Time of one transfer's copy.", (), SHORT_BUCKETS),
    Instrument(PREFIX + "starved", "counter", "Times a sequence lacked a block for its next token."),
    Instrument(PREFIX + "blocks", "gauge", "Blocks in the KV pool, the null block not counted."),
    Instrument(
        PREFIX + "failed_allocations", "counter", "Steps that did not run for lack of memory, and were tried again."
    ),
    Instrument(
        PREFIX + "beyond_pool_bytes",
        "gauge",
        "Memory that the framework holds on the device, or this process on a CPU, minus the KV pool.",
    ),
    Instrument(PREFIX + "weight_bytes", "gauge", "Bytes of weights that a step reads."),
    Instrument(PREFIX + "peak_bytes_per_second", "gauge", "Memory bandwidth, measured at the start."),
    Instrument(
        PREFIX + "peak_flops_per_second", "gauge", "Floating-point operations per second, measured at the start."
    ),
    Instrument(
        PREFIX + "start_seconds",
        "gauge",
        "Start-up by part: process, weights, warm_up (kernels and graphs, calibration).",
        ("part",),
    ),
    Instrument(
        PREFIX + "kernel_calls",
        "counter",
        "Calls of each operation by implementation and why: chosen, or the reason of a fallback.",
        ("op", "impl", "reason"),
    ),
)
"""Fed by reports, and set at the start."""

OF_A_BACKEND: Final = (
    Instrument(PREFIX + "graph_replays", "gauge", "Steps run by replaying a captured graph."),
    Instrument(PREFIX + "graph_eager_steps", "gauge", "Steps that no captured graph held."),
    Instrument(PREFIX + "graph_captures", "gauge", "Graphs captured."),
    Instrument(PREFIX + "graph_padded_tokens", "gauge", "Rows of padding in replayed steps."),
    Instrument(PREFIX + "graph_hit_ratio", "gauge", "Replayed steps over all steps."),
)
"""Figures that a backend may have of its own; read when they are scraped."""

TABLE: Final = OBSERVED + OF_A_BACKEND
