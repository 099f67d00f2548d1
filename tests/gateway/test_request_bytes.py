"""Bytes that are no message: the refusal names the field, and reading never fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.errors import InvalidRequest
from octavo.v1 import inference_pb2 as pb
from octavo_gateway.request_bytes import bad_text_field, read_message

CHAT = pb.ChatRequest(
    context=pb.RequestContext(request_id="r-mark"),
    messages=[pb.Message(role="user", content="first"), pb.Message(role="c-mark", content="second")],
    options=pb.Options(stop=["one", "s-mark"], max_tokens=5),
    sampling=pb.Sampling(temperature=0.5, logit_bias={3: 1.0}),
)


@pytest.mark.parametrize(
    ("mark", "field"),
    [
        (b"r-mark", "context.request_id"),
        (b"first", "messages[0].content"),
        (b"c-mark", "messages[1].role"),
        (b"second", "messages[1].content"),
        (b"s-mark", "options.stop[1]"),
    ],
)
def test_the_field_that_is_not_utf8_is_named(mark: bytes, field: str) -> None:
    raw = CHAT.SerializeToString().replace(mark, b"\xff" + mark[1:])
    refused = read_message(raw, pb.ChatRequest.FromString, 1000)
    assert isinstance(refused, InvalidRequest)
    assert refused.field == field
    assert refused.message.startswith(f"{field}: invalid UTF-8")


@pytest.mark.parametrize(
    "raw", [b"\x07", b"\x0a\xff", b"\x0a\x05abc", b"\xff" * 40, b"\x0b", CHAT.SerializeToString()[:-1]]
)
def test_what_is_no_message_is_the_bodys_fault(raw: bytes) -> None:
    refused = read_message(raw, pb.ChatRequest.FromString, 1000)
    assert isinstance(refused, InvalidRequest)
    assert refused.field == "body"


def test_a_body_that_is_too_large_is_not_parsed() -> None:
    refused = read_message(b"x" * 11, pb.ChatRequest.FromString, 10)
    assert isinstance(refused, InvalidRequest)
    assert (refused.field, "max_body_bytes" in refused.message) == ("body", True)


def test_a_good_message_is_read() -> None:
    assert read_message(CHAT.SerializeToString(), pb.ChatRequest.FromString, 1000) == CHAT


@given(st.binary(max_size=200))
def test_reading_never_fails(raw: bytes) -> None:
    read_message(raw, pb.ChatRequest.FromString, 150)
    bad_text_field(raw, pb.ChatRequest.DESCRIPTOR)


@given(st.integers(0, 200), st.integers(0, 255))
def test_one_damaged_byte_never_fails(position: int, byte: int) -> None:
    raw = bytearray(CHAT.SerializeToString())
    raw[position % len(raw)] = byte
    read_message(bytes(raw), pb.ChatRequest.FromString, 1000)
