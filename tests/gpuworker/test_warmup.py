"""Warm-up: greedy continuation, the parity gate and a calibration that is sane and leaves nothing behind."""

from __future__ import annotations

import time

import pytest
import torch
from octavo.errors import OctavoError
from octavo_gpuworker.warmup import ArtifactMismatch, calibrate, check_parity, generate

from tests.gpuworker.conftest import prompt_of


def test_generate_is_what_the_engine_gives(make_rig) -> None:
    rig = make_rig()
    rig.admit(1, prompt_of(9), max_new=7)
    rig.run()
    engine = make_rig().engine
    assert generate(engine, prompt_of(9), 7) == rig.tokens[1]
    assert generate(engine, prompt_of(9), 1) == rig.tokens[1][:1]
    assert not engine.busy


def test_a_pool_that_is_too_small_is_named(make_rig) -> None:
    with pytest.raises(OctavoError, match=r"engine\.kv_pool_bytes"):
        generate(make_rig(num_blocks=3).engine, prompt_of(9), 7)


def test_logits_that_are_not_finite_refuse_the_start(make_rig, decoder) -> None:
    class Broken:
        config, device = decoder.config, decoder.device

        @staticmethod
        def forward(inputs, pool):
            return torch.full((len(inputs.sample_rows), decoder.config.vocab_size), float("nan"))

    with pytest.raises(OctavoError, match="cannot run here"):
        generate(make_rig(model=Broken()).engine, [1, 2], 2)


def test_parity_holds_or_names_the_artifact_with_exit_code_3(make_rig) -> None:
    engine = make_rig().engine
    prompt = prompt_of(9)
    greedy = generate(engine, prompt, 6)
    check_parity(engine, prompt, greedy)
    wrong = [*greedy[:4], (greedy[4] + 1) % 97, greedy[5]]
    with pytest.raises(ArtifactMismatch, match="greedy token 4") as caught:
        check_parity(engine, prompt, wrong)
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)


@pytest.mark.parametrize(("prompt", "expected"), [([1, 97], [3]), ([1], [97]), ([], [3])])
def test_parity_ids_of_another_model_are_refused(make_rig, prompt, expected) -> None:
    with pytest.raises(ArtifactMismatch, match=r"model\.parity"):
        check_parity(make_rig().engine, prompt, expected)


class Priced:
    """A decoder whose step time follows the cost model exactly, by a clock of its own."""

    def __init__(self, decoder, clock: list[float]) -> None:
        self.config, self.device, self.clock = decoder.config, decoder.device, clock

    def forward(self, inputs, pool):
        prefill = decode = 0
        for count in (inputs.query_start[1:] - inputs.query_start[:-1]).tolist():
            prefill, decode = (prefill + count, decode) if count > 1 else (prefill, decode + 1)
        self.clock[0] += (
            2000 + 50 * prefill + 300 * decode + 0.5 * int(inputs.context_len.sum()) * bool(decode)
        ) * 1e-6
        return torch.zeros(len(inputs.sample_rows), self.config.vocab_size)


def test_calibration_finds_the_costs(make_rig, decoder, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    found = calibrate(make_rig(model=Priced(decoder, clock), budget=512).engine, 512)
    assert found.prefill_token_us == pytest.approx(50, rel=0.02)
    assert found.context_token_us == pytest.approx(0.5, rel=0.1)
    assert found.decode_seq_us == pytest.approx(300, rel=0.1)
    assert found.fixed_us == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize("blocks", [3, 5, 20, 200])
@pytest.mark.parametrize("max_len", [2, 8, 512])
def test_calibration_fits_any_pool_and_is_never_negative(make_rig, blocks, max_len) -> None:
    rig = make_rig(num_blocks=blocks)
    found = calibrate(rig.engine, min(max_len, (blocks - 1) * 4))
    assert (
        found.fixed_us >= 1 and found.prefill_token_us > 0 and found.decode_seq_us > 0 and found.context_token_us >= 0
    )
    assert not rig.engine.busy and not rig.engine.report_pending
    assert rig.engine.labels.resident() == ([], [], [])
