"""FetchResponse written and read by hand: the same bytes and fields as the generated code's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.v1 import kvstore_pb2 as pb
from octavo_kvstore.piece_wire import join_piece, split_piece

HEADS = st.one_of(
    st.none(),
    st.builds(
        pb.FetchHead,
        parent=st.binary(max_size=32),
        form=st.sampled_from(["", "raw", "zstd8"]),
        record_bytes=st.integers(0, 2**63),
        record_checksum=st.integers(0, 2**64 - 1),
    ),
)


@given(
    index=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**64 - 1),
    checksum=st.integers(0, 2**64 - 1),
    head=HEADS,
    end=st.booleans(),
    data=st.binary(max_size=400),
)
@settings(max_examples=150, deadline=None)
def test_both_ways_agree_with_the_generated_code(
    index: int, offset: int, checksum: int, head: pb.FetchHead | None, end: bool, data: bytes
) -> None:
    small = pb.FetchResponse(index=index, offset=offset, checksum=checksum, head=head, end=end)
    whole = pb.FetchResponse(index=index, offset=offset, checksum=checksum, head=head, end=end, data=data)
    assert pb.FetchResponse.FromString(join_piece(small, data)) == whole
    for written in (join_piece(small, data), whole.SerializeToString()):
        rest, view = split_piece(written)
        assert rest == small and view == data


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_is_an_error_or_what_the_generated_code_reads(noise: bytes) -> None:
    try:
        rest, data = split_piece(noise)
    except ValueError as error:
        assert str(error).startswith("not a FetchResponse: ")
        return
    read = pb.FetchResponse.FromString(noise)
    assert bytes(data) == read.data or not data
    read.ClearField("data")
    assert rest.index == read.index and rest.end == read.end


@pytest.mark.parametrize("wrong", [b"\x1a\x05abc", b"\x80", b"\x21\x00", b"\x08" + b"\xff" * 11, b"\x1a"])
def test_what_is_cut_or_too_long_is_an_error(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not a FetchResponse"):
        split_piece(wrong)


def test_data_is_a_view_of_the_message() -> None:
    message = join_piece(pb.FetchResponse(index=3), b"x" * 1000)
    assert split_piece(message)[1].obj is message
