"""The figures of the codecs' quality, and what is refused."""

from __future__ import annotations

import math

import pytest
from octavo.rpc.settings import load_settings
from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.codecs import BOUNDS, CODECS, codec_figures, measure_codecs

CODEC = {"ratio": 2.0, "encode_bytes_per_s": 5e8, "decode_bytes_per_s": 1e9, "payloads": 7}


def answer(nll: float, top: list[int], **codec: object) -> dict[str, object]:
    return {"nll": [nll, nll], "top": top, "backend": "native", **codec}


def test_each_codec_is_held_against_the_run_without_one() -> None:
    answers = {"plain": answer(1.0, [1, 2]), "zstd8": answer(math.log(math.e * 1.01), [1, 3], codec=CODEC)}
    figures, notes = codec_figures(answers, 3)
    found = {item.name: item.value for item in figures.results}
    assert found["perplexity_over_plain/codec/zstd8"] == pytest.approx(1.01)
    assert found["top1_agreement/codec/zstd8"] == 0.5 and found["ratio/codec/zstd8"] == 2.0
    assert (found["encode/codec/zstd8"], found["decode/codec/zstd8"]) == (500.0, 1000.0)
    assert notes == [
        "zstd8: perplexity +1.000%, BEYOND 0.5%; same first token 50.00%; 2.00x smaller, encode 500 MB/s, decode 1000 MB/s"
    ]


def test_every_codec_has_a_bound_and_an_unknown_one_is_refused() -> None:
    assert set(BOUNDS) == set(CODECS)
    with pytest.raises(BadPlan, match="--codecs: 'gzip' is unknown"):
        measure_codecs(load_settings([], {}), ["gzip"], 10)
