"""The record's bytes: whole or nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from octavo_kvstore.block import Block
from octavo_kvstore.record import HEADER_BYTES, decode_block, decode_header, encode_header
from octavo_kvstore.testing import key_of, make_block


def encode(block: Block, use_number: int = 1) -> bytes:
    return encode_header(block, use_number) + block.payload


@given(st.integers(0, 5000), st.none() | st.integers(0, 9), st.integers(0, 2**64 - 1))
def test_round_trip(size: int, parent: int | None, use_number: int) -> None:
    block = make_block(1, size, parent)
    record = encode(block, use_number)
    assert len(record) == HEADER_BYTES + size
    assert decode_block(block.key, record) == block
    header = decode_header(block.key, record)
    assert header is not None and header.use_number == use_number


@given(st.integers(0, HEADER_BYTES + 500 - 1), st.integers(0, 7))
def test_any_flipped_bit_is_found(offset: int, bit: int) -> None:
    block = make_block(1, 500, parent=2)
    record = bytearray(encode(block))
    record[offset] ^= 1 << bit
    assert decode_block(block.key, bytes(record)) is None


@given(st.integers(0, HEADER_BYTES + 500 - 1))
def test_any_truncation_is_found(length: int) -> None:
    block = make_block(1, 500)
    assert decode_block(block.key, encode(block)[:length]) is None


def test_the_record_of_another_key_is_not_served() -> None:
    block = make_block(1)
    assert decode_block(key_of(2), encode(block)) is None


def test_a_payload_without_its_checksum_is_not_served() -> None:
    block = replace(make_block(1), checksum=5)
    assert decode_block(block.key, encode(block)) is None
