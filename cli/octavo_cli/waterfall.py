"""Draws one trace as a waterfall: span, service, start, bar, duration and the attributes that explain it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from octavo_cli.spans import REQUEST_SPAN, Span
from octavo_cli.ttft import TTFT_KEY, Ttft, ttft_of

COLOURS = {"gateway": "cyan", "scheduler": "yellow", "gpuworker": "green", "kvstore": "magenta"}
_HIDDEN = ("gen_ai.latency.", "octavo.ttft.", "gen_ai.request.", "network.", "server.", "rpc.", "thread.", "code.")
_HEADLINE_OR_TWICE = {
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.response.model",
    "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens",
    "octavo.outcome",
    "octavo.request_id",
}
"""What the headline says already, and older names of the same figure; `--json` has everything."""
_PREFIXES = ("octavo.", "gen_ai.")
MAX_DEPTH = 24
"""Deeper spans are drawn at this depth: the bars need the rest of the line."""


def ordered(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """(depth, span) in drawing order: parents first, siblings by start, every span once.

    A span whose parent is not here is a root, and so is the first of several that are each other's parents.
    """
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda item: (item.start_ns, item.end_ns)):
        parent = span.parent_id if span.parent_id in known and span.parent_id != span.span_id else ""
        children.setdefault(parent, []).append(span)
    rows: list[tuple[int, Span]] = []
    drawn: set[str] = set()

    def add(roots: Sequence[Span]) -> None:
        waiting = [(0, span) for span in reversed(roots)]
        while waiting:
            depth, span = waiting.pop()
            rows.append((depth, span))
            if span.span_id not in drawn:  # a second span of the same id has no children of its own
                drawn.add(span.span_id)
                below = children.get(span.span_id, ())
                waiting += [
                    (min(depth + 1, MAX_DEPTH), child) for child in reversed(below) if child.span_id not in drawn
                ]

    add(children.get("", ()))
    for span in sorted(spans, key=lambda item: item.start_ns):
        if span.span_id not in drawn:
            add([span])
    return rows


def draw(spans: Sequence[Span], console: Console) -> None:
    """Prints the waterfall; colours and the terminal's width on a terminal, plain text of 120 columns elsewhere."""
    rows = ordered(spans)
    begin_ns = min(span.start_ns for span in spans)
    total_ns = max(max(span.end_ns for span in spans) - begin_ns, 1)
    name_width = max(len("  " * depth + span.name) for depth, span in rows)
    service_width = max(len(span.service) for span in spans)
    width = console.width if console.is_terminal else 120
    bar_width = max(10, min(48, width - name_width - service_width - 60))
    block = "█" if console.encoding.lower().startswith("utf") else "#"
    for title in headline(spans):
        console.print(Text(title, style="bold"), soft_wrap=True)
    root = next((span for span in spans if span.name == REQUEST_SPAN), None)
    if root is not None and (ttft := ttft_of(root)) is not None:
        console.print(Text(ttft_line(ttft)), soft_wrap=True)
    for depth, span in rows:
        line = Text(f"{'  ' * depth + span.name:<{name_width}}  ")
        colour = "red" if span.error else COLOURS.get(span.service, "white")
        line.append(f"{span.service:<{service_width}}", style=colour)
        line.append(f" {(span.start_ns - begin_ns) / 1e6:>9.1f} ms  ")
        line.append(bar(span.start_ns - begin_ns, span.end_ns - begin_ns, total_ns, bar_width, block), style=colour)
        line.append(f" {(span.end_ns - span.start_ns) / 1e6:>9.1f} ms")
        notes = describe(span)
        beside = not console.is_terminal or len(line) + 2 + len(notes) <= width
        if notes and beside:
            line.append(f"  {notes}", style="dim")
        console.print(line, soft_wrap=True)
        if not beside:  # a terminal would break words, and begin lines where the names stand
            indent = " " * (name_width + 2)
            for part in textwrap.wrap(notes, max(20, width - len(indent)), break_on_hyphens=False):
                console.print(Text(indent + part, style="dim"), soft_wrap=True)


def ttft_line(ttft: Ttft) -> str:
    """`TTFT 50.0 ms = queue 3.1 + prefill 45.0 + transport 1.9`: parts of at least 0.05 ms, in the order of the way."""
    named = [f"{name} {value:.1f}" for name, value in ttft.parts.items() if value >= 0.05]
    off = "" if ttft.adds_up else f"  (they add up to {sum(ttft.parts.values()):.1f} ms)"
    return f"TTFT {ttft.total_ms:.1f} ms = {' + '.join(named) or '0'}{off}"


def bar(start_ns: int, end_ns: int, total_ns: int, width: int, block: str = "█") -> str:
    """`width` characters in which [start, end] of total is filled; at least one character is."""
    first = min(width - 1, start_ns * width // total_ns)
    last = max(first + 1, min(width, -(-end_ns * width // total_ns)))
    return " " * first + block * (last - first) + " " * (width - last)


def headline(spans: Sequence[Span]) -> list[str]:
    """Trace and request ids, the outcome, the time to the first token and the cancel's reason, as far as known."""
    root = next((span for span in spans if span.name == REQUEST_SPAN), ordered(spans)[0][1])
    lines = [f"trace {root.trace_id}" + (f"  request {root.request_id}" if root.request_id else "")]
    outcome = root.attributes.get("octavo.outcome")
    facts = [f"total {(root.end_ns - root.start_ns) / 1e6:.1f} ms"]
    if (ttft_ms := first_token_ms(spans, root)) is not None:
        facts.insert(0, f"TTFT {ttft_ms:.1f} ms")
    if outcome:
        facts.append(f"outcome {outcome}")
    lines.append("  ".join(facts))
    for span in spans:
        if span.name == "cancel":
            said = span.attributes
            reason = said.get("octavo.cancel.reason") or said.get("octavo.reason") or said.get("reason") or "unknown"
            lines.append(f"cancelled: {reason}, all blocks back after {(span.end_ns - span.start_ns) / 1e6:.1f} ms")
    return lines


def first_token_ms(spans: Sequence[Span], root: Span) -> float | None:
    """Milliseconds from the request's start to its first token: the gateway's own figure, else the prefill's end."""
    if isinstance(value := root.attributes.get(TTFT_KEY), int | float):
        return float(value) * 1000.0
    ends = [span.end_ns for span in spans if span.name == "prefill" and not span.error]
    return (min(ends) - root.start_ns) / 1e6 if ends else None


def describe(span: Span) -> str:
    """`key=value` of the attributes that say something, then the events, then the error."""
    words = [
        f"{_short(key)}={_shown(value)}"
        for key, value in span.attributes.items()
        if key not in _HEADLINE_OR_TWICE and not key.startswith(_HIDDEN)
    ]
    counts: dict[str, int] = {}
    for event in span.events:
        counts[event.name] = counts.get(event.name, 0) + 1
    words += [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    if span.error:
        words.append(f"error: {span.error}")
    return " ".join(words)


def _short(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _shown(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
