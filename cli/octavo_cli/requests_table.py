"""Requests of a run folder as rows: filtered by tenant, the slowest first, or one line each as they end."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_cli.spans import REQUEST_SPAN, Span
from octavo_cli.ttft import ttft_of

COLUMNS = ("request", "trace", "tenant", "outcome", "ttft ms", "total ms", "tokens", "largest part")


def requests_of(spans: Iterable[Span], tenant: str = "") -> list[Span]:
    """The request spans, those of one tenant when it is named."""
    found = [span for span in spans if span.name == REQUEST_SPAN]
    return [span for span in found if span.attributes.get("octavo.tenant") == tenant] if tenant else found


def slowest(requests: Iterable[Span], count: int) -> list[Span]:
    """The `count` requests with the longest time to the first token; those without one come last, by their duration."""

    def key(span: Span) -> tuple[bool, float]:
        ttft = ttft_of(span)
        return (ttft is not None, ttft.total_ms if ttft is not None else (span.end_ns - span.start_ns) / 1e6)

    return sorted(requests, key=key, reverse=True)[:count]


def row(span: Span) -> tuple[str, ...]:
    """One request as the cells of COLUMNS."""
    ttft = ttft_of(span)
    said = span.attributes
    largest = f"{ttft.largest()} {ttft.parts[ttft.largest()]:.1f} ms" if ttft is not None else "-"
    return (
        span.request_id or "-",
        span.trace_id[:16],
        str(said.get("octavo.tenant", "-")),
        outcome_of(span),
        f"{ttft.total_ms:.1f}" if ttft is not None else "-",
        f"{(span.end_ns - span.start_ns) / 1e6:.1f}",
        f"{said.get('gen_ai.usage.input_tokens', '-')} > {said.get('gen_ai.usage.output_tokens', '-')}",
        largest,
    )


def outcome_of(span: Span) -> str:
    """How it ended; with the reason in brackets where that is another word."""
    outcome = str(span.attributes.get("octavo.outcome", "-"))
    reason = str(span.attributes.get("octavo.reason", ""))
    return f"{outcome} ({reason})" if reason not in ("", outcome) else outcome


def line(span: Span) -> str:
    """The same as one line of `name=value`."""
    return "  ".join(f"{name.replace(' ', '_')}={cell}" for name, cell in zip(COLUMNS, row(span), strict=True))
