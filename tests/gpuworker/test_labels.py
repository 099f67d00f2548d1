"""Labels: what a Hello says of the pool."""

from __future__ import annotations

import pytest
from octavo_gpuworker.labels import MOST_RESIDENT, Labels

HEAD = bytes(32)


def test_set_forget_and_set_again() -> None:
    labels = Labels()
    labels.set([3, 4, 5], [b"a", b"b", b"c"], [HEAD] * 3)
    labels.forget([4, 99])
    labels.set([3], [b"d"], [HEAD])
    assert labels.resident() == ([5, 3], [b"c", b"d"], [0, 0])


def test_parents_are_places_and_a_missing_one_is_ones_own() -> None:
    labels = Labels()
    labels.set([7, 8, 9], [b"b", b"a", b"x"], [b"a", HEAD, b"gone"])
    assert labels.resident() == ([7, 8, 9], [b"b", b"a", b"x"], [2, 0, 3])


def test_of_two_blocks_with_one_key_the_newer_counts() -> None:
    labels = Labels()
    labels.set([1, 2, 3], [b"a", b"b", b"a"], [HEAD, b"a", HEAD])
    assert labels.resident() == ([3, 2], [b"a", b"b"], [0, 1])


@pytest.mark.parametrize(("most", "blocks"), [(2, [2, 3]), (3, [1, 2, 3]), (0, [])])
def test_the_newest_labels_fit_a_hello(most: int, blocks: list[int]) -> None:
    labels = Labels()
    labels.set([1, 2, 3], [b"a", b"b", b"c"], [HEAD] * 3)
    assert labels.resident(most)[0] == blocks
    assert MOST_RESIDENT * 40 < 4 * 2**20
