"""One trace as one self-contained HTML page: no script, no external asset; readable in dark mode and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from octavo.ttft import PARTS

from octavo_cli.spans import REQUEST_SPAN, Span
from octavo_cli.ttft import Ttft, ttft_of
from octavo_cli.waterfall import describe, headline, ordered

HUES = {"gateway": 200, "scheduler": 45, "gpuworker": 140, "kvstore": 290}
PART_HUES = dict(zip(PARTS, (200, 185, 45, 15, 330, 290, 70, 140, 110, 95, 345, 215, 0), strict=True))
ROW_PX, BAR_PX, LABEL_PX, WIDTH_PX = 24, 14, 210, 980
STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --dim: #68707a; --line: #d9dde2 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #14171a; --dim: #9aa2ab; --line: #31373d } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1.2rem auto; max-width: 64rem; padding: 0 .8rem }
h1 { font-size: 1.15rem; word-break: break-all } h2 { font-size: 1rem; margin-top: 1.6rem }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif } text { fill: var(--ink) } .dim { fill: var(--dim); color: var(--dim) }
line { stroke: var(--line) } table { border-collapse: collapse; width: 100%; font-size: .86rem }
td, th { text-align: left; padding: .25rem .6rem .25rem 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere }
td.number { text-align: right; white-space: nowrap } .error { color: #c62828 }
"""


def page(spans: Sequence[Span]) -> str:
    """The page of one trace's spans. Every text from a span is escaped."""
    lines = headline(spans)
    root = next((span for span in spans if span.name == REQUEST_SPAN), None)
    ttft = ttft_of(root) if root is not None else None
    parts = [f"<h1>{escape(lines[0])}</h1>", *(f"<p>{escape(line)}</p>" for line in lines[1:])]
    if ttft is not None:
        parts.append(_ttft(ttft))
    parts += ["<h2>Spans</h2>", _waterfall(spans), _table(spans)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(lines[0])}</title><style>{STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def _ttft(ttft: Ttft) -> str:
    bars, rows, at = [], [], 0.0
    for name in PARTS:
        value = ttft.parts[name]
        width = WIDTH_PX * value / max(ttft.total_ms, 1e-9)
        colour = f"hsl({PART_HUES[name]} 60% 50%)"
        bars.append(
            f'<rect x="{at:.2f}" y="0" width="{width:.2f}" height="26" fill="{colour}"><title>{name} {value:.2f} ms</title></rect>'
        )
        at += width
        share = value / max(ttft.total_ms, 1e-9)
        rows.append(
            f'<tr><td><svg width="12" height="12" style="width:12px"><rect width="12" height="12" fill="{colour}"/></svg> {name}</td>'
            f'<td class="number">{value:.2f} ms</td><td class="number">{share:.1%}</td></tr>'
        )
    return (
        f"<h2>Time to first token: {ttft.total_ms:.1f} ms</h2>"
        f'<svg viewBox="0 0 {WIDTH_PX} 26" preserveAspectRatio="none" role="img" aria-label="parts of the TTFT">{"".join(bars)}</svg>'
        f"<table>{''.join(rows)}</table>"
    )


def _waterfall(spans: Sequence[Span]) -> str:
    rows = ordered(spans)
    begin_ns = min(span.start_ns for span in spans)
    total_ns = max(max(span.end_ns for span in spans) - begin_ns, 1)
    scale = (WIDTH_PX - LABEL_PX) / total_ns
    height = ROW_PX * (len(rows) + 1)
    shapes = []
    for step in range(5):
        x = LABEL_PX + (WIDTH_PX - LABEL_PX) * step / 4
        anchor = "end" if step == 4 else "middle"
        shapes.append(f'<line x1="{x:.1f}" y1="{ROW_PX}" x2="{x:.1f}" y2="{height}"/>')
        shapes.append(
            f'<text class="dim" x="{x:.1f}" y="14" text-anchor="{anchor}">{total_ns * step / 4e6:.1f} ms</text>'
        )
    for number, (depth, span) in enumerate(rows, 1):
        y, x = ROW_PX * number, LABEL_PX + (span.start_ns - begin_ns) * scale
        width = max(1.5, (span.end_ns - span.start_ns) * scale)
        fill = "#c62828" if span.error else f"hsl({HUES.get(span.service, 0)} 60% 50%)"
        title = escape(f"{span.name} {(span.end_ns - span.start_ns) / 1e6:.2f} ms {describe(span)}")
        shapes.append(
            f'<text x="{8 + 14 * depth}" y="{y + 16}">{escape(span.name)} <tspan class="dim">{escape(span.service)}</tspan></text>'
        )
        shapes.append(
            f'<rect x="{x:.2f}" y="{y + 5}" width="{width:.2f}" height="{BAR_PX}" rx="2" fill="{fill}"><title>{title}</title></rect>'
        )
        for event in span.events:
            at = LABEL_PX + (event.at_ns - begin_ns) * scale
            shapes.append(
                f'<circle cx="{at:.2f}" cy="{y + 12}" r="2.2" fill="var(--ink)"><title>{escape(event.name)}</title></circle>'
            )
    return f'<svg viewBox="0 0 {WIDTH_PX} {height}" role="img" aria-label="waterfall">{"".join(shapes)}</svg>'


def _table(spans: Sequence[Span]) -> str:
    begin_ns = min(span.start_ns for span in spans)
    rows = []
    for _depth, span in ordered(spans):
        said = "".join(
            f"<div>{escape(key)} = {escape(str(value))}</div>" for key, value in sorted(span.attributes.items())
        )
        error = f'<div class="error">{escape(span.error)}</div>' if span.error else ""
        rows.append(
            f"<tr><td>{escape(span.name)}<br><span class='dim'>{escape(span.service)}</span></td>"
            f'<td class="number">{(span.start_ns - begin_ns) / 1e6:.2f} ms</td>'
            f'<td class="number">{(span.end_ns - span.start_ns) / 1e6:.2f} ms</td><td>{error}{said}</td></tr>'
        )
    return f"<table><tr><th>span</th><th>start</th><th>duration</th><th>attributes</th></tr>{''.join(rows)}</table>"
