"""ValueOrder against a slow model that works every worth out anew."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_kvstore.policy import MIN_HALF_LIFE, ValueOrder
from octavo_kvstore.testing import key_of


class SlowOrder:
    """Every number kept as it is defined: counts that halve with each `half_life` uses, worth worked out anew for each question."""

    def __init__(self) -> None:
        self.items: dict[int, dict[str, float]] = {}
        self.parents: dict[int, int | None] = {}
        self.uses = 0

    def touch(self, key: int) -> None:
        if key in self.items:
            self.uses += 1
            self.items[key]["hits"] = 1 + self.hits(key)
            self.items[key]["used"] = self.uses

    def hits(self, key: int) -> float:
        item = self.items[key]
        return item["hits"] * 0.5 ** ((self.uses - item["used"]) / MIN_HALF_LIFE)

    def victim(self, pinned: set[int]) -> int | None:
        parents = {self.parents[key] for key in self.items}
        leaves = [key for key in self.items if key not in parents and key not in pinned]

        def worth(key: int) -> tuple[float, float, float]:
            item = self.items[key]
            return item["priority"], round(math.log2(item["gain"] * self.hits(key)), 6), item["used"]

        return min(leaves, key=worth, default=None)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "touch", "remove", "pop", "prioritize"]),
        st.integers(0, 7),
        st.none() | st.integers(0, 7),
        st.sets(st.integers(0, 7), max_size=3),
        st.sampled_from([0.37, 1.0, 5.3]),
    ),
    max_size=60,
)


@given(steps)
def test_it_agrees_with_the_slow_model(actions: list[tuple[str, int, int | None, set[int], float]]) -> None:
    order, slow = ValueOrder(), SlowOrder()
    for action, key, parent, pinned, gain in actions:
        if action == "add" and key not in slow.items and parent != key:
            order.add(key_of(key), b"" if parent is None else key_of(parent), gain=gain, priority=len(pinned) // 3)
            slow.items[key] = {"gain": gain, "hits": 0.0, "used": 0.0, "priority": len(pinned) // 3}
            slow.parents[key] = parent
            slow.touch(key)
        elif action == "touch":
            order.touch(key_of(key))
            slow.touch(key)
        elif action == "prioritize":
            order.prioritize(key_of(key), len(pinned))
            if key in slow.items and slow.items[key]["priority"] != len(pinned):
                slow.items[key]["priority"] = len(pinned)
                slow.touch(key)
        elif action == "remove":
            order.remove(key_of(key))
            slow.items.pop(key, None)
        elif action == "pop":
            expected = slow.victim(pinned)
            pinned_keys = {key_of(item) for item in pinned}
            victim = order.pop_victim(lambda item, pinned_keys=pinned_keys: item in pinned_keys)
            assert victim == (None if expected is None else key_of(expected))
            slow.items.pop(expected, None)
        assert len(order) == len(slow.items)


def test_a_scan_does_not_push_out_what_is_used_often() -> None:
    order = ValueOrder()
    for number in range(20):
        order.add(key_of(number), b"")
    for _ in range(3):
        for number in range(5):
            order.touch(key_of(number))
    for number in range(100, 130):  # once each: what plain recency would keep instead
        order.pop_victim(lambda key: False)
        order.add(key_of(number), b"")
    assert all(key_of(number) in order._items for number in range(5))


def test_a_count_fades() -> None:
    order = ValueOrder()
    order.add(key_of(0), b"")
    for _ in range(50):
        order.touch(key_of(0))
    for number in range(1, 400):
        order.add(key_of(number), b"")
        if len(order) > 8:
            order.pop_victim(lambda key: False)
    assert key_of(0) not in order._items


def test_a_namespace_is_asked_alone() -> None:
    order = ValueOrder(lambda namespace: namespace == b"a")
    order.add(key_of(0), b"", namespace=b"b")
    order.add(key_of(1), b"", namespace=b"a")
    order.add(key_of(2), b"", namespace=b"a")
    assert order.pop_victim(lambda key: False, b"a") == key_of(1)
    assert order.pop_victim(lambda key: key == key_of(2), b"a") is None
    assert order.pop_victim(lambda key: False) == key_of(0)
    assert order.pop_victim(lambda key: False, b"a") == key_of(2)
    assert order.pop_victim(lambda key: False, b"a") is None


def test_many_touches_do_not_grow_it() -> None:
    order = ValueOrder()
    for number in range(10):
        order.add(key_of(number), b"")
    for _ in range(1000):
        order.touch(key_of(3))
    assert len(order._heaps[None]) <= 64 + 4 * 10 + 1
    victims = [order.pop_victim(lambda key: False) for _ in range(11)]
    assert victims[-2:] == [key_of(3), None]


def test_a_key_is_added_once() -> None:
    order = ValueOrder()
    order.add(key_of(1), b"")
    with pytest.raises(ValueError, match="already"):
        order.add(key_of(1), b"")
