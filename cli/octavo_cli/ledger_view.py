"""Lays the ledger out for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def draw_ledger(content: dict[str, Any]) -> RenderableType:
    """Per technique, per tenant where there are several, what trials say, how fast the tiers are."""
    used = [row for row in content["techniques"] if row["entries"] or row["held_ms"]]
    if not used:
        return Text("nothing booked yet")
    parts: list[RenderableType] = [_table(used, ("technique",))]
    tenants = [row for row in content["tenants"] if row["tenant"] and (row["entries"] or row["held_ms"])]
    if len({row["tenant"] for row in tenants}) > 1:
        parts += [Text(""), _table(tenants, ("tenant", "technique"))]
    trials = [row for row in content["trials"] if row["without"] or row["turns"]]
    if trials:
        parts += [Text(""), _trials(trials)]
    for row in content["tiers"]:
        rate = f"{row['bytes_per_us'] / 1000:.2f} GB/s, lookup {row['fixed_us'] / 1000:.2f} ms"
        parts.append(Text(f"{row['worker_id']} loads from {row['tier']}: {rate}, {row['loads']} seen", style="dim"))
    return Group(*parts)


def _table(rows: list[dict[str, Any]], names: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in ("entries", "saved ms", "spent ms", "held ms", "net ms", "moved MB", "hits", "hit tokens", "of asked"):
        table.add_column(name, no_wrap=True, justify="right")
    for row in rows:
        asked = f"{row['hit_tokens'] / row['asked_tokens']:.0%}" if row["asked_tokens"] else "-"
        table.add_row(
            *(row[name] for name in names), str(row["entries"]), f"{row['saved_ms']:.1f}", f"{row['cost_ms']:.1f}",
            f"{row['held_ms']:.1f}", f"{row['net_ms']:+.1f}", f"{row['cost_bytes'] / 1e6:.1f}", str(row["hits"]),
            str(row["hit_tokens"]), asked,
        )  # fmt: skip
    return table


def _trials(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("trial of", "prompt", "with", "without", "measured / estimated", "switch", "why"):
        table.add_column(name)
    for row in rows:
        ratio = "-" if row["calibration"] is None else f"{row['calibration']:.2f}"
        switch = "off" if row["off"] else "on"
        table.add_row(
            row["technique"], row["prompt"], str(row["with_it"]), str(row["without"]), ratio, switch, row["why"]
        )
    return table
