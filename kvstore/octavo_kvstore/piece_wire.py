"""FetchResponse by hand: the same bytes as the generated code's, without its copies of the payload.

A generated message copies a block twice on each side, which costs as much as the stream itself. Here the small fields
are written by the generated code and `data` (field 3) is joined behind them; a reader takes `data` as a view.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from octavo.packing import read_varint
from octavo.v1 import kvstore_pb2 as pb

DATA_TAG = 3 << 3 | 2
_VARINT, _FIXED64, _BYTES = 0, 1, 2


def join_piece(small: pb.FetchResponse, data: bytes | memoryview) -> bytes:
    """The message `small` with `data` in it."""
    return b"".join((small.SerializeToString(), bytes((DATA_TAG,)), _varint(len(data)), data))


def split_piece(message: bytes) -> tuple[pb.FetchResponse, memoryview]:
    """(everything but `data`, `data` as a view of the message). Raises ValueError when it is no FetchResponse."""
    view, at, data = memoryview(message), 0, memoryview(b"")
    kept = []
    try:
        while at < len(view):
            began, tag = at, view[at]
            at += 1
            if tag >= 0x80:
                raise ValueError("a field that nobody knows")
            kind = tag & 7
            if kind == _FIXED64:
                at += 8
            else:
                value, at = read_varint(view, at)
                if kind == _BYTES:
                    if at + value > len(view):
                        raise ValueError("a field is longer than its message")
                    if tag == DATA_TAG:
                        data = view[at : at + value]
                    at += value
                elif kind != _VARINT:
                    raise ValueError("a field of a kind that nobody sends")
            if tag != DATA_TAG:
                kept.append(view[began:at])
        return pb.FetchResponse.FromString(b"".join(kept)), data
    except (IndexError, ValueError, DecodeError) as error:
        raise ValueError(f"not a FetchResponse: {error}") from error


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
