"""The committed budget: what each binary may take, per triton version and target; a row that grew is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Resources:
    """What one binary takes."""

    registers: int
    """Per thread."""
    spills: int
    """Instructions that touch local memory, plus bytes of stack."""
    shared_bytes: int
    """Per block, the compiler's reserve included."""
    occupancy: float
    """Warps that fit one processor, of the most it can hold."""
    mma: int
    """Tensor core instructions."""


Rows = dict[str, Resources]
"""KERNEL/VARIANT/sm_NN -> what it takes."""


def read_budget(path: Path, version: str) -> Rows:
    """The rows of one triton version ("3.6"); KeyError when the budget has none."""
    return {row: Resources(*values) for row, values in json.loads(path.read_text())[version].items()}


def update_budget(path: Path, version: str, rows: Mapping[str, Resources], targets: set[str]) -> None:
    """Replaces the version's rows of `targets` (sm_NN) that `rows` holds; one line per row, so that a change is one line."""
    held = json.loads(path.read_text()) if path.is_file() else {}
    fresh = {
        row: list(asdict(resources).values()) for row, resources in rows.items() if row.rsplit("/", 1)[1] in targets
    }
    held[version] = dict(sorted({**held.get(version, {}), **fresh}.items()))
    parts = []
    for name, table in sorted(held.items()):
        lines = ",\n".join(f"  {json.dumps(row)}: {json.dumps(values)}" for row, values in table.items())
        parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def over_budget(rows: Mapping[str, Resources], budget: Mapping[str, Resources], needs_mma: set[str]) -> list[str]:
    """One line per figure that grew (registers, spills, shared memory), fell (occupancy) or is missing (no tensor core where
    `needs_mma` (KERNEL/VARIANT) wants one), and per row that the budget lacks."""
    found = []
    for row, now in rows.items():
        if row.rsplit("/", 1)[0] in needs_mma and not now.mma:
            found.append(f"{row}/mma: 0, its product must use tensor cores")
        allowed = budget.get(row)
        spills = 0 if allowed is None else allowed.spills
        if now.spills > spills:
            found.append(f"{row}/spills: {now.spills}, the budget is {spills}")
        if allowed is None:
            found.append(f"{row}: not in the budget; measure it with --budget")
            continue
        for figure in ("registers", "shared_bytes"):
            value, limit = getattr(now, figure), getattr(allowed, figure)
            if value > limit:
                found.append(f"{row}/{figure}: {value}, the budget is {limit}")
        if now.occupancy < allowed.occupancy:
            found.append(f"{row}/occupancy: {now.occupancy}, the budget is {allowed.occupancy}")
        if now.mma < allowed.mma and not now.mma:
            found.append(f"{row}/mma: 0, the budget has {allowed.mma}")
    return found
