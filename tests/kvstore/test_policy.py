"""LeafFirstLru against a slow model that recomputes everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_kvstore.policy import LeafFirstLru
from octavo_kvstore.testing import key_of


class SlowOrder:
    """Keys with their parents, from least to most recently used."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int | None]] = []

    def victim(self, pinned: set[int]) -> int | None:
        parents = {parent for _, parent in self.items}
        return next((key for key, _ in self.items if key not in parents and key not in pinned), None)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "touch", "remove", "pop"]),
        st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.sets(st.integers(0, 9), max_size=3),
    ),
    max_size=60,
)


@given(steps)
def test_it_agrees_with_the_slow_model(actions: list[tuple[str, int, int | None, set[int]]]) -> None:
    order, slow = LeafFirstLru(), SlowOrder()
    for action, key, parent, pinned in actions:
        held = {item for item, _ in slow.items}
        if action == "add" and key not in held and parent != key:
            order.add(key_of(key), b"" if parent is None else key_of(parent))
            slow.items.append((key, parent))
        elif action == "touch":
            order.touch(key_of(key))
            slow.items.sort(key=lambda item: item[0] == key)
        elif action == "remove":
            order.remove(key_of(key))
            slow.items = [item for item in slow.items if item[0] != key]
        elif action == "pop":
            expected = slow.victim(pinned)
            pinned_keys = {key_of(item) for item in pinned}
            victim = order.pop_victim(lambda item, pinned_keys=pinned_keys: item in pinned_keys)
            assert victim == (None if expected is None else key_of(expected))
            slow.items = [item for item in slow.items if item[0] != expected]
        assert len(order) == len(slow.items)


def test_many_touches_do_not_grow_it() -> None:
    order = LeafFirstLru()
    for number in range(10):
        order.add(key_of(number), b"")
    for _ in range(1000):
        order.touch(key_of(3))
    assert len(order._leaves) <= 64 + 4 * 10 + 1
    victims = [order.pop_victim(lambda key: False) for _ in range(11)]
    assert victims[-2:] == [key_of(3), None]


def test_a_key_is_added_once() -> None:
    order = LeafFirstLru()
    order.add(key_of(1), b"")
    with pytest.raises(ValueError, match="already"):
        order.add(key_of(1), b"")
