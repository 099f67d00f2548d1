"""Which way of reading a run is taken: both are tried, the faster one stays, the other is looked at now and then."""

from __future__ import annotations

from octavo_kvstore.read_ways import RECENT, TRIALS, TRY_EVERY, ReadWays


def measured(lane: float, spread: float) -> ReadWays:
    ways = ReadWays()
    for _ in range(2 * TRIALS):
        way = ways.lane_next()
        ways.note(way, 1000, 1000 / (lane if way else spread))
    return ways


def test_each_way_is_tried_before_one_is_chosen() -> None:
    assert [measured(3, 2).lane_next() for _ in range(3)] == [True] * 3
    assert [measured(2, 3).lane_next() for _ in range(3)] == [False] * 3


def test_the_slower_way_is_tried_again_and_can_win() -> None:
    ways = measured(lane=2, spread=3)
    taken = [ways.lane_next() for _ in range(4 * TRY_EVERY)]
    assert taken.count(True) == 4
    while not ways.lane_next():
        ways.note(False, 1000, 1000 / 3)
    for _ in range(RECENT):
        ways.note(True, 1000, 1000 / 9)
    assert ways.lane_next() and ways.figures()["read_lane_bytes_per_s"] > ways.figures()["read_spread_bytes_per_s"]


def test_a_run_of_nothing_says_nothing() -> None:
    ways = ReadWays()
    ways.note(True, 0, 1.0)
    ways.note(False, 100, 0.0)
    assert ways.lane_next() and set(ways.figures().values()) == {0.0}


def test_one_disturbed_run_decides_nothing() -> None:
    ways = ReadWays()
    ways.note(True, 1000, 9.0)
    ways.note(False, 1000, 0.5)
    assert ways.lane_next()
    ways.note(True, 1000, 0.4)
    ways.note(False, 1000, 0.5)
    assert ways.lane_next()
