"""PipelinedEngine against Engine: the same answers while every step is launched before the one before it was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo.step import StepBudget
from octavo_gpuworker import reporter
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.device_sampler import draw_on_device
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.kernels.sampling_ops import sample_torch
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import GrantOrder, Sampling, StopOrder, UpdateOrder
from octavo_gpuworker.pipeline import PipelinedEngine
from octavo_gpuworker.sequence import PENDING

from tests.gpuworker.conftest import GREEDY, Rig, prompt_of, tiny_decoder

RANDOM = Sampling(temperature=0.9, top_p=0.9, logprobs=2)
PENALIZED = Sampling(temperature=0.8, presence_penalty=0.7, repetition_penalty=1.2)


class Recording(TorchBackend):
    """A device on the CPU: steps draw when they are launched, and what was launched or read is noted in order."""

    def __init__(self, decoder: Any, pool: KvPool) -> None:
        super().__init__(decoder, pool, draw=partial(draw_on_device, sample_torch))
        self.events: list[str] = []
        self.pending: list[int] = []
        self.fail_at: set[int] = set()
        self.launches = 0

    def launch(self, batch, before=None):
        self.launches += 1
        if self.launches in self.fail_at:
            raise MemoryError("no memory for this step")
        assert (batch.token_ids >= 0).all(), "a placeholder reached the model"
        self.events.append("launch")
        self.pending.append(0 if batch.pending is None else int((batch.pending >= 0).sum()))
        return super().launch(batch, before)

    def result(self, launched):
        self.events.append("result")
        return super().result(launched)


@pytest.fixture(autouse=True)
def merge_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "MERGE_NS", 10**12)


def rig_of(kind: type[Engine], *, decoder: Any = None, budget: int = 64, num_blocks: int = 200) -> Rig:
    decoder = decoder or tiny_decoder()
    pool = KvPool(decoder.config, num_blocks, 4, torch.float32)
    pool.tensor[1:].fill_(float("nan"))
    started: list[Any] = []
    ends: list[Any] = []
    engine = kind(
        Recording(decoder, pool),
        budget=StepBudget(budget, budget, 32),
        start_transfer=started.append,
        on_end=ends.append,
    )
    free = list(range(1, num_blocks))
    random.Random(0).shuffle(free)
    return Rig(engine, started, ends, free)


def both(scene: Callable[[Rig], None], **options: Any) -> tuple[Rig, Rig]:
    """The scene played on either engine."""
    rigs = rig_of(Engine, **options), rig_of(PipelinedEngine, **options)
    for rig in rigs:
        scene(rig)
        assert not any(PENDING in end.sequence.tokens for end in rig.ends)
        assert all(length >= computed for length, computed in rig.released.values())
    return rigs


def same(plain: Rig, ahead: Rig) -> None:
    assert ahead.tokens == plain.tokens
    assert ahead.reasons == plain.reasons
    assert ahead.logprobs == plain.logprobs
    assert ahead.released.keys() == plain.released.keys()
    assert {seq: length for seq, (length, _) in ahead.released.items()} == {
        seq: length for seq, (length, _) in plain.released.items()
    }


def test_steps_are_launched_before_the_last_one_is_read() -> None:
    _, ahead = both(lambda rig: (rig.admit(1, prompt_of(9), max_new=6), rig.run()))
    events = ahead.engine.backend.events
    assert events == ["launch", "launch", *["result", "launch"] * 4, "result", "result"]
    assert ahead.engine.backend.pending == [0, 1, 1, 1, 1, 1], "every decode took its token from the step before"


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM, PENALIZED], ids=["greedy", "random", "penalized"])
def test_mixed_batches_give_the_same_tokens(sampling) -> None:
    def scene(rig: Rig) -> None:
        rig.admit(1, prompt_of(30), sampling=sampling, max_new=12)
        rig.admit(2, prompt_of(5, 1), sampling=sampling, max_new=3, seed=7)
        rig.step()
        rig.step()
        rig.admit(3, prompt_of(41, 2), sampling=GREEDY, max_new=9)
        rig.run()

    plain, ahead = both(scene, budget=14)
    same(plain, ahead)
    pending = sum(ahead.engine.backend.pending)
    assert pending == 0 if sampling is PENALIZED else pending > 12


def test_a_step_that_counts_tokens_waits_for_them() -> None:
    plain, ahead = both(lambda rig: (rig.admit(1, prompt_of(9), sampling=PENALIZED, max_new=6), rig.run()))
    same(plain, ahead)
    assert ahead.engine.backend.pending == [0] * 6
    assert ahead.engine.backend.events == ["launch", "result"] * 6


def test_a_stop_token_drops_what_was_launched_behind_it() -> None:
    first = rig_of(Engine)
    first.admit(1, prompt_of(9), max_new=12)
    first.run()
    tokens = first.tokens[1]
    at = next(i for i in range(2, 12) if tokens[i] not in tokens[:i])
    ends = Sampling(temperature=0.0, stop_ids=(tokens[at],))

    def scene(rig: Rig) -> None:
        rig.admit(1, prompt_of(9), sampling=ends, max_new=12)
        rig.admit(2, prompt_of(7, 3), max_new=14)
        rig.run()

    plain, ahead = both(scene)
    same(plain, ahead)
    assert ahead.tokens[1] == tokens[: at + 1]
    assert ahead.reasons[1] == "stop"
    assert ahead.released[1] == (9 + at + 1, 9 + at), "what the dropped step wrote is not claimed"


def test_a_release_waits_for_the_last_launched_step() -> None:
    rig = rig_of(PipelinedEngine)
    rig.admit(1, prompt_of(9), max_new=20)
    for _ in range(4):
        rig.step()
    known = len(rig.tokens[1])
    rig.post(StopOrder(1, "preempted"))
    events = rig.engine.backend.events
    assert events.count("launch") == events.count("result") + 1
    rig.step()
    assert events.count("launch") == events.count("result"), "nothing runs any more"
    assert rig.released[1] == (9 + known + 1, 9 + known), "the token that was being drawn counts"
    assert [end.reason for end in rig.ends] == ["preempted"]


def test_siblings_split_behind_a_prefill_that_still_runs() -> None:
    plain, ahead = both(
        lambda rig: (rig.admit(1, prompt_of(13), sampling=RANDOM, siblings=[2, 3], max_new=7), rig.run())
    )
    same(plain, ahead)
    assert ahead.engine.backend.pending[1] == 3, "all three took their first token from the leader's step"


def test_a_row_that_is_not_finite_fails_alone() -> None:
    decoder = tiny_decoder()
    healthy = decoder.forward

    def poisoned(inputs, pool):
        logits = healthy(inputs, pool).clone()
        logits[inputs.positions[inputs.sample_rows] == 11] = float("nan")
        return logits

    decoder.forward = poisoned

    def scene(rig: Rig) -> None:
        rig.admit(1, prompt_of(9), max_new=9)
        rig.admit(2, prompt_of(30, 1), max_new=9)
        rig.run()

    plain, ahead = both(scene, decoder=decoder)
    same(plain, ahead)
    assert ahead.reasons == {1: "failed", 2: "length"}


def test_out_of_memory_while_a_step_runs_costs_a_smaller_step() -> None:
    rig = rig_of(PipelinedEngine)
    rig.admit(1, prompt_of(9), max_new=8, rank=0)
    rig.admit(2, prompt_of(9, 1), max_new=8, rank=1)
    rig.engine.backend.fail_at = {4}
    rig.run()
    assert rig.reasons == {1: "length", 2: "length"}
    assert rig.tokens[1] == alone_tokens(prompt_of(9), 8) and rig.tokens[2] == alone_tokens(prompt_of(9, 1), 8)
    assert sum(report.failed_allocations for report in rig.reports) == 1
    assert rig.engine.backend.events.count("launch") == rig.engine.backend.events.count("result")


def alone_tokens(tokens: list[int], new: int) -> list[int]:
    rig = rig_of(Engine)
    rig.admit(1, tokens, max_new=new)
    rig.run()
    return rig.tokens[1]


def test_a_new_epoch_waits_for_the_launched_step() -> None:
    rig = rig_of(PipelinedEngine)
    rig.admit(1, prompt_of(9), max_new=20)
    rig.step()
    rig.step()
    rig.engine.reset()
    events = rig.engine.backend.events
    assert events.count("launch") == events.count("result")
    assert not rig.engine.busy and not rig.engine.has_work
    rig.admit(2, prompt_of(9), max_new=5)
    rig.run()
    assert rig.tokens[2] == alone_tokens(prompt_of(9), 5)


def test_a_bad_grant_fails_once_whatever_runs() -> None:
    rig = rig_of(PipelinedEngine)
    rig.admit(1, prompt_of(9), max_new=20)
    rig.step()
    rig.step()
    rig.post(GrantOrder(1, [10**6]))
    rig.run()
    assert rig.reasons == {1: "failed"}
    assert list(rig.released) == [1]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_course_of_orders(data) -> None:
    """Admits, stops, pauses and late grants at any boundary: what was let run to its end says the same as alone; every
    sequence is released once, with no more computed than it has tokens."""
    decoder = tiny_decoder()
    rig = rig_of(PipelinedEngine, decoder=decoder, budget=data.draw(st.integers(5, 40)))
    asked: dict[int, tuple[list[int], Sampling, int]] = {}
    stopped: set[int] = set()
    for seq in range(1, data.draw(st.integers(1, 5)) + 1):
        tokens = prompt_of(data.draw(st.integers(1, 25)), seq)
        sampling = data.draw(
            st.sampled_from([GREEDY, RANDOM, PENALIZED, Sampling(temperature=0.0, stop_ids=(5, 9, 40))])
        )
        new = data.draw(st.integers(1, 9))
        asked[seq] = tokens, sampling, new
        need = rig.blocks_for(len(tokens) + new)
        granted = data.draw(st.integers(min(need, rig.blocks_for(len(tokens))), need))
        rig.admit(seq, tokens, sampling=sampling, max_new=new, seed=seq, blocks=rig.take(granted))
        for _ in range(data.draw(st.integers(0, 4))):
            rig.step()
        what = data.draw(st.sampled_from(["", "", "stop", "pause"]))
        target = data.draw(st.integers(1, seq))
        if what == "stop":
            rig.post(StopOrder(target, "preempted"))
            stopped.add(target)
        elif what == "pause":
            rig.post(UpdateOrder(target, 0, True))
            rig.step()
            rig.post(UpdateOrder(target, 0, False))
        if granted < need:
            rig.post(GrantOrder(seq, rig.take(need - granted)))
    rig.run()
    assert set(rig.released) == set(asked)
    assert all(length >= computed for length, computed in rig.released.values())
    for seq, (tokens, sampling, new) in asked.items():
        plain = rig_of(Engine, decoder=decoder)
        plain.admit(1, tokens, sampling=sampling, max_new=new, seed=seq)
        plain.run()
        ours = rig.tokens.get(seq, [])
        assert ours == plain.tokens[1][: len(ours)]
        assert rig.released[seq][0] == len(tokens) + len(ours)
        if seq not in stopped:
            assert ours == plain.tokens[1]
            assert rig.reasons[seq] == plain.reasons[1]
