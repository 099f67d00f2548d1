"""The test statistic and its p-value, against values of the tables and against simulation."""

from __future__ import annotations

import random

import pytest
from octavo_cli.check.chi_square import chi_square, survival


@pytest.mark.parametrize(
    ("statistic", "degrees", "p"),
    [(3.841459, 1, 0.05), (6.634897, 1, 0.01), (18.307038, 10, 0.05), (29.588298, 10, 0.001), (3.940299, 10, 0.95), (124.342113, 100, 0.05)],
)  # fmt: skip
def test_survival_as_in_the_tables(statistic: float, degrees: int, p: float) -> None:
    assert survival(statistic, degrees) == pytest.approx(p, rel=1e-5)


def test_the_edges() -> None:
    assert survival(0.0, 3) == 1.0 and survival(5.0, 0) == 1.0 and survival(1e4, 3) < 1e-300
    assert chi_square([50, 50], [0.5, 0.5]) == (0.0, 1.0)
    assert chi_square([50, 50, 1], [0.5, 0.5, 0.0])[1] == 0.0  # what cannot come came


def test_the_statistic_and_the_pooling_of_rare_classes() -> None:
    assert chi_square([60, 40], [0.5, 0.5])[0] == pytest.approx(4.0)
    pooled, _p = chi_square([500, 499, 1, 0], [0.5, 0.498, 0.001, 0.001])
    assert pooled == pytest.approx(chi_square([500, 500], [0.5, 0.5])[0], abs=0.01)


def test_p_values_of_true_draws_are_uniform() -> None:
    draw = random.Random(2)
    shares = [0.4, 0.3, 0.2, 0.1]
    small = 0
    for _ in range(400):
        draws = draw.choices(range(4), shares, k=200)
        small += chi_square([draws.count(k) for k in range(4)], shares)[1] < 0.1
    assert 20 < small < 65  # a tenth of 400
