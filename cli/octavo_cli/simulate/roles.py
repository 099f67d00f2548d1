"""Worker roles side by side: the same requests, short and long prompts apart, on cells of equal size."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from octavo.figures import Figure, from_json

from octavo_cli.bench.work import BadPlan

AGGREGATED, HYBRID = "aggregated", "hybrid"
SHOWN = ("goodput", "slo_attainment", "ttft_p50", "itl_p99_of_request_p50")


@dataclass(frozen=True, slots=True)
class Setup:
    """A name, and the role of each worker."""

    name: str
    roles: tuple[str, ...]


def setups_of(text: str, workers: int) -> list[Setup]:
    """`aggregated,hybrid,1P3D`: all of equal size, that of the xPyD among them, else `workers`. Raises BadPlan."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    sizes: dict[str, tuple[int, int]] = {}
    for name in names:
        found = re.fullmatch(r"(\d+)P(\d+)D", name)
        if found:
            sizes[name] = int(found[1]), int(found[2])
        elif name not in (AGGREGATED, HYBRID):
            raise BadPlan(f"--roles: {name!r} is unknown; use aggregated, hybrid or numbers as 1P3D", field="roles")
    for name, (prefill, decode) in sizes.items():
        if not prefill or not decode:
            raise BadPlan(f"--roles: {name} needs at least one of each, as 1P1D", field="roles")
    counts = {prefill + decode for prefill, decode in sizes.values()} or {workers}
    if len(counts) > 1:
        raise BadPlan(f"--roles: {text} mixes cells of {sorted(counts)} workers; give all the same size", field="roles")
    (count,) = counts
    if HYBRID in names and count < 2:
        raise BadPlan("--roles: hybrid needs two workers or more; give --workers", field="roles")
    made = []
    for name in dict.fromkeys(names):
        prefill, decode = sizes.get(name, (1, 0) if name == HYBRID else (0, 0))
        roles = ("prefill",) * prefill + ("decode",) * decode
        made.append(Setup(name, roles + ("both",) * (count - len(roles))))
    if not made:
        raise BadPlan("--roles: names nothing; use aggregated, hybrid or numbers as 1P3D", field="roles")
    return made


def by_length(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of conversations whose first prompt is at most the median (`short`), and the others (`long`).

    All under `all` when they do not differ. Rows keep their times; `after` follows the new numbers.
    """
    first: list[int] = []
    for row in rows:
        after = row.get("after", -1)
        first.append(first[after] if after >= 0 else sum(tokens for _identity, tokens in row["pieces"]))
    middle = median(first)
    if all(tokens <= middle for tokens in first):
        return {"all": [dict(row) for row in rows]}
    classes: dict[str, list[dict[str, Any]]] = {"short": [], "long": []}
    number: dict[int, int] = {}
    for index, row in enumerate(rows):
        listed = classes["short" if first[index] <= middle else "long"]
        number[index] = len(listed)
        after = row.get("after", -1)
        listed.append({**row, "after": number[after]} if after >= 0 else dict(row))
    return classes


def compare(
    setups: Sequence[Setup],
    rows: Sequence[Mapping[str, Any]],
    task: Mapping[str, Any],
    ask: Callable[[dict[str, Any], Sequence[str]], dict[str, Any]],
    tell: Callable[[str], None],
) -> tuple[list[Figure], dict[str, Any], list[str]]:
    """Figures named <figure>/<setup>/<class>, the last answer, and the lines of a table. Tells what is done, and what is too full."""
    figures: list[Figure] = []
    answer: dict[str, Any] = {}
    table = [f"{'':22}{'goodput/s':>10}{'attained':>10}{'TTFT p50':>10}{'ITL p99':>10}  idle; first to be full"]
    for length, part in by_length(rows).items():
        lines = [json.dumps(row) for row in part]
        for setup in setups:
            roles = list(setup.roles)
            answer = ask({**task, "workers": len(roles), "cell_workers": len(roles), "roles": roles}, lines)
            found = {item.name: item for item in from_json(answer["figures"]).results}
            figures += [replace(item, name=f"{item.name}/{setup.name.lower()}/{length}") for item in found.values()]
            table.append(_line(f"{setup.name} {length}", found, str(answer["saturates"])))
            tell(f"{setup.name}: {length} prompts simulated")
            for warning in answer["warnings"]:
                tell(f"{setup.name} {length}: {warning}")
    return figures, answer, table


def _line(name: str, found: Mapping[str, Figure], full: str) -> str:
    shown = [found[item].value if item in found else float("nan") for item in SHOWN]
    cells = f"{shown[0]:10.2f}{shown[1]:10.0%}{shown[2]:8.0f}ms{shown[3]:8.0f}ms"
    idle = ", ".join(
        f"{key.removeprefix('idle_')} {item.value:.0%}" for key, item in found.items() if key.startswith("idle_")
    )
    return f"{name:22}{cells}  {idle}; {full}"
