"""What a cached block is worth: decay, scale, and a heap whose cost does not grow with the pool."""

from __future__ import annotations

from math import log2

import pytest
from octavo_scheduler.prefix.eviction import HALF_LIFE_US, Victims, add_use, keep_score, use_at
from octavo_scheduler.prefix.node import Node
from octavo_scheduler.prefix.radix import PrefixIndex

from tests.scheduler.prefix.test_radix import chain, put
from tests.scheduler.test_core_scale import calls_of


def test_uses_add_up_and_halve_with_time() -> None:
    heat = use_at(0)
    for _ in range(7):
        heat = add_use(heat, 0)
    assert heat - use_at(0) == pytest.approx(3.0), "eight uses"
    later = add_use(heat, 3 * HALF_LIFE_US)
    assert later - use_at(3 * HALF_LIFE_US) == pytest.approx(1.0), "they are one by now, and one more came"


def test_a_year_of_uptime_overflows_nothing() -> None:
    year_us = 365 * 86_400 * 1_000_000
    assert add_use(use_at(0), year_us) == pytest.approx(use_at(year_us))
    assert add_use(use_at(year_us), 0) == pytest.approx(use_at(year_us)), "an event that is late changes nothing"


def test_value_is_time_per_byte_and_priority_doubles_it() -> None:
    score = keep_score(0.0, 1600.0, 100)
    assert score == pytest.approx(log2(16))
    assert keep_score(0.0, 1600.0, 50) == pytest.approx(score + 1) == pytest.approx(keep_score(0.0, 1600.0, 100, 1))
    assert keep_score(0.0, 0.0, 0) < 0, "no cost and no size are no error"


def test_void_offers_are_passed_over_and_swept_out() -> None:
    victims = Victims(lambda node: bool(node.blocks))
    nodes = [Node(None, 0, [number], 0.0) for number in range(3)]
    for turn in range(200):
        for node in nodes:
            victims.offer(node, float(turn + node.blocks[0]))
        victims.tidy(len(nodes))
    assert len(victims) <= 2 * len(nodes) + 64 + len(nodes)
    nodes[0].blocks = []
    assert [victims.pop(), victims.pop(), victims.pop()] == [nodes[1], nodes[2], None]


def test_an_eviction_costs_as_much_in_a_large_pool_as_in_a_small_one() -> None:
    costs = []
    for chains in (20, 2000):
        index = PrefixIndex(4 * chains + 1)
        for number in range(chains):
            put(index, chain(*(1000 * number + at for at in range(4))), number)
        costs.append(calls_of(lambda: index.pool.take(8)))  # noqa: B023
    assert costs[1] <= costs[0] + 4, costs


def test_a_match_costs_the_logarithm_of_its_length() -> None:
    index = PrefixIndex(2100)
    keys = chain(*range(2000))
    put(index, keys[:1000])
    wanted = [*keys[:900], *chain(7, 7, 7)]

    class Counting(dict[bytes, int]):
        looks = 0

        def __contains__(self, key: object) -> bool:
            Counting.looks += 1
            return super().__contains__(key)

    index.block_of = Counting(index.block_of)
    assert index.match_len(wanted, len(wanted)) == 900 and Counting.looks < 16
