"""The parts of the time to the first token: a gateway writes them into spans and answers, tools read them (docs/tracing.md)."""

from __future__ import annotations

from typing import Final

PARTS: Final = (
    "gateway",
    "tokenize",
    "queue",
    "retry",
    "dispatch",
    "kv_load",
    "worker_wait",
    "prefill",
    "sample",
    "report",
    "relay",
    "detokenize",
    "transport",
)
"""In the order of a request's way; transport is the remainder and stands last."""
