"""Every query of the Grafana dashboard names metrics and labels that a service's table has; and no metric of a table is made up."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from octavo.rpc.instruments import Instrument

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "observability/grafana/dashboards/octavo.json").read_text(encoding="utf-8"))
TABLE: list[Instrument] = [
    item
    for service in ("gateway", "scheduler", "gpuworker", "kvstore")
    for item in importlib.import_module(f"octavo_{service}.instruments").TABLE
]
LABELS: dict[str, set[str]] = {}
for _item in TABLE:
    endings = ("_bucket", "_sum", "_count") if _item.kind == "histogram" else ("",)
    for _ending in endings:
        LABELS[_item.shown + _ending] = {*_item.labels, *(["le"] if _ending == "_bucket" else [])}


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def names_in(query: str) -> list[str]:
    return re.findall(r"\b(?:octavo_|vllm:)\w+", query)


def unknown_in(query: str) -> list[str]:
    """Names without a table, and labels in `by (...)` that no metric of the query has."""
    names = names_in(query)
    found = [name for name in names if name not in LABELS]
    known = set().union(*(LABELS.get(name, set()) for name in names))
    for listed in re.findall(r"\bby ?\(([^)]*)\)", query):
        found += [label for label in (word.strip() for word in listed.split(",")) if label and label not in known]
    return found


@pytest.mark.parametrize("query", queries())
def test_every_query_names_what_exists(query: str) -> None:
    assert names_in(query)
    assert unknown_in(query) == []


@pytest.mark.parametrize("query", ["octavo_gateway_no_such_thing", "sum by (colour) (octavo_gateway_requests_total)"])
def test_a_wrong_query_would_be_found(query: str) -> None:
    assert unknown_in(query)


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_names_are_unique_and_say_their_unit() -> None:
    assert len({item.name for item in TABLE}) == len(TABLE)
    for item in TABLE:
        assert item.help.endswith(".") and not item.name.endswith("_total"), item.name
        if item.kind == "histogram":
            assert re.search(r"_(seconds|tokens|ratio)$", item.name), item.name
