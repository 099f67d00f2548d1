"""A preload's life: computed once, found by requests, swapped in one event, brought back after losses."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_scheduler.orders import Keep
from octavo_scheduler.preloads.cache_events import PreloadPinned, PreloadRemoved, PreloadUsed

DOCS = list(range(1, 31))  # 7 whole blocks of 4, and 2 tokens


def test_it_is_computed_once_pinned_and_found_by_who_continues_it(make_shop: Any) -> None:
    shop = make_shop()
    preload = shop.put("docs", DOCS)
    assert (preload.state, preload.held_blocks, len(preload.keys)) == ("ready", 7, 7)
    assert preload.source == {"computed": 30} and preload.build_us > 0
    assert shop.worker.pool.pinned_blocks == 7
    client = shop.ask([*DOCS, 40, 41, 42])
    assert client.cached_tokens == 28
    assert shop.cell.caching.pinned_blocks("default") == 7


def test_pinned_blocks_outlive_a_flood_that_evicts_everything_else(make_shop: Any) -> None:
    shop = make_shop()
    shop.put("docs", DOCS)
    other = shop.ask([50] * 30)
    for number in range(20):
        shop.ask([number, *([51] * 40)])
    assert shop.ask([*DOCS, 40, 41, 42]).cached_tokens == 28
    assert other.cached_tokens == 0 and shop.ask([50] * 30).cached_tokens < 28


def test_an_update_serves_the_old_content_until_it_swaps(make_shop: Any) -> None:
    shop = make_shop()
    old = shop.put("docs", DOCS)
    running = shop.ask([*DOCS, 40], max_tokens=60, run=False)
    shop.steps(3)
    new = shop.put("docs", [*range(60, 40, -1)], run=False)
    assert shop.cell.caching.book.named("default", "docs") is old and new.state == "building"
    while new.state == "building":
        shop.steps(1)
    assert shop.cell.caching.book.named("default", "docs") is new
    assert not old.held_blocks and new.held_blocks == 5 and not running.outcome
    assert old.keys[0] not in shop.worker.index and shop.cell.counters["preloads_swapped"] == 1
    shop.run()
    assert running.outcome == "finished" and len(running.got[0]) == 60
    assert shop.worker.pool.free_blocks + 5 == shop.worker.pool.usable_blocks
    assert shop.ask([*DOCS, 40, 41, 42]).cached_tokens == 0, "what ran on the old content left it behind"


def test_an_update_that_shares_a_beginning_keeps_it(make_shop: Any) -> None:
    shop = make_shop()
    shop.put("docs", DOCS)
    before = shop.cell.counters["prefill_tokens"]
    new = shop.put("docs", [*DOCS[:16], 61, 62, 63, 64])
    assert new.source == {"hbm": 16, "computed": 4} and new.version == 2
    assert shop.cell.counters["prefill_tokens"] - before == 4
    assert shop.ask([*DOCS[:16], 61, 62, 63, 64, 1]).cached_tokens == 20


def test_the_same_content_again_changes_nothing(make_shop: Any) -> None:
    shop = make_shop()
    first = shop.put("docs", DOCS)
    steps = shop.cell.counters["prefill_tokens"]
    assert shop.put("docs", DOCS) is first and first.version == 1
    assert shop.cell.counters["prefill_tokens"] == steps


def test_a_second_update_overtakes_the_first(make_shop: Any) -> None:
    shop = make_shop()
    shop.put("docs", DOCS, run=False)
    last = shop.put("docs", [9] * 20, run=False)
    shop.run()
    assert shop.cell.caching.book.named("default", "docs") is last and not shop.cell.caching.book.pending
    assert shop.worker.pool.pinned_blocks == 5 and not shop.cell.caching.book.by_request


def test_removal_throws_its_blocks_out_and_leaves_others_alone(make_shop: Any) -> None:
    shop = make_shop()
    shop.put("docs", DOCS)
    shop.put("more", [*DOCS[:8], 70, 71, 72, 73])
    shop.feed(PreloadRemoved(shop.simulation.now_us, "default", "docs"))
    assert shop.result.found and shop.result.blocks == 5  # two are the other's too
    assert shop.worker.pool.pinned_blocks == 3
    assert shop.ask([*DOCS, 40]).cached_tokens == 8
    shop.feed(PreloadRemoved(shop.simulation.now_us, "default", "docs"))
    assert not shop.result.found


def test_pin_off_lets_blocks_go_and_pin_brings_them_back(make_shop: Any) -> None:
    shop = make_shop()
    preload = shop.put("docs", DOCS)
    shop.feed(PreloadPinned(shop.simulation.now_us, "default", "docs", False))
    assert shop.worker.pool.pinned_blocks == 0 and preload.state == "ready"
    for number in range(20):
        shop.ask([number, *([51] * 60)])
    assert shop.worker.index.match_len(preload.keys, 7) < 7
    shop.feed(PreloadPinned(shop.simulation.now_us, "default", "docs", True))
    shop.run()
    assert preload.held_blocks == 7 and "computed" in preload.source
    shop.feed(PreloadPinned(shop.simulation.now_us, "default", "nobody", True))
    assert not shop.result.found


def test_a_lost_worker_s_preload_is_computed_on_another(make_shop: Any) -> None:
    shop = make_shop(workers=2)
    preload = shop.put("docs", DOCS)
    home = next(link for link in shop.links if link.epoch == preload.epoch)
    shop.simulation.disconnect(home, dead=True)
    shop.wait_us(1_200_000)
    shop.run()
    assert preload.state == "ready" and preload.held_blocks == 7
    assert shop.cell.fleet.workers[preload.epoch].index.match_len(preload.keys, 7) == 7


def test_a_worker_that_comes_back_with_its_blocks_is_pinned_without_computing(make_shop: Any) -> None:
    shop = make_shop()
    preload = shop.put("docs", DOCS)
    shop.steps(3)
    computed = shop.links[0].worker.computed_tokens
    shop.simulation.disconnect(shop.links[0], dead=False)
    shop.wait_us(400_000)
    assert preload.held_blocks == 7 and preload.source == {"hbm": 28}
    assert shop.links[0].worker.computed_tokens == computed


def test_a_new_worker_loads_it_from_the_store(make_shop: Any) -> None:
    shop = make_shop(store=True)
    preload = shop.put("docs", DOCS)
    assert ("host", Keep(preload.keys, True)) in shop.simulation.told
    shop.wait_us(300_000)
    shop.simulation.flush_store("host")
    assert len(shop.store.held) >= 7
    shop.simulation.disconnect(shop.links[0], dead=True)
    shop.wait_us(400_000)
    shop.run()
    assert preload.held_blocks == 7
    assert preload.source["computed"] <= 6 and preload.source["store"] >= 24, preload.source


def test_what_an_earlier_scheduler_kept_waits_for_a_worker_of_the_same_make(make_shop: Any) -> None:
    shop = make_shop()
    same = shop.put("docs", DOCS, restored=True, root_key=b"r" * 32, version=4)
    assert (same.state, same.version, shop.cell.counters["preloads_restored"]) == ("ready", 4, 1)
    other = shop.put("old", DOCS, restored=True, root_key=b"x" * 32)
    assert other.state == "failed" and "another model" in other.why
    shop.wait_us(7_000_000)
    assert other.state == "failed"


def test_a_build_that_fails_leaves_the_old_content_in_force(make_shop: Any) -> None:
    shop = make_shop(no_worker_timeout_us=100_000)
    old = shop.put("docs", DOCS)
    shop.simulation.disconnect(shop.links[0], dead=True)
    shop.links[0].reconnect_at_us = 10**15
    failed = shop.put("docs", [9] * 20, run=False)
    assert failed.state == "building"
    for _ in range(6):
        shop.simulation.advance(100_000)
        shop.feed(PreloadUsed(shop.simulation.now_us, "default", "docs"))
    book = shop.cell.caching.book
    assert book.active["default", "docs"] is old and old.uses == 6


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (3, ("3 tokens", "one block of 4")),
        (113, ("113 tokens", "112", "120", "preload_reserve_tokens 8")),
        (111, ()),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(make_shop: Any, tokens: int, words: tuple[str, ...]) -> None:
    said = make_shop(pin_share=1.0).refusal("docs", tokens)
    assert all(word in said for word in words) and bool(said) == bool(words), said


def test_without_a_worker_or_with_the_cache_off_it_is_refused(make_shop: Any) -> None:
    assert "cache.prefix is off" in make_shop(prefix_cache=False).refusal("docs", 20)
    assert "no worker is ready; retry" in make_shop(workers=0).refusal("docs", 20)


def test_the_pin_quota_is_refused_with_both_numbers_and_a_replacement_counts_once(make_shop: Any) -> None:
    shop = make_shop(pin_quota_bytes={"default": 10_000})  # a block has 1,000 bytes
    shop.put("docs", DOCS)
    said = shop.refusal("more", 16)
    assert "4000 bytes beside 7000" in said and "10000 bytes" in said
    assert shop.refusal("docs", 40) == "" and "11000 bytes beside 0" in shop.refusal("docs", 44)


def test_names_of_evicted_preloads_are_bounded_too(make_shop: Any, monkeypatch: Any) -> None:
    from octavo_scheduler.preloads import quota

    monkeypatch.setattr(quota, "MOST_PRELOADS", 2)
    shop = make_shop()
    for name in ("one", "two"):
        shop.put(name, DOCS).state = "evicted"
    assert "name: 2 preloads of this tenant are kept" in shop.refusal("three", 16)
    assert "name:" not in shop.refusal("two", 16)
    shop.feed(PreloadRemoved(shop.simulation.now_us, "default", "one"))
    assert "name:" not in shop.refusal("three", 16)


def test_the_share_of_the_pool_is_a_bound_for_all_tenants_together(make_shop: Any) -> None:
    shop = make_shop(num_blocks=41, pin_share=0.25)
    preload = shop.put("docs", DOCS)
    assert "beside 7000 that are pinned exceed the pin quota of 10000" in shop.refusal("x", 16)
    preload.tenant = "somebody"
    said = "4000 bytes beside 7000 that all tenants have pinned exceed the 10000 bytes of cache.pin_share 0.25"
    assert said in shop.refusal("x", 16)


def test_pins_yield_to_a_request_that_could_never_run_beside_them_and_come_back(make_shop: Any) -> None:
    shop = make_shop(num_blocks=17, pin_share=1.0)
    preload = shop.put("docs", DOCS)
    big = shop.ask(list(range(100, 148)), max_tokens=4)
    assert big.outcome == "finished"
    assert preload.held_blocks < 7
    shop.wait_us(7_000_000)
    shop.run()
    assert preload.held_blocks == 7


def test_a_repeat_waits_for_the_same_computation_and_a_return_to_the_old_content_takes_the_new_one_back(
    make_shop: Any,
) -> None:
    shop = make_shop()
    first = shop.put("docs", DOCS, run=False)
    assert shop.put("docs", DOCS) is first and first.state == "ready" and first.source == {"computed": 30}
    shop.put("docs", [9] * 20, run=False)
    assert shop.put("docs", DOCS) is first, "the last word counts, also when it is the first one again"
    assert shop.cell.caching.book.named("default", "docs") is first and not shop.cell.caching.book.pending


def test_updates_that_were_overtaken_before_they_began_are_never_computed(make_shop: Any) -> None:
    shop = make_shop()
    running = [shop.ask([number] * 20, max_tokens=30, run=False) for number in range(1, 5)]
    shop.steps(4)  # every slot is taken
    for number in range(20):
        shop.put("docs", [number + 10] * 20, run=False)
    assert len(shop.cell.queue) == 1
    shop.run()
    assert all(client.outcome == "finished" for client in running)
    assert shop.cell.caching.book.named("default", "docs").prompt[0] == 29


def test_contents_of_one_name_and_version_differ_in_form_salt_or_text(make_shop: Any) -> None:
    shop = make_shop()
    seen = set()
    for given in ({}, {"form": "system"}, {"salt": "s"}):
        seen.add(shop.put("docs", DOCS, **given).content)
        shop.feed(PreloadRemoved(shop.simulation.now_us, "default", "docs"))
    again = shop.put("docs", [9] * 20)
    assert again.version == 1 and len(seen | {again.content}) == 4


def test_preloads_are_paid_for_from_the_tenant_s_budget(make_shop: Any) -> None:
    limits = {"default": {"rate_tokens_per_s": 1.0, "burst_tokens": 70.0}}
    shop = make_shop(tenant_limits=limits)
    for number in (1, 2):
        assert not shop.refusal("docs", 30)
        shop.put("docs", [number] * 30)
    shop.put("docs", [2] * 30)  # changes nothing, costs nothing
    why = shop.refusal("docs", 30)
    assert why.startswith("texts: tenant default has 1") and "tenants.limits rate_tokens_per_s 1" in why
    shop.wait_us(25_000_000)
    assert not shop.refusal("docs", 30)


def test_one_that_was_kept_for_a_longer_context_is_never_sent_to_a_worker(make_shop: Any) -> None:
    shop = make_shop()
    kept = shop.put("docs", [5] * 200, restored=True)
    assert (kept.state, kept.pinned) == ("failed", False) and "200 tokens exceed the context of 120" in kept.why
    shop.wait_us(6_000_000)
    assert kept.state == "failed" and shop.links[0].worker.computed_tokens == 0
    assert shop.ask(DOCS).outcome == "finished"


def test_an_update_while_the_old_content_is_being_loaded(make_shop: Any) -> None:
    """Its load ends for nobody: the new content serves, and nothing of the old one is pinned or held."""
    shop = make_shop(store=True, load_path="load")
    old = shop.put("docs", DOCS)
    shop.wait_us(300_000)
    shop.simulation.flush_store("host")
    shop.feed(PreloadPinned(shop.simulation.now_us, "default", "docs", False))
    for number in range(20):
        shop.ask([70 + number, *([51] * 100)])
    assert not any(key in shop.worker.index for key in old.keys)
    shop.feed(PreloadPinned(shop.simulation.now_us, "default", "docs", True))
    assert old.request is not None
    for _ in range(200):
        if any(transfer.kind == "load" for transfer in shop.worker.transfers.values()):
            break
        shop.steps(1)
    else:
        raise AssertionError("no load was ordered")
    new = shop.put("docs", [*range(60, 40, -1)], run=False)
    shop.run()
    assert shop.cell.caching.book.named("default", "docs") is new and new.held_blocks == 5
    assert not old.held_blocks and not shop.cell.caching.book.by_request
    assert shop.worker.pool.pinned_blocks == 5
    assert shop.worker.pool.free_blocks + 5 == shop.worker.pool.usable_blocks
    assert shop.ask([*range(60, 40, -1), 1]).cached_tokens == 20
