"""Incremental detokenization equals decoding everything at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_gateway.detokenizer import Detokenizer, unfinished_tail

BYTES = [bytes([i]) for i in range(256)]

HARD_TEXTS = [
    "👨‍👩‍👧‍👦 family",
    "🇩🇪🇫🇷 flags",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "🌶️ é ﷽",
    "plain",
]


def stream(token_bytes: Sequence[bytes], ids: Sequence[int], **options: object) -> tuple[str, list[str]]:
    detokenizer = Detokenizer(token_bytes, **options)  # type: ignore[arg-type]
    deltas = [detokenizer.feed(i) for i in ids]
    deltas.append(detokenizer.flush())
    return "".join(deltas), deltas


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=30), st.data())
def test_deltas_of_any_bytes_equal_the_whole(token_bytes: list[bytes], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(token_bytes) - 1), max_size=60))
    text, _ = stream(token_bytes, ids)
    assert text == b"".join(token_bytes[i] for i in ids).decode("utf-8", "replace")


@given(st.text(max_size=30), st.data())
def test_valid_text_in_any_chunks_never_shows_a_replacement(text: str, data: st.DataObject) -> None:
    raw = text.replace("\ufffd", "").encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=12)) | {0, len(raw)})
    chunks = [raw[a:b] for a, b in itertools.pairwise(cuts)]
    whole, deltas = stream(chunks, range(len(chunks)))
    assert whole == raw.decode()
    assert all("\ufffd" not in delta for delta in deltas)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_byte_by_byte(text: str) -> None:
    whole, deltas = stream(BYTES, text.encode())
    assert whole == text
    assert all(len(delta) <= 1 for delta in deltas)


@pytest.mark.parametrize("split", [(1, 1, 1, 1), (2, 2), (3, 1), (1, 3), (4,)])
def test_a_four_byte_character_in_parts(split: tuple[int, ...]) -> None:
    raw, parts, at = "🌶".encode(), [], 0
    for size in split:
        parts.append(raw[at : at + size])
        at += size
    _, deltas = stream(parts, range(len(parts)))
    assert deltas == [""] * (len(parts) - 1) + ["🌶", ""]


def test_cut_in_the_middle_of_a_character_is_one_replacement_at_the_end() -> None:
    assert stream(BYTES, "ab🌶".encode()[:-1])[1][-1] == "\ufffd"


def test_malformed_bytes_never_stall() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed(0xFF) == "\ufffd"
    assert detokenizer.feed(0xE2) == ""
    assert detokenizer.feed(ord("a")) == "\ufffda"
    assert detokenizer.flush() == ""


def test_prompt_that_ends_inside_a_character_is_continued() -> None:
    raw = "Hello world 🌶".encode()
    for cut in (1, 2, 3):
        whole, deltas = stream(BYTES, raw[-cut:] + b"!", prompt_ids=raw[:-cut])
        assert whole == "🌶!"
        assert deltas[-2] == "!"


def test_a_whole_prompt_leaves_nothing() -> None:
    assert stream(BYTES, b"x", prompt_ids="é".encode())[0] == "x"


def test_skipped_ids_have_no_text_and_do_not_break_a_character() -> None:
    ids = [0xF0, 7, 0x9F, 0x8C, 7, 0xB6]
    assert stream(BYTES, ids, skipped={7})[0] == "🌶"


@given(st.binary(max_size=8))
def test_unfinished_tail_is_a_suffix_that_more_bytes_could_complete(data: bytes) -> None:
    tail = unfinished_tail(data)
    assert data.endswith(tail)
    assert len(tail) < 4
    head = data[: len(data) - len(tail)]
    assert head.decode("utf-8", "replace") + tail.decode("utf-8", "replace") == data.decode("utf-8", "replace")
