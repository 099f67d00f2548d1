"""Names of rows: parsed, printed back, and refused with the part that is wrong."""

from __future__ import annotations

import pytest
from octavo_gpuworker.bench.row import BadRow, Row, parse_row


@pytest.mark.parametrize(
    "name",
    [
        "prefill/bf16/512", "decode/int8/b16", "decode/bf16/b1/ctx4096", "decode/bf16/b16/sampled",
        "decode/int4/b2/sampled/ctx512/kv-int8", "run/bf16/b16/ctx128", "prefill/int8/64/kv-int8",
    ],
)  # fmt: skip
def test_a_name_survives_the_way_there_and_back(name) -> None:
    assert parse_row(name).name == name


def test_the_parts_are_read() -> None:
    assert parse_row("decode/int8/b16/sampled/ctx4096/kv-int8") == Row("decode", "int8", 16, 4096, True, True)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("encode/bf16/b1", "'encode' is no kind"),
        ("decode/fp16/b1", "weights 'fp16'"),
        ("decode/bf16/16", "'16' is not a batch"),
        ("decode/bf16/b0", "'b0' is not a batch"),
        ("prefill/bf16/b1", "'b1' is not a number of tokens"),
        ("decode/bf16/b1/hot", "'hot' is not one of"),
        ("prefill/bf16/512/ctx128", "'ctx128' is not one of"),
        ("decode", "weights ''"),
    ],
)
def test_a_wrong_part_is_named(name, word) -> None:
    with pytest.raises(BadRow, match=word):
        parse_row(name)
