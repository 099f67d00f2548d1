"""Packed columns: what goes in comes out, and a column that repeats is still what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.packing import RepeatingColumn, pack_u32, unpack_u32

COLUMNS = st.lists(st.lists(st.sampled_from([0, 1, 7, 2**32 - 1]), max_size=3), max_size=8)


@given(columns=COLUMNS)
def test_a_repeating_column_is_packed_and_unpacked_as_any(columns: list[list[int]]) -> None:
    there, back = RepeatingColumn(), RepeatingColumn()
    for values in columns:
        data = there.pack(values)
        assert data == pack_u32(values) and back.unpack(data) == unpack_u32(data) == values


def test_a_column_that_cannot_be_read_leaves_the_last_one_in_force() -> None:
    column = RepeatingColumn()
    first = column.unpack(pack_u32([3, 4]))
    with pytest.raises(ValueError, match="multiple"):
        column.unpack(b"abc")
    assert column.unpack(pack_u32([3, 4])) is first
    with pytest.raises(OverflowError):
        column.pack([2**32])
