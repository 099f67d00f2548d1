"""Blends among an engine's steps: one piece at a boundary, decodes between them, and whatever ends a sequence meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from octavo.step import StepBudget
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.blending.blend_queue import blend_refusal
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import AdmitOrder, BlendPart, Report, Sampling, SiblingOrder, StopOrder
from octavo_gpuworker.steploop import StepLoop

from tests.gpuworker.blending.test_blend import decoder, passages  # noqa: F401
from tests.gpuworker.blending.test_paged import SIZE, run

GREEDY = Sampling(temperature=0.0)
ONE, TWO = passages(2, 16)
OWN = [5, 6, 7]
PROMPT = [*ONE, *TWO, *OWN]


@pytest.fixture
def engine(decoder: Any) -> Engine:  # noqa: F811
    backend = TorchBackend(decoder, KvPool(decoder.config, 64, SIZE, torch.float32))
    run(backend, ONE, [1, 2])
    run(backend, TWO, [3, 4])
    return Engine(backend, budget=StepBudget(8, 16, 8), start_transfer=lambda order: None)


def admit(seq: int, share: float = 1.0, **given: Any) -> AdmitOrder:
    parts = given.pop("parts", (BlendPart(0, 16, 0, [1, 2]), BlendPart(16, 16, 0, [3, 4])))
    blocks = [10 + 8 * seq + number for number in range(6)]
    return AdmitOrder(
        seq, seq, list(PROMPT), len(PROMPT), 32, blocks, GREEDY, seq, len(PROMPT) + 3,
        blend_parts=parts, blend_share=share, **given,
    )  # fmt: skip


def plain(seq: int) -> AdmitOrder:
    blocks = [10 + 8 * seq + number for number in range(6)]
    return AdmitOrder(seq, seq, list(PROMPT), len(PROMPT), 0, blocks, GREEDY, seq, len(PROMPT) + 3)


def finish(engine: Engine, limit: int = 200) -> dict[int, list[int]]:
    """Every token by slot, once nothing runs."""
    found: dict[int, list[int]] = {}
    for _ in range(limit):
        engine.run_once()
        for report in engine.take_reports(force=True):
            for slot, tokens in zip(report.slots, report.tokens, strict=True):
                found.setdefault(slot, []).extend(tokens)
        if not engine.busy:
            return found
    raise AssertionError("it never ended")


def test_with_everything_computed_again_the_answer_is_the_full_prefill_s(engine: Engine) -> None:
    for order in (admit(1), plain(2)):
        engine.post(order)
    found = finish(engine)
    assert len(found[1]) == 3 and found[1] == found[2]


def test_pieces_of_a_blend_let_decodes_run_between_them(engine: Engine) -> None:
    engine.post(plain(2))
    for _ in range(5):
        engine.run_once()
    engine.take_reports(force=True)
    engine.post(admit(1))
    boundaries = 0
    while (seq := engine._by_seq.get(1)) is None or seq.blending:
        engine.run_once()
        boundaries += 1
        assert boundaries < 50
    assert boundaries >= 4, "a step holds 8 tokens beside others"


def test_its_pieces_are_booked_as_prefill(engine: Engine) -> None:
    engine.post(admit(1, share=0.0))
    reports = []
    while engine.busy or not reports:
        engine.run_once()
        reports += engine.take_reports(force=True)
    worth = sum(report.prefill_tokens for report in reports)
    assert 32 // 2 <= worth - len(OWN) < 32, "two layers of four over 32 tokens, and nothing again"
    assert all(length >= 32 for report in reports for length in report.computed_len)
    (first,) = [item for report in reports for item in report.first_tokens]
    assert first.chunks >= 2


def test_what_is_reported_does_not_wait_for_the_end_of_a_blend(engine: Engine) -> None:
    """Its pieces are no steps, and nothing else may step meanwhile."""
    said: list[str] = []
    ended = threading.Event()
    run_piece = engine._blends.run

    def noted(budget: int) -> int:
        said.append("piece")
        return run_piece(budget)

    def emit(report: Report) -> None:
        said.append("report")
        if report.released:
            ended.set()

    engine._blends.run = noted  # type: ignore[method-assign]
    loop = StepLoop(engine, emit, lambda error: None)
    loop.post([admit(1)])
    loop.start()
    assert ended.wait(10)
    loop.stop()
    last = len(said) - 1 - said[::-1].index("piece")
    assert said[said.index("piece") : last].count("report") >= 2


def test_siblings_take_what_the_leader_blended(engine: Engine) -> None:
    order = admit(1, siblings=(SiblingOrder(3, 3, 9, [18, 19, 20, 21, 50, 51]),))
    engine.post(order)
    found = finish(engine)
    assert found[1] == found[3] and len(found[3]) == 3


def test_a_leader_that_leaves_in_the_middle_leaves_an_exact_prefill(engine: Engine) -> None:
    engine.post(admit(1, share=0.0, siblings=(SiblingOrder(3, 3, 9, [18, 19, 20, 21, 50, 51]),)))
    engine.run_once()
    assert engine._by_seq[1].blending
    engine.post(StopOrder(1, "cancel"))
    engine.post(plain(2))
    found = finish(engine)
    assert found[3] == found[2]


def test_what_cannot_be_blended_fails_alone(engine: Engine) -> None:
    wrong = {
        "within the 32": (BlendPart(16, 17, 0, [3, 4, 5]),),
        "beyond the 2 blocks": (BlendPart(0, 16, 1, [1, 2]),),
        "outside": (BlendPart(0, 8, 0, [0]),),
    }
    for number, (said, parts) in enumerate(wrong.items(), start=1):
        engine.post(admit(number, parts=parts))
        engine.run_once()
        (report,) = engine.take_reports(force=True)
        (end,) = report.finishes
        assert end.reason == "failed" and said in end.message
    assert not engine.busy


def test_an_fp8_pool_is_refused_and_an_int8_one_is_not(decoder: Any) -> None:  # noqa: F811
    backend = TorchBackend(decoder, KvPool(decoder.config, 8, SIZE, torch.float8_e4m3fn))
    assert "fp8" in blend_refusal(backend)
    assert not blend_refusal(TorchBackend(decoder, KvPool(decoder.config, 8, SIZE, torch.int8)))
