"""bench engine and bench quality: figures out of samples, ratios round by round, and notes where a figure beats its floor."""

from __future__ import annotations

import pytest
from octavo.errors import OctavoError
from octavo.manifest import Manifest
from octavo.rpc.settings import Settings, load_settings
from octavo_cli.engine_bench import engine, quality
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.quality import Scored
from octavo_cli.engine_bench.report import engine_figures, floor_notes, ratio_figure, service_figures
from octavo_cli.engine_bench.services import Pass


def sample(tokens: int, steps: int, seconds: float, floor_s: float | None = None) -> dict:
    found = {"tokens": tokens, "steps": steps, "seconds": seconds}
    return found if floor_s is None else {**found, "floor_s": floor_s}


def test_a_decode_row_gives_rate_step_time_and_distance_from_the_floor() -> None:
    rate, step = engine_figures("decode/bf16/b2", [sample(20, 10, s, 0.5) for s in (1.0, 2.0, 0.8)])
    assert (rate.name, rate.value, rate.unit, rate.n, rate.floor_ratio) == ("decode/bf16/b2", 20.0, "tokens/s", 3, 2.0)
    assert (step.name, step.value, step.unit) == ("step/decode/bf16/b2", 100.0, "ms")
    assert len(engine_figures("prefill/bf16/512", [sample(512, 1, 0.2)])) == 1


def test_a_figure_above_its_floor_is_explained() -> None:
    figures = engine_figures("decode/int8/b1", [sample(10, 10, 0.9, 1.0)])
    (note,) = floor_notes(figures)
    assert "decode/int8/b1" in note and "1.11x" in note and "cache" in note
    assert floor_notes(engine_figures("decode/int8/b1", [sample(10, 10, 1.1, 1.0)])) == []


def test_ratios_pair_the_samples_of_one_round() -> None:
    ours = [sample(10, 1, 1.0), sample(10, 1, 4.0), sample(10, 1, 2.0)]
    theirs = [sample(10, 1, 2.0), sample(10, 1, 4.0), sample(10, 1, 8.0)]
    found = ratio_figure("over/llamacpp/decode/bf16/b1", ours, theirs)
    assert found.value == 2.0 and found.spread == (1.5, 3.0)


def test_the_services_are_held_against_the_bare_engine_with_and_without_the_client() -> None:
    passes = [
        Pass(
            tokens=100,
            wall_s=2.0,
            ttft_ms=9.0,
            client_cpu_s=0.8,
            cpu_s={"scheduler": 0.01, "gateway": 0.02},
            steps=50,
            messages=200,
            gaps_ms=(10.0, 12.0, 30.0),
        )
    ]
    figures = {f.name: f.value for f in service_figures("services/bf16/c16", passes, [sample(100, 50, 1.0)], cores=2)}
    assert figures["services/bf16/c16"] == 50.0
    assert figures["services/bf16/c16/over_engine"] == 0.5
    assert figures["services/bf16/c16/over_engine_without_client"] == pytest.approx(100 / 1.6 / 100)
    assert figures["services/bf16/c16/step_cpu/scheduler"] == pytest.approx(200)
    assert figures["services/bf16/c16/message_cpu/gateway"] == pytest.approx(100)
    assert figures["services/bf16/c16/itl_p50"] == 12.0
    assert figures["services/bf16/c16/itl_p99"] == pytest.approx(29.64)


def test_both_ways_of_calling_have_rows_of_their_own() -> None:
    def passed(client_cpu_s: float) -> Pass:
        return Pass(100, 1.0, 9.0, client_cpu_s, {"scheduler": 0.01, "gateway": 0.02}, 50, 200)

    found = engine.Found(passes={("bf16", "multiplexed"): [passed(0.1)], ("bf16", "plain"): [passed(0.3)]})
    found.add("run/bf16/b16/ctx128", sample(200, 50, 1.0))
    figures = {item.name: item.value for item in engine.figures_of(found, [])}
    assert figures["services/bf16/c16/over_engine"] == figures["services/bf16/c16/plain/over_engine"] == 0.5
    assert (figures["services/bf16/c16/cpu/client"], figures["services/bf16/c16/plain/cpu/client"]) == (0.1, 0.3)


def test_quality_compares_with_the_oracle_and_says_what_is_beyond_its_bound() -> None:
    oracle = Scored([1.0, 3.0], [5, 6], "torch")
    found = {
        "oracle": oracle,
        "bf16": Scored([1.0, 3.0], [5, 6], "native"),
        "int8": Scored([1.1, 3.1], [5, 7], "native"),
    }
    figures, notes = quality.figures_of(found, 3)
    assert figures.value("perplexity_over_f32/bf16") == 1 and figures.value("top1_agreement/int8") == 0.5
    assert figures.value("perplexity_over_f32/int8") == pytest.approx(1.10517, rel=1e-4)
    assert "within" in notes[0] and "BEYOND" in notes[1]


def test_an_unknown_form_and_no_rows_are_refused() -> None:
    with pytest.raises(OctavoError, match="'fp4' is unknown; choose from bf16, int8"):
        quality.measure_quality(Settings(Manifest(), {}), ["fp4"], 8)
    with pytest.raises(OctavoError, match="--rows: none given"):
        engine.check_rows([" ", ""])


def test_only_given_settings_travel_to_the_child() -> None:
    settings = load_settings(["--engine.threads", "1"], {"OCTAVO_ENGINE_WEIGHTS": "int8"})
    flags = engine.given_flags(settings)
    assert dict(zip(flags[::2], flags[1::2], strict=True)) == {"--engine.threads": "1", "--engine.weights": "int8"}


def test_a_child_that_refuses_or_dies_is_told_in_its_own_words() -> None:
    with (
        Child.of_module("the bare engine", "octavo_gpuworker.bench", []) as child,
        pytest.raises(OctavoError, match="'walk' is no kind"),
    ):
        child.ask(do="row", row="walk/bf16/b1", steps=4)
    refused = Child.of_module("the bare engine", "octavo_gpuworker.bench", ["--engine.no_such", "1"])
    with refused as child, pytest.raises(OctavoError, match="ended"):
        child.ask(do="row", row="decode/bf16/b1", steps=4)
