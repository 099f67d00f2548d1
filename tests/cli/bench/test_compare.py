"""Two runs against each other."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from octavo.figures import BadFigures, Figure, Figures, from_json, read_figures, to_json, write_figures
from octavo_cli.bench.compare import Difference, Unlike, bootstrap, compare, differences, paired
from octavo_cli.bench.work import BadPlan


def figures(values: list[float | None], **changes: Any) -> Figures:
    config: dict[str, Any] = {
        "workload": {"name": "random", "digest": "d"},
        "loop": {"loop": "closed", "concurrency": 4},
        "asking": {"temperature": 0.0},
        "cache": "cold",
        "served": {"model": "m", "version": "1", "settings": {"engine.dtype": "bfloat16"}},
    }
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    rate = Figure("throughput/output", 100.0, "tokens/s")
    return Figures("serve", (rate,), config, {"cpu": "x"}, "abc", {"ttft": values})


def test_a_true_difference_is_found_and_noise_is_not() -> None:
    draw = random.Random(3)
    base: list[float | None] = [draw.uniform(50, 200) for _ in range(60)]
    noisy = [value * draw.uniform(0.9, 1.1) for value in base if value is not None]
    same = compare(figures(base), figures([*noisy])).ratios[0]
    assert same.pairs == 60 and same.verdict == "no difference shown"
    slower = compare(figures(base), figures([value * 1.2 for value in noisy])).ratios[0]
    assert slower.verdict == "B is higher" and slower.ratio == pytest.approx(1.2, rel=0.05)
    assert slower.low is not None and slower.high is not None and slower.low < 1.2 < slower.high


def test_pairs_need_both_and_few_pairs_have_no_interval() -> None:
    ratio = compare(figures([10.0, None, 20.0, 30.0]), figures([20.0, 5.0, None, 60.0])).ratios[0]
    assert (ratio.pairs, ratio.ratio, ratio.low, ratio.verdict) == (2, 2.0, None, "fewer than 5 pairs")
    with pytest.raises(BadPlan, match=r"samples.ttft has 1 values in A and 2 in B"):
        compare(figures([1.0]), figures([1.0, 2.0]))


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = random.Random(5)
    inside = 0
    for number in range(60):
        low, high = bootstrap([draw.lognormvariate(0.0, 0.3) for _ in range(40)], number, 300)
        inside += low <= 1.0 <= high
    assert inside >= 50  # 95% of 60 is 57; five standard deviations below


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"workload": {"digest": "e"}}, "workload.digest"),
        ({"loop": {"loop": "open"}}, "loop.loop"),
        ({"loop": {"concurrency": 5}}, "loop.concurrency"),
        ({"asking": {"temperature": 0.7}}, "asking.temperature"),
        ({"cache": "warm"}, "cache"),
    ],
)
def test_unlike_work_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(BadPlan, match=f"{what} is .* in A and .* in B; only equal workloads"):
        compare(figures([1.0]), figures([1.0], **changes))


def test_the_digest_is_named_only_where_nothing_else_tells_the_workloads_apart() -> None:
    other = figures([1.0], workload={"digest": "e", "requests": 9}, loop={"concurrency": 5})
    with pytest.raises(Unlike) as caught:
        compare(figures([1.0], workload={"requests": 8, "left_out": 0}), other)
    assert caught.value.fields == (
        Difference("workload.requests", 8, 9),
        Difference("workload.left_out", 0, None),
        Difference("loop.concurrency", 4, 5),
    )
    assert str(caught.value).startswith(
        "compare: workload.requests is 8 in A and 9 in B; workload.left_out is 0 in A and not said in B; loop"
    )
    assert caught.value.field == "workload.requests"


def test_unlike_fields_are_in_the_table_and_in_the_json(octavo: Any, tmp_path: Path) -> None:
    made = {
        "a": figures([1.0], workload={"seed": 1, "file": "[red]x"}),
        "b": figures([1.0], workload={"digest": "e", "seed": 2}),
    }
    for name, item in made.items():
        write_figures(tmp_path / f"{name}.json", item)
    words = ("bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    done = octavo(*words, "--json", "-")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ratios"], done.stderr.count("\n")) == (2, [], 1)
    assert {item["what"]: (item["a"], item["b"]) for item in told["unlike"]} == {
        "workload.seed": (1, 2),
        "workload.file": ("[red]x", None),
    }
    done = octavo(*words)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 2 and ["│", "workload.seed", "│", "1", "│", "2", "│"] in rows
    assert ["│", "workload.file", "│", "'[red]x'", "│", "not", "said", "│"] in rows and "digest" not in done.stdout


def test_what_else_differs_is_listed_and_more_than_one_warned_of() -> None:
    one = figures([1.0], served={"settings": {"engine.dtype": "float32"}})
    found = compare(figures([1.0]), one)
    assert [item.what for item in found.differences] == ["served.settings.engine.dtype"] and found.warning == ""
    two = figures([1.0], served={"version": "2", "settings": {"engine.dtype": "float32"}})
    found = compare(figures([1.0]), two)
    assert "2 things differ (served.version, served.settings.engine.dtype)" in found.warning
    silent = figures([1.0])
    silent.config["served"].pop("version")  # type: ignore[attr-defined]
    assert compare(figures([1.0]), silent).differences == ()
    other = Figures("serve", two.results, two.config, {"cpu": "y"}, "def", two.samples)
    whats = [item.what for item in compare(figures([1.0]), other).differences]
    assert whats == ["machine.cpu", "served.version", "served.settings.engine.dtype", "commit"]


def test_files_of_something_else_are_refused() -> None:
    with pytest.raises(BadPlan, match="workload is not in both files"):
        compare(Figures("serve", (), {}), Figures("serve", (), {}))
    with pytest.raises(BadPlan, match="compare two of the same"):
        compare(Figures("serve", (), {}), Figures("sweep", (), {}))


def test_samples_survive_the_form() -> None:
    made = figures([1.0, None])
    assert from_json(to_json(made)).samples == {"ttft": [1.0, None]}
    assert "samples" not in to_json(Figures("x", ()))
    with pytest.raises(ValueError, match=r"samples.ttft: must be a list of finite numbers and nulls"):
        from_json({**to_json(made), "samples": {"ttft": ["fast"]}})


def test_a_file_that_is_not_there_is_an_unusable_argument(octavo: Any) -> None:
    done = octavo("bench", "compare", "no-such-run.json", "b.json")
    assert done.returncode == 2 and "no-such-run.json: no such file; `octavo bench serve --json" in done.stderr


def test_few_pairs_have_no_interval_and_say_so() -> None:
    few = paired("ttft", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 0)
    assert few is not None and few.low is None and few.verdict == "fewer than 5 pairs" and few.ratio == 2.0
    one = paired("ttft", [1.0, None], [2.0, 5.0], 0)
    assert one is not None and one.verdict == "one value each"


@pytest.mark.parametrize("served", [[1], None, "x"])
def test_a_file_that_tells_nothing_of_its_server_differs_in_nothing_known(served: object) -> None:
    told = {"model": "a"}
    one, other = (Figures("serve", (), {"served": item}, machine={}, commit="") for item in (told, served))
    assert differences(one, other) == []


def test_a_file_that_is_no_figures_is_named(tmp_path: Path) -> None:
    whole = {"benchmark": "serve", "machine": {}, "config": {}, "commit": "", "results": []}
    path = tmp_path / "b.json"
    path.write_text("\ufeff" + json.dumps(whole), encoding="utf-8")
    assert read_figures(path).benchmark == "serve"
    nan = {**whole, "samples": {"ttft": [float("nan")]}}
    huge = {**whole, "results": [{"name": "a", "value": 10**400, "unit": "x", "n": 1}]}
    for text in (
        "",
        "[" * 100_000,
        "null",
        json.dumps(nan),
        json.dumps(huge),
        json.dumps({**whole, "samples": {"a": [True]}}),
    ):
        path.write_text(text)
        with pytest.raises(BadFigures, match=r"b\.json"):
            read_figures(path)
    with pytest.raises(BadFigures, match="Is a directory; give a file that `octavo bench` wrote"):
        read_figures(tmp_path)
