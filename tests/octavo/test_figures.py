"""The form of figures: what is written is read back, what does not have the form is refused by key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.figures import (
    BadFigures,
    Figure,
    Figures,
    figure_of,
    from_json,
    quantile,
    read_figures,
    to_json,
    write_figures,
)

FIGURES = Figures(
    benchmark="serve",
    results=(
        figure_of("ttft_p50/c16", [3.0, 1.0, 2.0], "ms"),
        Figure("decode/bf16/b1", 41.5, "tokens/s", n=3, floor_ratio=0.8),
    ),
    config={"concurrency": 16},
)


def test_written_figures_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "serve.json"
    write_figures(path, FIGURES)
    assert read_figures(path) == FIGURES
    content = json.loads(path.read_text())
    assert set(content) == {"benchmark", "machine", "config", "commit", "results"}
    assert content["results"][0] == {
        "name": "ttft_p50/c16",
        "value": 2.0,
        "unit": "ms",
        "n": 3,
        "spread": [1.5, 2.5],
    }
    assert content["machine"]["cores"] >= 1 and content["machine"]["memory_bytes"] > 2**20
    assert FIGURES.value("decode/bf16/b1") == 41.5
    with pytest.raises(KeyError):
        FIGURES.value("decode/bf16/b2")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda form: form.pop("commit"), "commit"),
        (lambda form: form.update(extra=1), "extra"),
        (lambda form: form.update(results={}), "results"),
        (lambda form: form["results"][0].pop("unit"), "unit"),
        (lambda form: form["results"][0].update(unit=""), "unit"),
        (lambda form: form["results"][0].update(value="fast"), "value"),
        (lambda form: form["results"][0].update(value=True), "value"),
        (lambda form: form["results"][0].update(value=math.nan), "value"),
        (lambda form: form["results"][0].update(n=0), "n"),
        (lambda form: form["results"][0].update(name="TTFT p50"), "name"),
        (lambda form: form["results"][0].update(spread=[2.0, 1.0]), "spread"),
        (lambda form: form["results"][0].update(spread=[2.0]), "spread"),
        (lambda form: form["results"].append(form["results"][0]), "results"),
        (lambda form: form.update(benchmark=""), "benchmark"),
    ],
)
def test_another_form_is_refused_by_key(change: Any, key: str) -> None:
    form = json.loads(json.dumps(to_json(FIGURES)))
    change(form)
    with pytest.raises(BadFigures) as caught:
        from_json(form)
    assert caught.value.field == key


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    for path in (tmp_path / "x.json", tmp_path / "absent.json"):
        with pytest.raises(BadFigures, match=path.name):
            read_figures(path)
    with pytest.raises(BadFigures):
        from_json([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_a_quantile_lies_within_the_samples(samples: list[float], share: float) -> None:
    value = quantile(samples, share)
    assert min(samples) - 1e-6 <= value <= max(samples) + 1e-6
    assert quantile(samples, 0.0) == min(samples)
    assert quantile(samples, 1.0) == max(samples)


def test_no_samples_are_no_figure() -> None:
    with pytest.raises(BadFigures):
        quantile([], 0.5)
