"""A measurement as one HTML page that needs nothing else: figures, conditions, latency over time, CDFs, goodput."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence

from octavo.figures import Figures

from octavo_cli.bench.plots import Series, cumulative, plot
from octavo_cli.bench.sample import Run

STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#68707a;--line:#d8dce0;--paper:#fff;--a:#2563c9;--b:#c2410c;--c:#15803d;--d:#7e22ce}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#9aa2ab;--line:#33383e;--paper:#15181b;--a:#7aa7ff;--b:#ff9b66;--c:#63d38b;--d:#c79bff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:68rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}td,th{text-align:left;padding:.2rem .6rem;border-bottom:1px solid var(--line)}
td.n{text-align:right}figure{margin:1.5rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}
.grid{stroke:var(--line)}polyline{fill:none;stroke-width:1.6}.s0{stroke:var(--a)}.s1{stroke:var(--b)}.s2{stroke:var(--c)}.s3{stroke:var(--d)}
.d0{fill:var(--a)}.d1{fill:var(--b)}.d2{fill:var(--c)}.d3{fill:var(--d)}.key{font-weight:400;margin-left:1rem}
.c0{color:var(--a)}.c1{color:var(--b)}.c2{color:var(--c)}.c3{color:var(--d)}pre{overflow:auto;font-size:13px}.grids{display:grid;gap:0 2rem;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr))}
"""


def page(figures: Figures, runs: Mapping[str, Run], notes: Sequence[str] = (), shown: str = "") -> str:
    """The page. Plots need the runs; a sweep's goodput curve comes from the figures alone. `shown`: HTML instead of the table of all figures."""
    title = f"octavo bench: {figures.benchmark}"
    plots = [goodput_curve(figures)]
    plots += [drawn for name, run in runs.items() if figures.benchmark != "sweep" for drawn in run_plots(name, run)]
    told = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    about = {"machine": dict(figures.machine), "commit": figures.commit, "config": dict(figures.config)}
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>{html.escape(title)}</h1>{told}{''.join(plots)}{shown or table(figures)}"
        f"<h2>Conditions</h2><pre>{html.escape(json.dumps(about, indent=1, default=str))}</pre></body></html>\n"
    )


def table(figures: Figures) -> str:
    """Every figure as a row."""
    rows = []
    for item in figures.results:
        spread = f"{item.spread[0]:.4g} to {item.spread[1]:.4g}" if item.spread else ""
        rows.append(
            f'<tr><td>{html.escape(item.name)}</td><td class="n">{item.value:.4g}</td><td>{html.escape(item.unit)}</td>'
            f'<td class="n">{item.n}</td><td>{spread}</td></tr>'
        )
    head = "<tr><th>name</th><th>value</th><th>unit</th><th>n</th><th>quartiles of the n</th></tr>"
    return f"<h2>Figures</h2><table>{head}{''.join(rows)}</table>"


def run_plots(name: str, run: Run) -> list[str]:
    """Latency over the run, and the distributions of TTFT, ITL and E2E."""
    samples = sorted(run.samples, key=lambda item: item.scheduled_s)
    ttft = [(item.scheduled_s, item.ttft_ms) for item in samples if item.ttft_ms is not None]
    e2e = [(item.scheduled_s, item.e2e_ms) for item in samples if item.e2e_ms is not None]
    gaps = [gap for item in samples for gap in item.gaps_ms]
    over = [Series("TTFT", tuple(ttft), dots=True), Series("E2E", tuple(e2e), dots=True)]
    latency = [
        Series("TTFT", cumulative([y for _, y in ttft])),
        Series("E2E", cumulative([y for _, y in e2e])),
    ]
    return [
        plot(f"Latency over time, {name}", "scheduled arrival, s", "ms", over),
        '<div class="grids">',
        plot(f"CDF of latency, {name}", "ms", "share", latency, y_max=1.0),
        plot(f"CDF of gaps between chunks, {name}", "ms", "share", [Series("ITL", cumulative(gaps))], y_max=1.0),
        "</div>",
    ]


def goodput_curve(figures: Figures) -> str:
    """Goodput and attainment over the offered rate, when the figures are of a sweep."""
    rates: dict[str, list[tuple[float, float]]] = {"goodput": [], "attainment": []}
    for item in figures.results:
        name, _, where = item.name.partition("/r")
        if name in rates and where:
            rates[name].append((float(where), item.value))
    if not rates["goodput"]:
        return ""
    ideal = Series("all within the SLO", tuple((rate, rate) for rate, _ in rates["goodput"]))
    curve = plot(
        "Goodput over rate", "requests/s offered", "requests/s", [Series("goodput", tuple(rates["goodput"])), ideal]
    )
    return curve + plot(
        "Attainment over rate",
        "requests/s offered",
        "share",
        [Series("attainment", tuple(rates["attainment"]))],
        y_max=1.0,
    )
