"""One form for figures: what every benchmark and simulation writes, and what tables for people are drawn from.

{"benchmark", "machine", "config", "commit", "results": [{"name", "value", "unit", "floor_ratio"?, "n", "spread"}],
"samples"?: {name: [value or null]}}
Names look like `decode/bf16/b1`, `prefill/int8/512`, `ttft_p50/hit/dram`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError

_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*(/[a-z0-9][a-z0-9_.+-]*)*")


class BadFigures(OctavoError, ValueError):
    """A figures file or value that does not have the form; the message names the key."""


class BadFile(BadFigures):
    """A file that holds no figures: who named it named the wrong one."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `spread` is the first and third quartile of the `n` samples behind it, in the same unit."""

    name: str
    value: float
    unit: str
    n: int = 1
    spread: tuple[float, float] | None = None
    floor_ratio: float | None = None
    """How far from what the machine allows at best: value / floor for costs, floor / value for rates; 1 is perfect."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadFigures(f"name: {self.name!r} must look like decode/bf16/b1", field="name")
        if not self.unit:
            raise BadFigures(f"unit: {self.name} has none; give ms, tokens/s, bytes, ratio, ...", field="unit")
        if self.n < 1:
            raise BadFigures(f"n: {self.name} has {self.n} samples; give at least 1", field="n")
        for key, value in (("value", self.value), ("floor_ratio", self.floor_ratio), *self._quartiles()):
            if value is not None and not math.isfinite(value):
                raise BadFigures(f"{key}: {self.name} is {value}; leave out what was not measured", field=key)
        if self.spread is not None and self.spread[0] > self.spread[1]:
            raise BadFigures(f"spread: {self.name} goes from {self.spread[0]} down to {self.spread[1]}", field="spread")

    def _quartiles(self) -> list[tuple[str, float | None]]:
        return [("spread", value) for value in self.spread or ()]


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole run of one benchmark on one machine."""

    benchmark: str
    results: tuple[Figure, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=lambda: describe_machine())
    commit: str = field(default_factory=lambda: current_commit())
    samples: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Metric -> a value per unit of work, in the order of the work, so that two runs can be compared in pairs."""

    def __post_init__(self) -> None:
        if not self.benchmark:
            raise BadFigures("benchmark: no name; say what was measured", field="benchmark")
        names = [item.name for item in self.results]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadFigures(f"results: {twice[0]} stands there twice", field="results")

    def value(self, name: str) -> float:
        """The value of one figure. Raises KeyError."""
        for item in self.results:
            if item.name == name:
                return item.value
        raise KeyError(name)


def quantile(samples: Sequence[float], share: float) -> float:
    """The `share` quantile (0 to 1) by linear interpolation. Raises BadFigures without samples."""
    if not samples:
        raise BadFigures("samples: none; nothing was measured", field="samples")
    ranked = sorted(samples)
    at = share * (len(ranked) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (at - low)


def figure_of(name: str, samples: Sequence[float], unit: str, share: float = 0.5) -> Figure:
    """The `share` quantile of the samples, with their quartiles as the spread."""
    spread = (quantile(samples, 0.25), quantile(samples, 0.75))
    return Figure(name, quantile(samples, share), unit, len(samples), spread)


def to_json(figures: Figures) -> dict[str, Any]:
    """The form as a dict."""
    results = []
    for item in figures.results:
        row: dict[str, Any] = {"name": item.name, "value": item.value, "unit": item.unit}
        if item.floor_ratio is not None:
            row["floor_ratio"] = item.floor_ratio
        results.append({**row, "n": item.n, "spread": list(item.spread) if item.spread else None})
    form = {
        "benchmark": figures.benchmark,
        "machine": dict(figures.machine),
        "config": dict(figures.config),
        "commit": figures.commit,
        "results": results,
    }
    samples = {name: list(values) for name, values in figures.samples.items()}
    return {**form, "samples": samples} if samples else form


def from_json(content: Any) -> Figures:
    """Figures out of the form. Raises BadFigures naming the key that is missing, unknown or of the wrong kind."""
    keys = {"benchmark": str, "machine": dict, "config": dict, "commit": str, "results": list}
    _check_keys("figures", content, keys, {"samples": dict})
    for name, values in content.get("samples", {}).items():
        if not isinstance(values, list) or not all(item is None or _is_number(item) for item in values):
            raise BadFigures(f"samples.{name}: must be a list of finite numbers and nulls", field="samples")
    rows = []
    for number, row in enumerate(content["results"]):
        required = {"name": str, "value": (int, float), "unit": str, "n": int}
        optional = {"spread": (list, type(None)), "floor_ratio": (int, float)}
        _check_keys(f"results[{number}]", row, required, optional)
        spread = row.get("spread")
        if spread is not None and (len(spread) != 2 or not all(_is_number(item) for item in spread)):
            raise BadFigures(f"results[{number}].spread: {spread!r} must be two numbers", field="spread")
        for key in ("value", "floor_ratio"):
            if key in row and not _is_number(row[key]):
                raise BadFigures(f"results[{number}].{key}: must be a finite number", field=key)
        rows.append(Figure(**{**row, "spread": tuple(spread) if spread is not None else None}))
    return Figures(**{**content, "results": tuple(rows)})


def _is_number(value: Any) -> bool:
    """Finite, and no larger than a float can be."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # False for NaN


def write_figures(path: Path, figures: Figures) -> None:
    """Writes the form as JSON, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(to_json(figures), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


def read_figures(path: Path) -> Figures:
    """Reads a figures file. Raises BadFile."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}; give a file that `octavo bench` wrote", field="path") from error
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error}; give a file that `octavo bench` wrote", field="path") from error
    try:
        return from_json(content)
    except BadFigures as error:
        fix = "give a file that `octavo bench` wrote"
        raise BadFile(f"{path}: {error.message}; {fix}", field=error.field) from error


def describe_machine() -> dict[str, Any]:
    """CPU, cores, memory, system and Python of this machine, without asking torch."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def current_commit() -> str:
    """The commit this code was checked out at, with + when files differ from it; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _check_keys(where: str, content: Any, required: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    if not isinstance(content, dict):
        raise BadFigures(f"{where}: {type(content).__name__} must be an object", field=where)
    for key in content:
        if key not in required and key not in optional:
            raise BadFigures(f"{where}.{key}: is not part of the form", field=key)
    for key in required:
        if key not in content:
            raise BadFigures(f"{where}.{key}: is missing", field=key)
    for key, kind in {**required, **optional}.items():
        if key in content and (not isinstance(content[key], kind) or isinstance(content[key], bool)):
            raise BadFigures(f"{where}.{key}: {content[key]!r} is of the wrong kind", field=key)
