"""Draws one moment of the live view in a terminal: the page's figures as text and bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

PHASES = {
    "waiting": "bright_black", "loading": "magenta", "prefill": "yellow", "decode": "green", "preempted": "red",
    "stopping": "bright_black",
}  # fmt: skip
STATES = (("free", " ", "bright_black"), ("cached", "░", "blue"), ("held", "▒", "green"), ("shared", "▓", "cyan"),
          ("transfer", "█", "magenta"))  # fmt: skip
MAX_ROWS = 20
MAX_ENDED = 5
WIDE = 130
"""Columns from which every column of the requests fits; below, tenant and place go and the bars shrink."""
BAR_CELLS = 24
NARROW_BAR_CELLS, NARROW_ID_CELLS = 8, 20
MAP_CELLS, NARROW_MAP_CELLS = 64, 8
BESIDE_MAP_CELLS = 72
"""Columns that a pool's name and figures take beside its map."""


def draw(moment: dict[str, Any], width: int) -> RenderableType:
    """Everything that the audience may see, in one renderable for so many columns, 80 at least."""
    parts: list[RenderableType] = [headline(moment), latency_line(moment), goodput_line(moment)]
    if moment["workers"] or moment["stores"]:
        parts.append(pools(moment, width))
    parts.append(requests(moment, width))
    if moment["ledger"]:
        parts.append(ledger(moment["ledger"], moment.get("trials", ())))
    return Group(*parts)


def headline(moment: dict[str, Any]) -> Text:
    """Who looks at what, and how much there is of it."""
    ready = "ready" if moment["ready"] else f"not ready: {moment['why_not_ready']}"
    line = Text(f"{moment['model']}  ", style="bold")
    line.append(ready, style="green" if moment["ready"] else "red")
    line.append(
        f"  running {moment['running_count']}  waiting {moment['waiting_count']}"
        f" ({moment['waiting_prompt_tokens']} prompt tokens)"
    )
    return line if moment["sees_all"] else line.append(f"  tenant {moment['tenant']}")


def ms(value: float | None) -> str:
    """Milliseconds for people."""
    if value is None:
        return "-"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.1f} ms"


def latency_line(moment: dict[str, Any]) -> Text:
    """TTFT and ITL of the last minute."""
    words = []
    for title, name in (("TTFT", "ttft_ms"), ("ITL", "itl_ms")):
        item = moment["latency"][name]
        words.append(f"{title} p50 {ms(item['p50'])}  p95 {ms(item['p95'])}  p99 {ms(item['p99'])}  n {item['n']}")
    return Text("    ".join(words))


def goodput_line(moment: dict[str, Any]) -> Text:
    """SLO classes of the last minute."""
    return Text(
        "    ".join(
            f"{item['class']}: met {item['met']}, missed {item['missed']}, {item['per_s']:.2f}/s in time"
            for item in moment["goodput"]
        ),
        style="dim",
    )


def shrink(states: Sequence[str], cells: int) -> list[int]:
    """A block map in at most `cells` cells, each the busiest kind of its blocks that is frequent enough to see."""
    size = max(1, -(-len(states) // cells))
    groups = [states[at : at + size] for at in range(0, len(states), size)]
    return [int(max(Counter(group).items(), key=lambda item: (item[1], item[0]))[0]) for group in groups]


def pools(moment: dict[str, Any], width: int) -> Table:
    """One row per worker's pool and per tier below it."""
    map_cells = min(MAP_CELLS, max(NARROW_MAP_CELLS, width - BESIDE_MAP_CELLS))
    table = Table(box=None, pad_edge=False, expand=False)
    table.add_column("pool", no_wrap=True, max_width=None if width >= WIDE else NARROW_ID_CELLS)
    for name in ("map", "used", "", ""):
        table.add_column(name, no_wrap=True)
    for worker in moment["workers"]:
        cells = Text()
        for state in shrink(worker["block_map"], map_cells):
            _name, mark, colour = STATES[state]
            cells.append("·" if mark == " " else mark, style=colour)
        table.add_row(
            worker["worker_id"],
            cells,
            f"{worker['blocks_total'] - worker['blocks_free']}/{worker['blocks_total']} blocks",
            f"{worker['blocks_cached']} cached",
            f"{worker['running']}/{worker['max_seqs']} running, step {ms(worker['step_us'] / 1000)}",
        )
    for store in moment["stores"]:
        for tier in store["tiers"]:
            share = tier["used_bytes"] / tier["capacity_bytes"] if tier["capacity_bytes"] else 0.0
            lit = min(map_cells, max(bool(tier["used_bytes"]), round(share * map_cells)))
            table.add_row(
                f"{store['store_id']} {tier['name']}",
                Text("░" * lit, style="blue") + Text("·" * (map_cells - lit), style="bright_black"),
                f"{tier['used_bytes'] / 2**20:.1f}/{tier['capacity_bytes'] / 2**20:.0f} MB",
                f"{tier['keys']} blocks",
                f"hits {tier['hits']}, misses {tier['misses']}",
            )
    return table


def progress(request: dict[str, Any], cells: int = BAR_CELLS) -> Text:
    """A request's bar: the prompt's share, then the output's, in the colour of the phase."""
    colour = PHASES.get(request["phase"], "white")
    prompt = request["prompt_tokens"] * request["choices"]
    whole = max(1, prompt + request["max_tokens"])
    done = request["computed_tokens"] if not request["output_tokens"] else prompt
    computed = round(cells * min(prompt, done) / whole)
    output = round(cells * request["output_tokens"] / whole)
    rest = max(0, cells - computed - output)
    return Text("▒" * computed + "█" * output, style=colour) + Text("·" * rest, style="bright_black")


def requests(moment: dict[str, Any], width: int) -> Table:
    """Running, then waiting, then the latest that ended."""
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False)
    table.add_column("request", no_wrap=True, max_width=None if wide else NARROW_ID_CELLS)
    for name in (*(("tenant",) if wide else ()), "phase", "progress", "tokens", "age", "device", "blocks"):
        table.add_column(name, no_wrap=True)
    if wide:
        table.add_column("where", no_wrap=True)
    running = {(item["tenant"], item["request_id"]) for item in moment["running"]}
    waiting = [item for item in moment["waiting"] if (item["tenant"], item["request_id"]) not in running]
    listed = [*moment["running"], *waiting]
    for item in listed[:MAX_ROWS]:
        table.add_row(
            item["request_id"], *((item["tenant"],) if wide else ()),
            Text(item["phase"], style=PHASES.get(item["phase"], "white")),
            progress(item, BAR_CELLS if wide else NARROW_BAR_CELLS),
            f"{item['prompt_tokens']}+{item['output_tokens']}/{item['max_tokens']}",
            ms(item["age_us"] / 1000), ms(device_us(item) / 1000), str(item["blocks"]),
            *((" ".join(item["workers"]),) if wide else ()),
        )  # fmt: skip
    if len(listed) > MAX_ROWS:
        table.add_row(f"and {len(listed) - MAX_ROWS} more")
    for item in moment["recent"][:MAX_ENDED]:
        table.add_row(
            item["request_id"], *((item["tenant"],) if wide else ()), Text(item["outcome"], style="dim"), "",
            f"{item['prompt_tokens']}+{item['output_tokens']}", ms(item["age_us"] / 1000),
            ms(device_us(item) / 1000), "", *((item["reason"],) if wide else ()), style="dim",
        )  # fmt: skip
    return table


def device_us(request: dict[str, Any]) -> float:
    """Device time of a request over its phases."""
    return float(sum(value for name, value in request["cost"].items() if name.endswith("_device_us")))


def ledger(rows: Sequence[dict[str, Any]], trials: Sequence[dict[str, Any]] = ()) -> Text:
    """What each technique that was used is worth so far, and which are switched off for whom."""
    used = [row for row in rows if row["entries"]]
    words = [
        f"{row['technique'].replace('_', ' ')} {ms_signed(row['saved_ms'] - row['cost_ms'] - row['held_ms'])}"
        for row in used
    ]
    off = [f"{row['technique'].replace('_', ' ')} for prompts of {row['prompt']}" for row in trials if row["off"]]
    said = "ledger, net: " + (", ".join(words) or "nothing booked yet")
    return Text(said + (f"; off: {', '.join(off)}" if off else ""), style="dim")


def ms_signed(value: float) -> str:
    """Milliseconds with their sign."""
    return f"{'+' if value >= 0 else '-'}{ms(abs(value))}"
