"""Eviction and rotation: nothing that was thrown out is found again, whatever ran or was on its way meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from octavo.keys import extend_keys, namespace_mac
from octavo_scheduler.orders import Forget, Label
from octavo_scheduler.preloads.cache_events import CacheEvicted, NamespaceRotated

PROMPT = list(range(1, 26))
TAG = b"t" * 16


def evict(shop: Any, **given: Any) -> Any:
    effects = shop.feed(CacheEvicted(shop.simulation.now_us, "default", tag=TAG, **given))
    return effects


def rotate(shop: Any) -> None:
    generation = shop.simulation.generation + 1
    mac = namespace_mac(b"secret", "default", generation)
    shop.feed(NamespaceRotated(shop.simulation.now_us, "default", generation, mac, TAG))
    shop.simulation.generation, shop.simulation.root = generation, shop.root(generation)


def test_a_prefix_goes_with_all_that_was_computed_behind_it(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT)
    shop.ask([*PROMPT[:8], 90, 91, 92, 93, 94])
    keys = extend_keys(shop.root(0), PROMPT, 4)
    effects = evict(shop, key=keys[1])
    assert shop.result.found and shop.result.blocks == 6
    labels = [order for _epoch, orders in effects.orders for order in orders if isinstance(order, Label)]
    assert len(labels[0].block_ids) == 6 and labels[0].keys == []
    assert shop.ask(PROMPT).cached_tokens == 4
    evict(shop, key=b"?" * 32)
    assert not shop.result.found


def test_a_worker_that_dials_in_again_does_not_bring_it_back(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT)
    evict(shop)
    shop.steps(2)
    shop.simulation.disconnect(shop.links[0], dead=False)
    shop.wait_us(400_000)
    assert shop.ask(PROMPT).cached_tokens == 0


def test_a_request_that_runs_on_it_finishes_and_leaves_nothing(make_shop: Any) -> None:
    shop = make_shop()
    client = shop.ask(PROMPT, max_tokens=40, run=False)
    shop.steps(6)
    assert client.got[0] and not client.outcome
    evict(shop)
    shop.run()
    assert client.outcome == "finished" and len(client.got[0]) == 40
    assert shop.ask(PROMPT).cached_tokens == 0


def test_a_tenant_s_eviction_leaves_other_tenants_alone(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT)
    other = [70 + number for number in range(17)]
    shop.ask(other)
    shop.cell.caching.note_head(extend_keys(shop.root(0), other, 4)[0], "somebody", 1)
    evict(shop)
    assert shop.ask(PROMPT).cached_tokens == 0 and shop.ask(other).cached_tokens == 16


def test_a_preload_is_evicted_by_name_and_stays_known(make_shop: Any) -> None:
    shop = make_shop()
    preload = shop.put("docs", PROMPT)
    evict(shop, name="docs")
    assert (shop.result.found, shop.result.blocks, preload.state, preload.held_blocks) == (True, 6, "evicted", 0)
    shop.wait_us(7_000_000)
    assert preload.state == "evicted" and shop.ask([*PROMPT, 1]).cached_tokens == 0
    evict(shop, name="nobody")
    assert not shop.result.found


def test_stores_are_told_and_one_that_was_away_is_told_when_it_comes(make_shop: Any) -> None:
    shop = make_shop(store=True)
    shop.ask(PROMPT)
    shop.wait_us(300_000)
    shop.simulation.flush_store("host")
    assert len(shop.store.held) == 6
    shop.simulation.kill_store("host")
    evict(shop)
    assert shop.result.stores == 0 and len(shop.store.held) == 6
    shop.simulation.add_store(shop.store)
    assert shop.store.held == {} and ("host", Forget([], TAG)) in shop.simulation.told
    assert shop.ask(PROMPT).cached_tokens == 0


def test_what_was_on_its_way_to_a_store_is_thrown_out_there_when_it_arrives(make_shop: Any) -> None:
    shop = make_shop(store=True)
    shop.links[0].worker.freeze_transfers = True
    shop.ask(PROMPT, run=False)
    for _ in range(40):
        shop.steps(1)
        if shop.worker.transfers:
            break
    (transfer,) = list(shop.worker.transfers.values())[:1]
    evict(shop, key=extend_keys(shop.root(0), PROMPT, 4)[0])
    shop.links[0].worker.freeze_transfers = False
    shop.run()
    assert transfer.keys and not set(transfer.keys) & set(shop.store.held) and not shop.cell.caching.doomed


def test_a_rotation_makes_everything_unreachable_and_gives_it_back(make_shop: Any) -> None:
    shop = make_shop(store=True)
    shop.ask(PROMPT)
    preload = shop.put("docs", [60, 61, 62, 63, 64, 65])
    old_keys = list(preload.keys)
    shop.wait_us(300_000)
    shop.simulation.flush_store("host")
    used = len(shop.worker.index)
    rotate(shop)
    assert shop.result.blocks == used and shop.result.preloads == 1 and shop.store.held == {}
    assert len(shop.worker.index) == 0 and shop.worker.pool.cached_blocks == 0
    shop.run()
    assert preload.state == "ready" and preload.held_blocks == 1 and preload.keys != old_keys
    assert shop.ask(PROMPT).cached_tokens == 0
    assert shop.ask(PROMPT).cached_tokens == 24
    assert shop.ask([60, 61, 62, 63, 64, 65, 66]).cached_tokens == 4


def test_requests_with_keys_of_the_old_namespace_run_uncached(make_shop: Any) -> None:
    shop = make_shop()
    waiting = shop.ask(PROMPT, run=False, max_tokens=30)
    late = shop.rule()
    root = shop.simulation.root
    rotate(shop)
    shop.simulation.root = root
    stale = shop.ask(PROMPT, cache=late)
    assert waiting.outcome == stale.outcome == "finished"
    assert len(shop.worker.index) == 0, "blocks of the old namespace were indexed after the rotation"


def test_chains_of_unknown_owners_go_with_a_rotation(make_shop: Any) -> None:
    """After a restart of the scheduler a worker's Hello does not say whose its blocks are."""
    shop = make_shop()
    shop.ask(PROMPT)
    shop.cell.caching._heads.clear()
    rotate(shop)
    assert len(shop.worker.index) == 0


@pytest.mark.parametrize("restored", [True])
def test_a_restored_generation_throws_nothing_out(make_shop: Any, restored: bool) -> None:
    shop = make_shop()
    shop.ask(PROMPT)
    effects = shop.feed(NamespaceRotated(shop.simulation.now_us, "default", 3, b"m", TAG, restored))
    assert len(shop.worker.index) and effects.limits_changed and not effects.stores
    assert shop.cell.caching.generations == {"default": 3}
