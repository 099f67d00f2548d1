"""Times to live, pins, priorities and tiers of single requests."""

from __future__ import annotations

from typing import Any

from octavo_scheduler.orders import Offload
from octavo_scheduler.preloads.lifetimes import Lifetimes

PROMPT = list(range(1, 26))


def test_blocks_are_gone_after_their_time(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=shop.rule(ttl_us=1_000_000))
    assert shop.ask(PROMPT, cache=shop.rule(ttl_us=1_000_000)).cached_tokens == 24
    shop.wait_us(1_300_000)
    assert len(shop.worker.index) == 0 and shop.cell.counters["expired_blocks"] == 6
    assert len(shop.cell.caching.lifetimes) == 0
    assert shop.ask(PROMPT).cached_tokens == 0


def test_the_longest_wish_counts_for_shared_blocks(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=shop.rule(ttl_us=500_000))
    shop.ask([*PROMPT[:8], 90, 91, 92, 93, 94], cache=shop.rule(ttl_us=2_000_000))
    shop.ask([*PROMPT[:4], 80])
    shop.wait_us(1_000_000)
    assert shop.ask(PROMPT, cache=shop.rule(ttl_us=1)).cached_tokens == 8
    shop.wait_us(1_500_000)
    assert shop.ask(PROMPT).cached_tokens == 4, "one that wants no limit takes it off"


def test_a_block_that_was_evicted_and_computed_again_without_a_limit_has_none(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=shop.rule(ttl_us=900_000))
    for key in list(shop.worker.index.heads()):
        shop.worker.index.drop(key)
    shop.ask(PROMPT)
    shop.wait_us(1_200_000)
    assert shop.ask(PROMPT).cached_tokens == 24


def test_a_worker_s_hello_does_not_bring_blocks_with_a_limit(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=shop.rule(ttl_us=60_000_000))
    shop.simulation.disconnect(shop.links[0], dead=False)
    shop.wait_us(400_000)
    assert shop.ask(PROMPT).cached_tokens == 0


def test_a_pinned_request_s_blocks_stay_for_their_time(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=shop.rule(ttl_us=3_000_000, pin=True))
    assert shop.worker.pool.pinned_blocks == 6 == shop.cell.caching.pinned_blocks("default")
    for number in range(12):
        shop.ask([number, *([51] * 60)])
    assert shop.ask(PROMPT, cache=shop.rule(ttl_us=1)).cached_tokens == 24
    shop.wait_us(4_000_000)
    assert shop.worker.pool.pinned_blocks == 0 == shop.cell.caching.pinned_blocks("default")


def test_a_pin_over_the_quota_is_refused_with_both_numbers(make_shop: Any) -> None:
    shop = make_shop(pin_quota_bytes={"*": 5000})
    client = shop.ask(PROMPT, cache=shop.rule(ttl_us=10**6, pin=True))
    assert (client.outcome, client.reason) == ("rejected", "rejected-pin-quota")
    assert shop.ask(PROMPT[:9], cache=shop.rule(ttl_us=10**6, pin=True)).outcome == "finished"


def test_priority_outlives_newer_blocks(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=shop.rule(priority=8))
    for number in range(12):
        shop.ask([number, *([51] * 40)])
    assert shop.ask(PROMPT).cached_tokens == 24


def offloads(shop: Any) -> list[Offload]:
    """What goes to the store while time passes."""
    found: list[Offload] = []
    feed = shop.simulation.core.handle

    def handle(event: Any) -> Any:
        effects = feed(event)
        found.extend(order for _epoch, orders in effects.orders for order in orders if isinstance(order, Offload))
        return effects

    shop.simulation.core.handle = handle
    return found


def test_a_request_s_wishes_travel_with_its_blocks_to_the_store(make_shop: Any) -> None:
    shop = make_shop(store=True)
    found = offloads(shop)
    shop.ask(PROMPT, cache=shop.rule(ttl_us=50_000_000, priority=2, tiers=("hbm", "nvme")))
    shop.wait_us(300_000)
    (order,) = found[:1]
    assert set(order.priorities) == {2} and set(order.tiers) == {2} and all(us > 0 for us in order.recompute_us)
    assert all(0 < ttl_us <= 50_000_000 for ttl_us in order.ttl_us)
    shop.ask([90 + number for number in range(9)])
    shop.wait_us(300_000)
    assert found[-1].ttl_us == [] and found[-1].tiers == [] and found[-1].priorities == []


def test_hbm_alone_never_leaves_the_pool(make_shop: Any) -> None:
    shop = make_shop(store=True)
    found = offloads(shop)
    shop.ask(PROMPT, cache=shop.rule(tiers=("hbm",)))
    shop.wait_us(300_000)
    assert found == [] and shop.store.held == {} and shop.ask(PROMPT).cached_tokens == 24


def test_lifetimes_are_a_heap_of_the_latest_wishes() -> None:
    lives = Lifetimes()
    lives.begin(b"a", 10)
    lives.begin(b"b", 20)
    lives.extend([b"a", b"?"], 30)
    assert lives.due(25) == [b"b"] and b"a" in lives and lives.next_us() == 30
    lives.extend([b"a"], 5)
    assert lives.due(29) == [] and lives.due(30) == [b"a"] and len(lives) == 0 and lives.next_us() == 0
    lives.begin(b"c", 40)
    lives.extend([b"c"], 0)
    assert lives.due(100) == []


def test_requests_at_once_never_pin_more_than_the_quota_together(make_shop: Any) -> None:
    shop = make_shop(pin_quota_bytes={"default": 8_000.0}, pin_share=1.0)
    clients = [
        shop.ask([number] * 16, max_tokens=4, run=False, cache=shop.rule(ttl_us=9_000_000, pin=True))
        for number in (1, 2, 3)
    ]
    shop.run()
    assert [client.outcome for client in clients] == ["finished"] * 3
    assert 0 < shop.cell.caching.pinned_blocks("default") <= 8
