"""Where the time to the first token went. Every part is a duration that one process measured; transport is the remainder.

gateway | tokenize |                      (streams)                                  | detokenize
                   queue | retry | dispatch |         (streams)             | relay
                                            load | wait | prefill | sample | report
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from octavo.ttft import PARTS

OVERLAP_US: Final = 1000
"""Measured parts may exceed what contains them by so much (clocks are read one after the other) before it is a bug."""


@dataclass(frozen=True, slots=True)
class TtftParts:
    """Microseconds; the sum is the time to the first token."""

    gateway_us: int = 0
    tokenize_us: int = 0
    queue_us: int = 0
    retry_us: int = 0
    dispatch_us: int = 0
    kv_load_us: int = 0
    worker_wait_us: int = 0
    prefill_us: int = 0
    sample_us: int = 0
    report_us: int = 0
    relay_us: int = 0
    detokenize_us: int = 0
    transport_us: int = 0

    @property
    def total_us(self) -> int:
        """The time to the first token."""
        return sum(getattr(self, item.name) for item in fields(self))

    def largest(self) -> str:
        """The name of the longest part."""
        return max(PARTS, key=lambda part: int(getattr(self, f"{part}_us")))


@dataclass(frozen=True, slots=True)
class Measured:
    """What `decompose` is made of, microseconds. `total`: received to first token."""

    total: int
    before_submit: int  # received to submitted
    send: int  # submitted to written
    tokenize: int
    lost_scheduler: int  # submit to the resubmit that a new scheduler took
    queue: int
    retry: int
    dispatch: int
    kv_load: int
    worker_wait: int
    prefill: int  # sample included
    sample: int
    report: int
    relay: int
    detokenize: int


def decompose(measured: Measured) -> tuple[TtftParts, int]:
    """The parts, and by how much the measured ones exceed the whole (0 as it should be, else transport is 0)."""
    known = {
        "gateway_us": max(0, measured.before_submit - measured.tokenize) + measured.send,
        "tokenize_us": measured.tokenize,
        "queue_us": measured.queue,
        "retry_us": measured.retry + measured.lost_scheduler,
        "dispatch_us": measured.dispatch,
        "kv_load_us": measured.kv_load,
        "worker_wait_us": measured.worker_wait,
        "prefill_us": max(0, measured.prefill - measured.sample),
        "sample_us": min(measured.sample, measured.prefill),
        "report_us": measured.report,
        "relay_us": measured.relay,
        "detokenize_us": measured.detokenize,
    }
    left = measured.total - sum(known.values())
    return TtftParts(**known, transport_us=max(0, left)), max(0, -left)
