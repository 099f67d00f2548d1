"""The rank test that the privacy tests rely on, against worked values."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

import pytest


@pytest.fixture
def test_of() -> Any:
    path = Path(__file__).parents[2] / "e2e/mann_whitney.py"
    spec = importlib.util.spec_from_file_location("mann_whitney", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.mann_whitney


def by_pairs(a: list[float], b: list[float]) -> float:
    """The same from the definition: U counts the pairs in which a is the larger one; without ties."""
    u = sum(x > y for x in a for y in b)
    n, m = len(a), len(b)
    z = (u - n * m / 2) / (n * m * (n + m + 1) / 12) ** 0.5
    return 2 * NormalDist().cdf(-abs(z))


def test_it_is_what_counting_pairs_gives(test_of: Any) -> None:
    draw = Random(1)
    for shift in (0.0, 0.3, 1.0):
        a, b = [draw.gauss(0, 1) for _ in range(40)], [draw.gauss(shift, 1) for _ in range(50)]
        assert test_of(a, b) == pytest.approx(by_pairs(a, b), rel=1e-9)


def test_ties_take_the_middle_rank_and_narrow_the_spread(test_of: Any) -> None:
    assert test_of([5.0] * 20, [5.0] * 20) == 1.0
    assert test_of([1.0, 2.0] * 20, [2.0, 1.0] * 20) == pytest.approx(1.0)
    assert test_of([1.0] * 10 + [2.0] * 10, [2.0] * 10 + [3.0] * 10) < 1e-3


def test_its_size_and_its_power(test_of: Any) -> None:
    draw = Random(3)
    same = [test_of([draw.gauss(0, 1) for _ in range(60)], [draw.gauss(0, 1) for _ in range(60)]) for _ in range(300)]
    assert 0.02 < sum(p < 0.05 for p in same) / 300 < 0.09
    assert test_of([draw.gauss(0, 1) for _ in range(200)], [draw.gauss(1.0, 1) for _ in range(200)]) < 1e-6
