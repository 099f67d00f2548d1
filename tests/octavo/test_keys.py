"""Packing and block keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.keys import block_key, choice_seed, extend_keys, namespace_mac, namespace_root, root_of
from octavo.packing import pack_keys, pack_u32, unpack_keys, unpack_u32

ROOT = bytes(32)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_u32_round_trip(values: list[int]) -> None:
    assert unpack_u32(pack_u32(values)) == values


def test_u32_is_little_endian_and_bounded() -> None:
    assert pack_u32([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    with pytest.raises(OverflowError):
        pack_u32([2**32])
    with pytest.raises(ValueError, match="multiple"):
        unpack_u32(b"abc")


def test_keys_round_trip_and_reject_odd_lengths() -> None:
    keys = [bytes([i]) * 32 for i in range(3)]
    assert unpack_keys(pack_keys(keys)) == keys
    with pytest.raises(ValueError, match="32"):
        unpack_keys(b"x" * 33)


@given(st.lists(st.integers(0, 50_000), max_size=100), st.sampled_from([8, 16, 32]))
def test_keys_are_a_chain_of_full_blocks(tokens: list[int], block: int) -> None:
    keys = extend_keys(ROOT, tokens, block)
    assert len(keys) == len(tokens) // block
    parent = ROOT
    for i, key in enumerate(keys):
        assert key == block_key(parent, tokens[i * block : (i + 1) * block])
        parent = key
    half = len(keys) // 2
    assert keys[half:] == extend_keys(keys[half - 1] if half else ROOT, tokens[half * block :], block)


def test_tenant_salt_secret_and_root_all_split_the_namespace() -> None:
    roots = {
        namespace_root(ROOT, b"s", "a"),
        namespace_root(ROOT, b"s", "b"),
        namespace_root(ROOT, b"t", "a"),
        namespace_root(bytes([1]) * 32, b"s", "a"),
        namespace_root(ROOT, b"s", "a", "salt"),
    }
    assert len(roots) == 5


def test_choice_seeds_are_fixed_and_differ() -> None:
    seeds = [choice_seed(42, i) for i in range(64)]
    assert len(set(seeds)) == 64
    assert choice_seed(42, 0) == choice_seed(42, 0) != choice_seed(43, 0)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_rotated_namespace_has_nothing_in_common_with_the_one_before() -> None:
    roots = [namespace_root(ROOT, b"secret", "tenant", "salt", generation) for generation in range(4)]
    assert len(set(roots)) == 4
    assert roots[0] == namespace_root(ROOT, b"secret", "tenant", "salt")
    assert roots[2] == root_of(ROOT, namespace_mac(b"secret", "tenant", 2), "salt")
    assert namespace_mac(b"secret", "tenant", 1) != namespace_mac(b"secret", "other", 1)
