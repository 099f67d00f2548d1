"""The shared tier against a real server: killed, frozen, full, or full of what others put; every time a miss within the limit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo_kvstore.block import BlockMeta
from octavo_kvstore.encryption import Vault, fresh_nonce
from octavo_kvstore.testing import LAYOUT, key_of, make_block
from octavo_kvstore.testing_valkey import ValkeyServer, find_program
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.valkey import PREFIX, SALT_CACHE_S, ValkeyKeyring, ValkeyTier, connect

pytestmark = pytest.mark.skipif(
    not find_program() and not os.environ.get("CI"), reason="needs valkey-server or redis-server"
)
TIMEOUT_S = 0.3
CAPACITY = 8 * 2**20


class World:
    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self.now_s = 1000.0
        self.tiers: list[ValkeyTier] = []

    def tier(self, capacity: int = CAPACITY) -> ValkeyTier:
        """Another host's view of the server; it looks again only when it is told to."""
        tier = ValkeyTier(
            connect(self.server.url, TIMEOUT_S),
            capacity,
            clock_s=lambda: self.now_s,
            refresh_s=3600.0,
            steady_s=lambda: self.now_s,
        )
        self.tiers.append(tier)
        return tier


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    running = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    yield running
    running.kill()


@pytest.fixture
def world(server: ValkeyServer) -> Iterator[World]:
    made = World(server)
    connect(server.url, 5.0).flushall()
    yield made
    for tier in made.tiers:
        tier.close()


def test_what_one_host_puts_another_one_gets(world: World) -> None:
    one, two = world.tier(), world.tier()
    block = make_block(1, 100_000, parent=0, meta=BlockMeta(b"n" * 16, priority=3))
    assert one.put(block)[0] is Put.STORED
    assert two.get(block.key, LAYOUT) is None, "not known yet"
    heard: list[bytes] = []
    two.on_lost = heard.extend
    two.refresh_now()
    assert heard == [block.key] and two.get(block.key, LAYOUT) == block
    assert two.of_namespace(b"n" * 16) == [block.key] and two.parent_of(block.key) == key_of(0)
    assert one.delete(block.key)
    assert two.get(block.key, LAYOUT) is None and not two.contains(block.key), "gone for everyone"


def test_a_fresh_host_finds_what_is_there(world: World) -> None:
    one = world.tier()
    one.put_many([make_block(number) for number in range(50)])
    assert set(world.tier().keys()) == {key_of(number) for number in range(50)}


def test_a_killed_server_is_a_miss_and_found_again(world: World) -> None:
    tier, lost = world.tier(), list[bytes]()
    tier.on_lost = lost.extend
    tier.put(make_block(1))
    world.server.kill()
    began_s = time.monotonic()
    assert tier.get(key_of(1), LAYOUT) is None and lost == [key_of(1)]
    assert tier.put(make_block(2))[0] is Put.REFUSED and tier.keys() == []
    assert time.monotonic() - began_s < 3
    world.server.start()
    assert tier.put(make_block(2))[0] is Put.REFUSED, "left alone for a while"
    world.now_s += 1.0
    tier.refresh_now()
    assert tier.put(make_block(2))[0] is Put.STORED and tier.get(key_of(2), LAYOUT) == make_block(2)


def test_a_frozen_server_costs_its_time_limit_once(world: World) -> None:
    tier = world.tier()
    tier.put_many([make_block(number) for number in range(3)])
    world.server.freeze()
    try:
        began_s = time.monotonic()
        assert [tier.get(key_of(number), LAYOUT) for number in range(3)] == [None] * 3
        assert tier.put(make_block(9))[0] is Put.REFUSED
        assert TIMEOUT_S * 0.5 < time.monotonic() - began_s < TIMEOUT_S * 10, "one limit, not four"
        assert tier.errors == 1
    finally:
        world.server.thaw()
    world.now_s += 1.0
    tier.refresh_now()
    assert tier.get(key_of(1), LAYOUT) == make_block(1)


def test_pauses_grow(world: World) -> None:
    tier = world.tier()
    world.server.kill()
    try:
        for pause_s in (0.5, 1.0, 2.0):
            tier.refresh_now()
            errors = tier.errors
            world.now_s += pause_s - 0.01
            tier.refresh_now()
            assert tier.errors == errors
            world.now_s += 0.02
        assert tier.errors == 3
    finally:
        world.server.start()


def test_a_full_server_refuses_and_what_is_there_stays_readable(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    world = World(server)
    tier = world.tier(64 * 2**20)
    outcomes = []
    for number in range(60):
        outcomes.append(tier.put(make_block(number, 200_000))[0])
        world.now_s += 2.0
    assert outcomes[0] is Put.STORED and outcomes[-1] is Put.REFUSED
    for number, outcome in enumerate(outcomes):
        found = tier.get(key_of(number), LAYOUT)
        assert (found == make_block(number, 200_000)) if outcome is Put.STORED else found is None
    assert tier.errors == 0
    tier.close()
    server.kill()


def test_what_the_server_evicts_is_a_miss(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
    tier = World(server).tier(64 * 2**20)
    for number in range(60):
        tier.put(make_block(number, 200_000))
    found = [tier.get(key_of(number), LAYOUT) for number in range(60)]
    assert any(found) and not all(found)
    assert all(block in (None, make_block(number, 200_000)) for number, block in enumerate(found))
    assert len(tier.keys()) == sum(block is not None for block in found) and tier.stats().corrupt == 0
    tier.close()
    server.kill()


def test_a_damaged_or_foreign_value_is_never_served(world: World) -> None:
    tier, client = world.tier(), connect(world.server.url, 5.0)
    tier.put_many([make_block(1), make_block(2)])
    client.set(PREFIX + key_of(1), b"nonsense")
    client.set(PREFIX + key_of(2), client.get(PREFIX + key_of(1)))
    client.set(PREFIX + b"short", b"x")
    client.set(PREFIX + key_of(3), b"y" * 500)
    tier.refresh_now()
    assert [tier.get(key_of(number), LAYOUT) for number in (1, 2, 3)] == [None] * 3
    assert tier.stats().corrupt == 2 and tier.keys() == []


def test_a_delete_while_the_server_is_away_is_made_up_for(world: World) -> None:
    tier = world.tier()
    tier.put(make_block(1))
    world.server.freeze()
    try:
        assert tier.delete(key_of(1))
    finally:
        world.server.thaw()
    world.now_s += 1.0
    tier.refresh_now()
    assert not tier.contains(key_of(1))
    assert connect(world.server.url, 5.0).exists(PREFIX + key_of(1)) == 0


def test_hosts_share_one_key_per_namespace_and_erasing_it_reaches_all(world: World) -> None:
    now_s = [0.0]
    one, two = (Vault(b"secret", ValkeyKeyring(connect(world.server.url, 5.0), lambda: now_s[0])) for _ in range(2))
    nonce = fresh_nonce()
    sealed = one.seal(b"n" * 16, nonce, b"", b"plain")
    assert sealed is not None and two.open(b"n" * 16, nonce, b"", sealed) == b"plain"
    assert one.erase(b"n" * 16)
    assert one.open(b"n" * 16, nonce, b"", sealed) is None
    now_s[0] += SALT_CACHE_S + 0.1
    assert two.open(b"n" * 16, nonce, b"", sealed) is None
    world.server.freeze()
    try:
        slow = Vault(b"secret", ValkeyKeyring(connect(world.server.url, TIMEOUT_S)))
        assert slow.seal(b"n" * 16, nonce, b"", b"plain") is None
        with pytest.raises(OctavoError, match="not destroyed"):
            slow.erase(b"n" * 16)
    finally:
        world.server.thaw()


@pytest.mark.parametrize("url", ["", "localhost", "http://localhost:1"])
def test_an_address_that_is_none_names_the_setting(url: str) -> None:
    with pytest.raises(OctavoError, match=r"cache\.valkey_url"):
        connect(url, 1.0)


def test_what_others_left_under_our_names_costs_nobody_else_s_blocks(world: World) -> None:
    one = world.tier()
    block = make_block(1, 50_000)
    assert one.put(block)[0] is Put.STORED
    raw = connect(world.server.url, 5.0)
    raw.lpush(PREFIX + key_of(2), b"no string")
    raw.hset(PREFIX + key_of(3), b"a", b"b")
    raw.set(PREFIX + key_of(4), b"short")
    raw.set(PREFIX + b"no key", b"x" * 1000)
    two = world.tier()
    assert two.keys() == [block.key] and two.get(block.key, LAYOUT) == block and two.errors == 0
    one.refresh_now()
    assert one.get(block.key, LAYOUT) == block and one.errors == 0
    assert two.put(make_block(2, 50_000))[0] is Put.STORED, "a name of ours is ours to write"
    assert two.get(key_of(2), LAYOUT) == make_block(2, 50_000)
