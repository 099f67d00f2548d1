"""Trace formats, and what is said about a line that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from octavo_cli.bench.arrivals import OpenLoop
from octavo_cli.bench.trace_writer import TraceShape, statistics_of, write_trace
from octavo_cli.bench.traces import BadTrace, read_trace
from octavo_cli.bench.work import BadPlan, Workload, draw_tokens

MOONCAKE = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 2353, 2354]}\n'
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,32,0,32,API log\n"
SHARE = json.dumps(
    [
        {"id": "x", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "a" * 40}]},
        {"id": "y", "conversations": [{"from": "gpt", "value": "continued"}]},
        {
            "id": "z",
            "conversations": [
                {"from": "human", "value": "one"},
                {"from": "gpt", "value": "b"},
                {"from": "human", "value": "two"},
            ],
        },
    ]
)


def read(tmp_path: Path, text: str, kind: str = "", name: str = "trace.txt") -> Workload:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_trace(path, kind)


def test_mooncake_blocks_are_shared_by_hash(tmp_path: Path) -> None:
    second = '{"timestamp": 27500, "input_length": 600, "output_length": 5, "hash_ids": [46, 99]}\n'
    made = read(tmp_path, MOONCAKE + "\n" + second)
    first, other = (draw_tokens(session.turns[0].pieces, 49152) for session in made.sessions)
    assert (len(first), len(other)) == (6955, 600) and first[:512] == other[:512] and first[512:600] != other[512:]
    assert [session.at_s for session in made.sessions] == [27.482, 27.5]
    assert [session.turns[0].max_tokens for session in made.sessions] == [52, 5]


def test_azure_burstgpt_and_sharegpt(tmp_path: Path) -> None:
    made = read(tmp_path, AZURE)
    first, second = made.sessions
    assert (first.turns[0].new_tokens, first.turns[0].max_tokens) == (4808, 10)
    assert (
        first.at_s is not None
        and second.at_s is not None
        and second.at_s - first.at_s == pytest.approx(0.052, abs=1e-5)
    )
    made = read(tmp_path, BURST)
    assert [(s.at_s, s.turns[0].new_tokens, s.turns[0].max_tokens) for s in made.sessions] == [
        (5, 472, 18),
        (45, 32, 1),
    ]
    made = read(tmp_path, SHARE, name="share.json")
    assert [session.name for session in made.sessions] == ["g0", "g2"]
    assert [(turn.text, turn.max_tokens) for turn in made.sessions[1].turns] == [("one", 1), ("two", 128)]
    assert made.sessions[0].turns[0].max_tokens == 10


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (MOONCAKE + "{broken\n", "", "trace.txt:2: is not JSON"),
        (MOONCAKE + "[1]\n", "", "trace.txt:2: must be an object"),
        (MOONCAKE.replace("6955", '"many"'), "", "trace.txt:1: input_length: 'many' must be a number"),
        (MOONCAKE.replace("6955", "6955.5"), "", "trace.txt:1: input_length: 6955.5 must be a whole number of 1"),
        (MOONCAKE.replace("52,", "0,", 1), "", "trace.txt:1: output_length: 0 must be a whole number of 1"),
        (MOONCAKE.replace('"timestamp": 27482, ', ""), "mooncake", "trace.txt:1: timestamp: None must be a number"),
        (MOONCAKE.replace("27482", "NaN"), "", "trace.txt:1: timestamp: nan must be a number"),
        (MOONCAKE.replace("46,", "true,"), "", "trace.txt:1: hash_ids: must be a list of whole numbers"),
        (
            MOONCAKE.replace(", 2354", ""),
            "",
            "trace.txt:1: hash_ids: 13 of them for input_length 6955; 14 blocks of 512",
        ),
        (AZURE.replace("ContextTokens", "Context"), "azure", "trace.txt:1: column ContextTokens is missing"),
        (AZURE.replace(",8\n", ",-8\n"), "", "trace.txt:3: GeneratedTokens: '-8' must be"),
        (AZURE.replace(",3180,8", ""), "", "trace.txt:3: is cut short"),
        (AZURE.replace("2023-11-16 18:17:04", "yesterday"), "", "trace.txt:3: TIMESTAMP: 'yesterday"),
        (BURST.replace("472", "lots"), "", "trace.txt:2: Request tokens: 'lots' must be"),
        (
            SHARE.replace('"human", "value": "one"', '"human", "value": 1'),
            "",
            r"\[2\].conversations\[0\].value: must be text",
        ),
        (
            SHARE.replace('"gpt", "value": "b"', '"dog", "value": "b"'),
            "",
            r"\[2\].conversations\[1\].from: 'dog' is no speaker",
        ),
        (SHARE[:-1], "", "is not JSON"),
        ('[{"id": 1}]', "", r"\[0\].conversations: must be a list"),
        ("hello\n", "", "trace.txt:1: the format is not recognised; name it with --trace-format"),
        ("", "mooncake", "holds no request"),
        (MOONCAKE.replace("27482", "1" + "0" * 400), "mooncake", "trace.txt:1: timestamp: 1000.*must be a number"),
        ("[" * 100_000, "sharegpt", "is not JSON"),
        ('{"a":' * 100_000, "mooncake", "trace.txt:1: is not JSON"),
        (AZURE.split("\n")[0] + "\nnan,10,5\n", "", "trace.txt:2: TIMESTAMP: nan must be a number"),
        (AZURE.split("\n")[0] + "\n-5,10,5\n", "", "trace.txt:2: TIMESTAMP: -5.0 must be a number"),
        (AZURE.split("\n")[0] + '\n"' + "x" * 200_000 + '",10,5\n', "", "trace.txt:2: is no row: field larger"),
        (SHARE.replace("hi", "\\ud800 hi"), "", r"\[0\].conversations\[0\].value: holds half a surrogate pair"),
        (MOONCAKE, "moon", "--trace-format: 'moon' is unknown; use mooncake, azure, burstgpt, sharegpt"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, kind: str, said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        read(tmp_path, text, kind)


@pytest.mark.parametrize("hit_share", [0.0, 0.4, 0.8])
def test_a_written_trace_has_its_statistics(tmp_path: Path, hit_share: float) -> None:
    shape = TraceShape(3000, 4000.0, 0.8, 120.0, 0.5, hit_share, 8, OpenLoop("gamma", 20.0, burstiness=3.0))
    lines = list(write_trace(shape))
    found = statistics_of(iter(lines))
    assert found.requests == 3000
    assert found.input_mean == pytest.approx(4000, rel=0.06) and found.output_mean == pytest.approx(120, rel=0.06)
    assert found.hit_share == pytest.approx(hit_share, abs=0.02)
    assert found.duration_s == pytest.approx(150.0, rel=0.3)
    made = read(tmp_path, "".join(lines))
    assert len(made.sessions) == 3000 and lines == list(write_trace(shape))


def test_a_trace_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(BadPlan, match=r"--hit-share: 1.5 must be at least 0 and at most 1"):
        list(write_trace(TraceShape(hit_share=1.5)))
    with pytest.raises(BadPlan, match="--families: 0 must be at least 1"):
        list(write_trace(TraceShape(families=0)))


def test_conversations_of_one_id_are_different_sessions(tmp_path: Path) -> None:
    twice = json.dumps([{"id": "same", "conversations": [{"from": "human", "value": "hi"}]}] * 3)
    made = read(tmp_path, twice, name="share.json")
    assert len({session.name for session in made.sessions}) == 3  # or two of three would count as repeats


@pytest.mark.parametrize(
    ("field", "value"),
    [("input_mean", float("nan")), ("input_mean", float("inf")), ("output_mean", 1e300), ("output_spread", 1e200),
     ("input_spread", float("nan")), ("hit_share", float("nan")), ("arrivals", OpenLoop("poisson", float("inf")))],
)  # fmt: skip
def test_a_trace_of_no_finite_shape_is_refused(field: str, value: object) -> None:
    option = "rate" if field == "arrivals" else field.replace("_", "-")
    with pytest.raises(BadPlan, match=f"--{option}: .* must be"):
        list(write_trace(TraceShape(**{field: value})))
