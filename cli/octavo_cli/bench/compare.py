"""Two figures files against each other: paired ratios with bootstrap intervals, and what else differs between the runs.

Only equal workloads under equal load are compared. The ratio of a latency is the median over requests of B / A, with a
95% percentile interval over 2,000 resamplings of the pairs (Efron 1979); rates have one value per run, so no interval.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.figures import Figures, quantile

from octavo_cli.bench.work import BadPlan

RESAMPLINGS = 2000
LIKE = ("workload", "loop", "asking", "cache")
"""Parts of the config that must be equal."""
DIGEST = "workload.digest"
"""Differs whenever another field of the workload does, and alone where those fields do not tell the two apart."""
MIN_PAIRS = 5
"""Fewer pairs have no interval worth the name."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A of one metric; `low` and `high` are its 95% interval, None for a single value per run."""

    name: str
    unit: str
    a: float
    b: float
    ratio: float
    low: float | None = None
    high: float | None = None
    pairs: int = 1

    @property
    def verdict(self) -> str:
        """What the interval allows to say."""
        if self.low is None or self.high is None:
            return "one value each" if self.pairs == 1 else f"fewer than {MIN_PAIRS} pairs"
        if self.low <= 1.0 <= self.high:
            return "no difference shown"
        return "B is higher" if self.low > 1.0 else "B is lower"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something about the two runs, other than their figures, that is not the same."""

    what: str
    a: Any
    b: Any

    def said(self) -> tuple[str, str]:
        """Both values as a table or a sentence has them."""
        one, other = ("not said" if value is None else repr(value) for value in (self.a, self.b))
        return one, other


class Unlike(BadPlan):
    """The work was not the same; `fields` are those of the config that differ, in the order of the file."""

    default_reason = "unlike-work"
    fields: tuple[Difference, ...] = ()

    @classmethod
    def of(cls, fields: Sequence[Difference]) -> Unlike:
        """The error that names them."""
        named = "; ".join("{} is {} in A and {} in B".format(item.what, *item.said()) for item in fields)
        error = cls(f"compare: {named}; only equal workloads can be compared", field=fields[0].what)
        error.fields = tuple(fields)
        return error


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratios, and the differences that may have made them."""

    ratios: tuple[Ratio, ...]
    differences: tuple[Difference, ...]

    @property
    def warning(self) -> str:
        """Empty, or why a ratio cannot be put down to one change."""
        if len(self.differences) <= 1:
            return ""
        named = ", ".join(item.what for item in self.differences)
        return f"{len(self.differences)} things differ ({named}); no ratio here can be put down to one of them"


def compare(a: Figures, b: Figures, seed: int = 0) -> Comparison:
    """B against A. Raises Unlike naming the fields that differ, BadPlan for files that are of something else."""
    refuse_unlike(a, b)
    ratios = [paired(name, a.samples[name], b.samples[name], seed) for name in a.samples if name in b.samples]
    paired_names = {item.name for item in ratios if item is not None}
    others = {item.name: item for item in b.results}
    for item in a.results:
        twin = others.get(item.name)
        if twin is not None and item.name not in paired_names and item.value > 0 and twin.unit == item.unit:
            ratios.append(Ratio(item.name, item.unit, item.value, twin.value, twin.value / item.value))
    return Comparison(tuple(item for item in ratios if item is not None), tuple(differences(a, b)))


def refuse_unlike(a: Figures, b: Figures) -> None:
    """Raises Unlike where the same work was not asked for in the same way, BadPlan where the files do not tell."""
    if a.benchmark != b.benchmark:
        raise BadPlan(
            f"compare: A is {a.benchmark!r} and B is {b.benchmark!r}; compare two of the same", field="benchmark"
        )
    found: list[Difference] = []
    for part in LIKE:
        if part not in a.config or part not in b.config:
            raise BadPlan(f"compare: {part} is not in both files; use files of `octavo bench serve`", field=part)
        found += _unlike(part, a.config[part], b.config[part])
    if any(item.what.startswith("workload.") and item.what != DIGEST for item in found):
        found = [item for item in found if item.what != DIGEST]  # it says no more than the fields it is made from
    if found:
        raise Unlike.of(found)


def differences(a: Figures, b: Figures) -> list[Difference]:
    """Settings, model, versions and machine that are not the same."""
    found = list(_unlike("machine", a.machine, b.machine))
    one, other = (item.config.get("served") for item in (a, b))
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        one = other = {}  # files from elsewhere: nothing is known of either server
    for fact in (key for key in one if key in other):  # what only one server says of itself is not known to differ
        found += _unlike(f"served.{fact}", one[fact], other[fact])
    if a.commit != b.commit:
        found.append(Difference("commit", a.commit, b.commit))
    return found


def paired(name: str, a: Sequence[float | None], b: Sequence[float | None], seed: int) -> Ratio | None:
    """The median of B / A over the requests that have both; None when there are none. Raises BadPlan."""
    if len(a) != len(b):
        raise BadPlan(f"compare: samples.{name} has {len(a)} values in A and {len(b)} in B", field="samples")
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None and x > 0]
    if not pairs:
        return None
    ratios = [y / x for x, y in pairs]
    low, high = bootstrap(ratios, seed) if len(ratios) >= MIN_PAIRS else (None, None)
    return Ratio(
        name,
        "ms",
        statistics.median(x for x, _ in pairs),
        statistics.median(y for _, y in pairs),
        statistics.median(ratios),
        low,
        high,
        len(pairs),
    )


def bootstrap(values: Sequence[float], seed: int, resamplings: int = RESAMPLINGS) -> tuple[float, float]:
    """The 95% percentile interval of the median."""
    draw = random.Random(f"bootstrap {seed}")
    medians = [statistics.median(draw.choices(values, k=len(values))) for _ in range(resamplings)]
    return quantile(medians, 0.025), quantile(medians, 0.975)


def _unlike(what: str, a: Any, b: Any) -> list[Difference]:
    """The leaves that differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = dict.fromkeys([*a, *b])
        return [item for key in keys for item in _unlike(f"{what}.{key}", a.get(key), b.get(key))]
    return [] if a == b else [Difference(what, a, b)]
