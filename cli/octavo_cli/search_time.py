"""A beam search tells nothing before its end: its steps lie within its time to the first token, and are taken out of it here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from octavo_cli.spans import Span
from octavo_cli.ttft import Ttft

WIDTH_KEY = "octavo.beam_width"
"""Of the request span of a search, and of no other."""


def without_search(ttft: Ttft, decodes: Sequence[Span]) -> tuple[Ttft, float]:
    """The decomposition without the steps, and the mean time of one in milliseconds (0: not known).

    `decodes`: the search's decode spans, one per beam and residency; without any, all that the scheduler had it counts as steps.
    What lies between two residencies is a wait that the request was put to, so `retry`.
    """
    stays = list(_stays(decodes))
    relay_ms = ttft.parts["relay"]
    extent_ms = (stays[-1][1] - stays[0][0]) / 1e6 if stays else relay_ms
    moved_ms = min(relay_ms, extent_ms)
    stepped_ms = min(moved_ms, sum((end - start) / 1e6 for start, end, _ in stays) if stays else relay_ms)
    parts = {**ttft.parts, "relay": relay_ms - moved_ms, "retry": ttft.parts["retry"] + moved_ms - stepped_ms}
    steps = sum(count for _, _, count in stays)
    return replace(ttft, total_ms=ttft.total_ms - stepped_ms, parts=parts), stepped_ms / steps if steps else 0.0


def _stays(decodes: Iterable[Span]) -> Iterable[tuple[int, int, int]]:
    """(start, end, steps) of each residency of the group, in nanoseconds: its beams' spans overlap."""
    start = end = steps = 0
    for span in sorted(decodes, key=lambda item: item.start_ns):
        count = int(span.attributes.get("octavo.decode.steps", 0))
        if steps and span.start_ns <= end:
            end, steps = max(end, span.end_ns), max(steps, count)
            continue
        if steps:
            yield start, end, steps
        start, end, steps = span.start_ns, span.end_ns, max(1, count)
    if steps:
        yield start, end, steps
