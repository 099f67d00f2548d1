"""A choice's output: any arrival pattern gives the same text; readers at any byte see exactly the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_gateway.admission import TextRules
from octavo_gateway.choice import ChoiceOutput, ChoiceReader, RawLogprob, TokenGap
from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.tokenizer import Tokenizer, TokenizerParts

PIECES = [bytes([i]) for i in range(256)] + [b"END", "é🌶".encode(), b"", b"ND."]
SPECIAL = 258


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    nothing: Any = None
    parts = TokenizerParts(
        first=nothing, inner=nothing, pieces=[repr(p) for p in PIECES], token_bytes=PIECES, controls=[],
        literals=[],
        special_ids=frozenset({SPECIAL}), bos_id=None, eos_ids=(SPECIAL,), add_bos=False,
    )  # fmt: skip
    return Tokenizer(parts)


IDS = st.lists(st.sampled_from([ord("a"), ord("E"), ord("."), 0xC3, 0xA9, 256, 257, SPECIAL, 259]), max_size=25)
RULES = st.builds(
    TextRules,
    stops=st.lists(st.sampled_from(["END", "ND", ".", "é", "aE"]), max_size=2).map(tuple),
    stop_ids=st.sampled_from([frozenset(), frozenset({SPECIAL}), frozenset({ord(".")})]),
    include_stop_str=st.booleans(),
    min_tokens=st.integers(0, 4),
    skip_special_tokens=st.booleans(),
    echo=st.booleans(),
)


def feed(choice: ChoiceOutput, ids: list[int], chunks: list[int]) -> None:
    at = 0
    for size in [*chunks, len(ids)]:
        if choice.finish_reason is None:
            choice.accept(at, ids[at : at + size])
        at = min(at + size, len(ids))
    choice.finish("length")


@settings(deadline=None, max_examples=200)
@given(ids=IDS, rules=RULES, chunks=st.lists(st.integers(0, 5), max_size=12), pulls=st.integers(1, 4))
def test_any_arrival_gives_the_same_output(
    tokenizer: Tokenizer, ids: list[int], rules: TextRules, chunks: list[int], pulls: int
) -> None:
    whole = ChoiceOutput(0, rules, tokenizer, b"Hi")
    feed(whole, ids, [])
    parts = ChoiceOutput(0, rules, tokenizer, b"Hi")
    reader, deltas, at = ChoiceReader(parts, tokenizer), [], 0
    for i, size in enumerate([*chunks, len(ids)]):
        if parts.finish_reason is None:
            parts.accept(at, ids[at : at + size])
        at = min(at + size, len(ids))
        if i % pulls == 0:
            deltas.append(reader.pull())
    parts.finish("length")
    while (delta := reader.pull()) is not None:
        deltas.append(delta)
    given_out = [delta for delta in deltas if delta is not None]
    text = "".join(delta.text for delta in given_out)
    assert (parts.ids, parts.finish_reason, parts.stop_hit) == (whole.ids, whole.finish_reason, whole.stop_hit)
    assert text == whole.head + "".join(whole.pieces) + whole.tail
    assert [i for delta in given_out for i in delta.token_ids] == whole.ids
    assert given_out[-1].byte_end == len(text.encode()) == whole.total_bytes
    assert given_out[-1].finish_reason == whole.finish_reason


@settings(deadline=None, max_examples=300)
@given(
    ids=IDS,
    rules=RULES,
    asks=st.lists(st.sampled_from(["give", "pull", "look", ""]), max_size=25),
    sizes=st.lists(st.sampled_from([1, 1, 2, 4]), max_size=25),
)
def test_tokens_taken_as_plain_ones_give_the_same_output(
    tokenizer: Tokenizer, ids: list[int], rules: TextRules, asks: list[str], sizes: list[int]
) -> None:
    whole = ChoiceOutput(0, rules, tokenizer, b"Hi")
    feed(whole, ids, [])
    single, columns, text, taken = ChoiceOutput(0, rules, tokenizer, b"Hi"), DeltaColumns(), "", list[int]()
    reader = ChoiceReader(single, tokenizer)

    def pull() -> None:
        nonlocal text
        while (delta := reader.pull()) is not None:
            text += delta.text
            taken.extend(delta.token_ids)
            assert (delta.token_end, delta.byte_end) == (len(taken), len(text.encode()))

    for at, token_id in enumerate(ids):
        if single.finish_reason is None and at == len(single.ids):
            several = sizes[at] if at < len(sizes) else 1
            new = ids[at : at + several]
            taken_plain = single.take_plain(at, token_id) if several == 1 else single.take_plain_run(at, new)
            if not taken_plain:
                single.accept(at, new)
        ask = asks[at] if at < len(asks) else "give"
        if ask == "look":
            assert len(single.pieces) == len(single.ends) == len(single.logprobs) == len(single.ids)
        elif ask == "give" and not reader.give(9, columns):
            for row, piece in zip(columns.rows, columns.texts, strict=True):
                text += piece
                taken.extend(columns.tokens)
                assert row == (9, 0, len(columns.tokens), len(taken), len(text.encode()))
            columns = DeltaColumns()
        elif ask in ("give", "pull"):
            pull()
    single.finish("length")
    pull()
    assert (taken, single.ids, single.pieces) == (whole.ids, whole.ids, whole.pieces)
    assert (single.finish_reason, single.stop_hit, single.tail) == (whole.finish_reason, whole.stop_hit, whole.tail)
    assert text == whole.head + "".join(whole.pieces) + whole.tail and not single.plain


def test_a_token_is_plain_only_where_it_is_text_by_itself(tokenizer: Tokenizer) -> None:
    choice = ChoiceOutput(0, TextRules(stop_ids=frozenset({ord(".")})), tokenizer, b"Hi")
    assert not choice.take_plain(0, ord("a")), "a character of the prompt might be open"
    choice.accept(0, b"a")
    assert choice.take_plain(1, 257) and choice.pieces == ["a", "é🌶"] and choice.ends[-1] == 7
    for other in (0xC3, SPECIAL, 258, ord("."), len(PIECES)):  # half a character, hidden, empty, a stop, out of range
        assert not choice.take_plain(2, other)
    assert not choice.take_plain(1, ord("a")) and not choice.take_plain(3, ord("a"))
    choice.accept(2, [0xC3])
    assert not choice.take_plain(3, ord("a")), "a character is open"
    choice.accept(3, [0xA9])
    assert choice.take_plain(4, ord("b")) and "".join(choice.pieces) == "aé🌶éb"
    shown = ChoiceOutput(0, TextRules(skip_special_tokens=False), tokenizer, b"Hi")
    assert shown.texts is not choice.texts


@settings(deadline=None, max_examples=200)
@given(ids=IDS, rules=RULES, chunks=st.lists(st.integers(0, 5), max_size=12), data=st.data())
def test_a_reader_from_any_byte_sees_exactly_the_rest(
    tokenizer: Tokenizer, ids: list[int], rules: TextRules, chunks: list[int], data: st.DataObject
) -> None:
    choice = ChoiceOutput(0, rules, tokenizer, b"Hi")
    feed(choice, ids, [])
    first, known = ChoiceReader(choice, tokenizer), [(0, 0)]
    while (delta := first.pull()) is not None:
        known.append((delta.byte_end, delta.token_end))
    text = choice.head + "".join(choice.pieces) + choice.tail
    from_byte = data.draw(st.integers(0, choice.total_bytes))
    again = ChoiceOutput(0, rules, tokenizer, b"Hi")
    reader, deltas, at = ChoiceReader(again, tokenizer, from_byte), [], 0
    for size in [*chunks, len(ids)]:
        if again.finish_reason is None:
            again.accept(at, ids[at : at + size])
        at = min(at + size, len(ids))
        while (delta := reader.pull()) is not None:
            deltas.append(delta)
    again.finish("length")
    while (delta := reader.pull()) is not None:
        deltas.append(delta)
    assert "".join(delta.text for delta in deltas) == text.encode()[from_byte:].decode("utf-8", "ignore")
    resent = [i for delta in deltas for i in delta.token_ids]
    assert choice.ids[len(choice.ids) - len(resent) :] == resent
    # Whoever has from_byte bytes from whole deltas misses no token.
    for byte_end, token_end in known:
        if byte_end == from_byte:
            assert len(choice.ids) - len(resent) <= token_end


@settings(deadline=None, max_examples=300)
@given(ids=IDS, rules=RULES, looks=st.lists(st.integers(0, 3), max_size=25), data=st.data())
def test_tokens_that_come_one_by_one_give_the_same_output(
    tokenizer: Tokenizer, ids: list[int], rules: TextRules, looks: list[int], data: st.DataObject
) -> None:
    """The short way of a plain token and its reader's, in turn with the whole one, a repeat now and then."""
    if data.draw(st.booleans()):
        rules = replace(rules, stops=())
    whole = ChoiceOutput(0, rules, tokenizer, [ord("H"), 0xC3])
    feed(whole, ids, [])
    choice = ChoiceOutput(0, rules, tokenizer, [ord("H"), 0xC3])
    reader, text, ends = ChoiceReader(choice, tokenizer), "", []

    def look() -> None:
        nonlocal text
        columns = DeltaColumns()
        if reader.give(1, columns):
            while (delta := reader.pull()) is not None:
                text += delta.text
                ends.append((delta.byte_end, len(text.encode())))
        text += "".join(columns.texts)
        ends.extend((row[4], len(text.encode())) for row in columns.rows)

    at, turn = 0, 0
    while at < len(ids) and choice.finish_reason is None:
        size = data.draw(st.sampled_from([1, 1, 1, 2, 4]))
        start, new = max(0, at - (turn % 5 == 4)), ids[at : at + size]
        taken = start == at and (choice.take_plain(at, new[0]) if size == 1 else choice.take_plain_run(at, new))
        if not taken:
            choice.accept(start, ids[start : at + size])
        at, turn = at + size, turn + 1
        if turn > len(looks) or looks[turn - 1]:
            look()
    choice.finish("length")
    look()
    assert (choice.ids, choice.finish_reason, choice.stop_hit) == (whole.ids, whole.finish_reason, whole.stop_hit)
    assert choice.pieces == whole.pieces and choice.ends == whole.ends
    assert text == whole.head + "".join(whole.pieces) + whole.tail
    assert all(told == given_out for told, given_out in ends)


@settings(deadline=None, max_examples=100)
@given(ids=IDS, stop=st.sampled_from(["END", "ND", ".", "aE"]))
def test_billed_tokens_end_with_the_one_that_completes_the_stop(
    tokenizer: Tokenizer, ids: list[int], stop: str
) -> None:
    choice = ChoiceOutput(0, TextRules(stops=(stop,), skip_special_tokens=True), tokenizer, b"Hi")
    hit = choice.accept(0, ids)
    texts = [tokenizer.decode(ids[: i + 1], skip_special_tokens=True) for i in range(len(ids))]
    expected = next((i + 1 for i, text in enumerate(texts) if stop in text), None)
    assert hit == (expected is not None)
    assert len(choice.ids) == (expected or len(ids))


def test_overlap_is_dropped_and_a_gap_is_refused(tokenizer: Tokenizer) -> None:
    choice = ChoiceOutput(0, TextRules(), tokenizer, b"Hi")
    choice.accept(0, b"abc")
    choice.accept(1, b"bcd")
    choice.accept(0, b"ab")
    assert bytes(choice.ids) == b"abcd"
    with pytest.raises(TokenGap):
        choice.accept(5, b"f")


def test_logprobs_follow_their_tokens(tokenizer: Tokenizer) -> None:
    choice = ChoiceOutput(0, TextRules(), tokenizer, b"Hi")
    choice.accept(0, b"ab", [RawLogprob(97, -0.1), RawLogprob(98, -0.2, (98, 99), (-0.2, -3.0))])
    delta = ChoiceReader(choice, tokenizer).pull()
    assert delta is not None
    assert [(item.text, item.logprob, [top.text for top in item.top]) for item in delta.logprobs] == [
        ("a", -0.1, []),
        ("b", -0.2, ["b", "c"]),
    ]


def test_min_tokens_lets_stops_pass(tokenizer: Tokenizer) -> None:
    rules = TextRules(stops=(".",), stop_ids=frozenset({ord("!")}), min_tokens=3)
    choice = ChoiceOutput(0, rules, tokenizer, b"Hi")
    choice.accept(0, b".!x")
    assert choice.finish_reason is None
    choice.accept(3, b"!")
    assert (choice.finish_reason, choice.stop_hit) == ("stop", str(ord("!")))
    reader = ChoiceReader(choice, tokenizer)
    delta = reader.pull()
    assert delta is not None and delta.text == ".!x" and reader.pull() is None


def test_a_long_replay_comes_in_deltas_that_fit_a_message(tokenizer: Tokenizer) -> None:
    choice = ChoiceOutput(0, TextRules(), tokenizer, b"Hi")
    tops = list(range(20))
    raw = [RawLogprob(257, -1.0, tops, [-1.0] * 20)] * 9000
    choice.accept(0, [257] * 9000, raw)
    choice.finish("length")
    reader = ChoiceReader(choice, tokenizer)
    taken = []
    while (delta := reader.pull()) is not None:
        taken.append(delta)
    assert max(len(delta.token_ids) * 21 for delta in taken) < 2048
    assert sum(len(delta.token_ids) for delta in taken) == sum(len(delta.logprobs) for delta in taken) == 9000
    assert "".join(delta.text for delta in taken).encode() == "é🌶".encode() * 9000
    assert [delta.finish_reason for delta in taken[:-1]] == [None] * (len(taken) - 1)
    assert (taken[-1].finish_reason, taken[-1].byte_end, taken[-1].token_end) == ("length", choice.total_bytes, 9000)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_who_comes_back_misses_no_part_of_a_call(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Wherever its first stream broke, the end of the choice included, which may be told after its last token."""
    text = '{"name": "f", "arguments": {"a": "é"}}'
    ids, rules = list(text.encode()), TextRules(tools=frozenset({"f"}))
    cut = data.draw(st.integers(0, len(ids)))
    choice = ChoiceOutput(0, rules, tokenizer, b"")
    choice.accept(0, ids[:cut])
    first = ChoiceReader(choice, tokenizer).pull()
    choice.accept(cut, ids[cut:])
    choice.finish("length")
    had = first.call_parts if first is not None else ()
    reader, told = ChoiceReader(choice, tokenizer, first.byte_end if first is not None else 0), list(had)
    while (delta := reader.pull()) is not None:
        told += [part for part in delta.call_parts if part.end > (told[-1].end if told else -1)]
    assert "".join(part.arguments for part in told) == '{"a": "é"}'
    assert [part.name for part in told if part.name] == ["f"]
