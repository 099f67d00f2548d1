"""Labels: what a Hello says of the pool."""

from __future__ import annotations

import pytest
from octavo_gpuworker.labels import MOST_RESIDENT, Labels


def test_set_forget_and_set_again() -> None:
    labels = Labels()
    labels.set([3, 4, 5], [b"a", b"b", b"c"])
    labels.forget([4, 99])
    labels.set([3], [b"d"])
    assert labels.resident() == ([5, 3], [b"c", b"d"])


@pytest.mark.parametrize(("most", "blocks"), [(2, [2, 3]), (3, [1, 2, 3]), (0, [])])
def test_the_newest_labels_fit_a_hello(most: int, blocks: list[int]) -> None:
    labels = Labels()
    labels.set([1, 2, 3], [b"a", b"b", b"c"])
    assert labels.resident(most)[0] == blocks
    assert MOST_RESIDENT * 36 < 4 * 2**20
