"""The engine step by step: equal results however a sequence is chunked, batched, stopped, resumed or shared."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest
import torch
from octavo_gpuworker import engine, reporter
from octavo_gpuworker.orders import (
    GrantOrder,
    OffloadOrder,
    PolicyOrder,
    Sampling,
    StopOrder,
    UpdateOrder,
)

from tests.gpuworker.conftest import GREEDY, VOCAB, alone, prompt_of

SAMPLED = Sampling(temperature=1.0, top_p=0.95, top_k=40)
KINDS = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def test_one_sequence_runs_to_its_length(rig) -> None:
    rig.admit(1, prompt_of(10), max_new=5)
    rig.run()
    assert len(rig.tokens[1]) == 5
    assert rig.reasons == {1: "length"}
    assert rig.released == {1: (15, 14)}  # the last token's KV is never written
    assert [end.reason for end in rig.ends] == ["length"]


def test_greedy_is_the_argmax_of_the_decoder(rig, decoder) -> None:
    """An independent oracle: the whole sequence forward again, no paging tricks."""
    from octavo_gpuworker.model.inputs import StepInputs
    from octavo_gpuworker.model.pool import KvPool

    prompt = prompt_of(9)
    rig.admit(1, prompt, max_new=6)
    rig.run()
    for end in range(6):
        ids = prompt + rig.tokens[1][:end]
        pool = KvPool(decoder.config, 2, 64, torch.float32)
        n = len(ids)
        logits = decoder.forward(
            StepInputs(
                torch.tensor(ids), torch.arange(n), torch.arange(n) + 64, torch.tensor([0, n], dtype=torch.int32),
                torch.tensor([n], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32), torch.tensor([n - 1]),
            ),
            pool,
        )  # fmt: skip
        assert int(logits.argmax()) == rig.tokens[1][end]


@KINDS
@pytest.mark.parametrize("budget", [1, 3, 7])
def test_chunked_prefill_equals_whole(make_rig, sampling, budget) -> None:
    prompt = prompt_of(23)
    rig = make_rig(budget=budget)
    rig.admit(1, prompt, sampling=sampling)
    rig.run()
    assert rig.tokens[1] == alone(make_rig, prompt, sampling)
    assert sum(report.prefill_tokens for report in rig.reports) == 23 - (budget == 1)  # one left is a decode


@KINDS
def test_batch_equals_alone(make_rig, sampling) -> None:
    rig = make_rig(budget=16)
    prompts = {seq: prompt_of(3 + 5 * seq, seq) for seq in range(1, 6)}
    for seq, prompt in prompts.items():
        rig.admit(seq, prompt, sampling=sampling, seed=seq, rank=10 - seq)
        rig.step()
    rig.run()
    for seq, prompt in prompts.items():
        assert rig.tokens[seq] == alone(make_rig, prompt, sampling, seed=seq)
    assert rig.engine.mixed_steps > 0


@KINDS
def test_preempt_and_resume_gives_the_same_tokens(make_rig, sampling) -> None:
    prompt = prompt_of(11)
    whole = alone(make_rig, prompt, sampling, max_new=12)
    rig = make_rig()
    rig.admit(1, prompt, sampling=sampling, max_new=12)
    for _ in range(5):
        rig.step()
    rig.post(StopOrder(1, "preempt"))
    rig.step()
    length, computed = rig.released[1]
    assert length == len(prompt) + len(rig.tokens[1]) and computed == length - 1
    rig.admit(2, prompt + rig.tokens[1], prompt_len=len(prompt), sampling=sampling, max_len=len(prompt) + 12)
    rig.run()
    assert rig.tokens[1] + rig.tokens[2] == whole
    assert rig.reasons == {2: "length"}


def test_penalties_survive_a_resume(make_rig) -> None:
    sampling = Sampling(temperature=0.7, frequency_penalty=0.8, presence_penalty=0.3, repetition_penalty=1.3)
    prompt = prompt_of(6)
    whole = alone(make_rig, prompt, sampling, max_new=20)
    assert alone(make_rig, prompt, Sampling(temperature=0.7), max_new=20) != whole
    rig = make_rig()
    rig.admit(2, prompt + whole[:9], prompt_len=6, sampling=sampling, max_len=26)
    rig.run()
    assert rig.tokens[2] == whole[9:]


def test_cached_prefix_is_not_computed_again(make_rig) -> None:
    prompt = prompt_of(22)
    rig = make_rig()
    first = rig.admit(1, prompt)
    rig.run()
    before = sum(report.prefill_tokens for report in rig.reports)
    own = rig.take(rig.blocks_for(30) - 5)
    rig.admit(2, prompt, cached=20, blocks=first.blocks[:5] + own)
    rig.run()
    assert rig.tokens[2] == rig.tokens[1]
    assert sum(report.prefill_tokens for report in rig.reports) - before == 2


# --- finish rules ----------------------------------------------------------------------------------------------------


def test_stop_token_finishes_and_is_named(make_rig) -> None:
    prompt = prompt_of(7)
    free_run = alone(make_rig, prompt, max_new=12)
    token = free_run[4]
    rig = make_rig()
    rig.admit(1, prompt, max_new=12, sampling=dataclasses.replace(GREEDY, stop_ids=frozenset({token})))
    rig.run()
    at = free_run.index(token)
    assert rig.tokens[1] == free_run[: at + 1]
    finish = next(f for report in rig.reports for f in report.finishes)
    assert (finish.reason, finish.stop_token) == ("stop", token)


def test_min_tokens_keeps_stop_ids_away(make_rig) -> None:
    prompt = prompt_of(7)
    free_run = alone(make_rig, prompt, max_new=10)
    rig = make_rig()
    sampling = dataclasses.replace(GREEDY, stop_ids=frozenset(free_run[:3]), min_tokens=5)
    rig.admit(1, prompt, max_new=10, sampling=sampling)
    rig.run()
    assert not set(rig.tokens[1][:5]) & sampling.stop_ids
    assert len(rig.tokens[1]) > 5


def test_no_stop_ids_means_eos_is_a_token_like_any_other(make_rig) -> None:
    """ignore_eos: the scheduler leaves the ids out; the stop token of another run does not end this one."""
    prompt = prompt_of(7)
    assert len(alone(make_rig, prompt, max_new=30)) == 30


def test_stop_after_counts_this_residency_only(make_rig) -> None:
    prompt = prompt_of(5)
    whole = alone(make_rig, prompt, max_new=9)
    rig = make_rig()
    rig.admit(1, prompt + whole[:4], prompt_len=5, max_len=40, stop_after=2)
    rig.run()
    assert rig.tokens[1] == whole[4:6]
    assert rig.reasons == {1: "length"}


# --- grants, stops, updates ------------------------------------------------------------------------------------------


def test_a_sequence_without_a_block_is_starved_and_goes_on_when_granted(make_rig) -> None:
    prompt = prompt_of(7)
    rig = make_rig()
    rig.admit(1, prompt, max_new=9, blocks=rig.take(2))
    rig.step()
    rig.step()
    (report,) = rig.step(force=False)
    assert report.starved == [1] and report.steps == 0
    (again,) = rig.step(force=False)
    assert again.starved == [1], "it is told at every boundary until it is granted"
    rig.post(GrantOrder(1, rig.take(2)))
    rig.run()
    assert rig.tokens[1] == alone(make_rig, prompt, max_new=9)


def test_a_starved_sequence_does_not_stop_the_others(make_rig) -> None:
    rig = make_rig()
    rig.admit(1, prompt_of(7), max_new=9, blocks=rig.take(2))
    rig.admit(2, prompt_of(6, 2), max_new=9)
    for _ in range(12):
        rig.step()
    assert rig.reasons == {2: "length"} and 1 in rig.engine._by_seq


def test_prefill_takes_what_is_granted(make_rig) -> None:
    prompt = prompt_of(14)
    rig = make_rig()
    rig.admit(1, prompt, blocks=rig.take(2))
    rig.step()
    assert rig.computed[1] == 8
    rig.post(GrantOrder(1, rig.take(4)))
    rig.run()
    assert rig.tokens[1] == alone(make_rig, prompt)


def test_nothing_is_written_outside_the_granted_blocks(make_rig) -> None:
    rig = make_rig()
    before = rig.engine.pool.tensor.clone()
    order = rig.admit(1, prompt_of(9), max_new=6)
    rig.run()
    changed = {block for block in range(200) if not torch.equal(before[block], rig.engine.pool.tensor[block])}
    assert changed <= {0, *order.blocks}


def test_orders_for_unknown_sequences_are_no_ops(rig) -> None:
    rig.post(StopOrder(9, "cancel"), GrantOrder(9, [3]), UpdateOrder(9, 1, True))
    (report,) = rig.step()
    assert not (report.released or report.finishes or report.slots)


def test_stop_during_prefill_releases_what_was_computed(make_rig) -> None:
    rig = make_rig(budget=4)
    rig.admit(1, prompt_of(20))
    rig.step()
    rig.step()
    rig.post(StopOrder(1, "cancel"))
    (report,) = rig.step(force=False)
    assert rig.released == {1: (20, 8)}
    assert not report.finishes and report.steps == 0
    assert not rig.engine.busy


def test_paused_sequences_rest_and_go_on(make_rig) -> None:
    prompt = prompt_of(6)
    rig = make_rig()
    rig.admit(1, prompt)
    rig.step()
    rig.post(UpdateOrder(1, 0, True))
    for _ in range(3):
        rig.step()
    assert len(rig.tokens[1]) == 1 and rig.engine.busy and not rig.engine.has_work
    rig.post(UpdateOrder(1, 0, False))
    rig.run()
    assert rig.tokens[1] == alone(make_rig, prompt)


def test_rank_orders_prefill(make_rig) -> None:
    rig = make_rig(budget=8)
    rig.admit(1, prompt_of(8, 1), rank=5)
    rig.admit(2, prompt_of(8, 2), rank=3)
    rig.step()
    assert list(rig.tokens) == [2]
    rig.post(UpdateOrder(1, 0, False))
    rig.step()
    assert len(rig.tokens.get(1, [])) <= 1


def test_step_policy_bounds_a_step(make_rig) -> None:
    rig = make_rig(budget=64)
    rig.post(PolicyOrder(5, 7, 2))
    for seq in (1, 2, 3):
        rig.admit(seq, prompt_of(10, seq))
    (report,) = rig.step()
    assert report.prefill_tokens == 7
    for _ in range(40):
        reports = rig.step()
        for report in reports:
            assert len(report.slots) <= 2
    rig.run()
    assert set(rig.reasons) == {1, 2, 3}


# --- reports ---------------------------------------------------------------------------------------------------------


def test_merged_reports_say_what_single_ones_say(make_rig) -> None:
    """k steps in one report equal k reports: tokens, computed, logprobs, totals."""
    sampling = Sampling(temperature=1.0, logprobs=2)

    def drive(force: bool):
        rig = make_rig(block_tokens=16)
        for seq in (1, 2, 3):
            rig.admit(
                seq, prompt_of(5 + seq, seq), max_new=20 + seq, seed=seq, sampling=sampling if seq != 2 else SAMPLED
            )
        for _ in range(200):
            rig.step(force=force)
            if not rig.engine.busy:
                break
        for report in rig.engine.take_reports(force=True):
            rig.book(report)
        return rig

    single, merged = drive(True), drive(False)
    assert any(report.steps > 1 for report in merged.reports), "nothing was merged, the test shows nothing"
    assert len(merged.reports) < len(single.reports)
    for name in ("tokens", "computed", "logprobs", "reasons", "released"):
        assert getattr(merged, name) == getattr(single, name), name
    for rig in (single, merged):
        assert [item.token for item in rig.logprobs[1]] == rig.tokens[1]
        assert not rig.logprobs[2]
    assert sum(r.steps for r in merged.reports) == sum(r.steps for r in single.reports)
    assert sum(r.steps * r.decode_seqs for r in merged.reports) == sum(r.steps * r.decode_seqs for r in single.reports)
    assert sum(r.prefill_tokens for r in merged.reports) == sum(r.prefill_tokens for r in single.reports)
    assert all(r.step >= r.steps for r in merged.reports)


def test_steps_of_another_composition_get_another_report(make_rig) -> None:
    rig = make_rig(block_tokens=16)
    for seq in (1, 2):
        rig.admit(seq, prompt_of(4, seq), max_new=30)
    rig.step()
    rig.step(force=False)
    rig.post(UpdateOrder(2, 0, True))
    reports = rig.step(force=False) + rig.step()
    assert [(r.decode_seqs, r.steps) for r in reports] == [(2, 1), (1, 2)]


def test_first_token_finish_and_release_leave_at_once(make_rig) -> None:
    rig = make_rig(block_tokens=16)
    rig.admit(1, prompt_of(4), max_new=3)
    (first,) = rig.step(force=False)
    assert [f.seq for f in first.first_tokens] == [1] and first.first_tokens[0].chunks == 1
    assert rig.step(force=False) == []
    (last,) = rig.step(force=False)
    assert last.steps == 2 and last.finishes and last.released


def test_waiting_for_a_running_step_is_the_workers_wait(make_rig) -> None:
    """An Admit that came in while a step ran: the wait counts from then, not from the boundary at which it applies."""
    rig = make_rig(block_tokens=16)
    rig.admit(1, prompt_of(4), max_new=1, received_ns=time.time_ns() - 300_000_000)
    rig.admit(2, prompt_of(4), max_new=1)
    (report,) = rig.step()
    late, prompt = report.first_tokens
    assert late.wait_us >= 300_000 > prompt.wait_us


@pytest.mark.parametrize("jump_s", [3600, -3600, 10 * 365 * 86_400])
def test_a_clock_that_is_set_meanwhile_makes_no_hour_of_a_prefill(make_rig, monkeypatch, jump_s: int) -> None:
    rig = make_rig(block_tokens=16)
    rig.admit(1, prompt_of(4), max_new=1)
    real = time.time_ns
    monkeypatch.setattr(engine.time, "time_ns", lambda: real() + jump_s * 10**9)
    (report,) = rig.step()
    (first,) = report.first_tokens
    assert 0 <= first.wait_us < 120_000_000
    assert 0 <= first.prefill_us < 120_000_000


def test_merging_ends_with_its_time(make_rig, monkeypatch) -> None:
    rig = make_rig(block_tokens=16)
    rig.admit(1, prompt_of(4), max_new=8)
    rig.step()
    assert rig.step(force=False) == []
    monkeypatch.setattr(reporter, "MERGE_NS", 0)
    (report,) = rig.step(force=False)
    assert report.steps == 2


def test_merging_takes_as_long_as_the_settings_say(make_rig) -> None:
    for merge_ns, covered in ((0, [1, 1, 1, 1]), (10**12, [1, 3])):  # the first token, and an end, wait for nothing
        rig = make_rig(block_tokens=16, merge_ns=merge_ns)
        rig.admit(1, prompt_of(4), max_new=4)
        reports = [report for _ in range(4) for report in rig.step(force=False)]
        assert [report.steps for report in reports] == covered
        assert rig.reasons == {1: "length"}


def test_a_table_that_runs_low_is_told_at_once(make_rig) -> None:
    rig = make_rig(block_tokens=16)
    rig.admit(1, prompt_of(12), max_new=40, blocks=rig.take(1))
    rig.step()
    assert rig.step(force=False) == []
    (report,) = rig.step(force=False)
    assert report.computed_len == [14], "two positions are left in the only block"


def test_live_lists_what_is_held(rig) -> None:
    rig.admit(1, prompt_of(6), siblings=[2, 3])
    rig.post(OffloadOrder(7, [1], [b"k" * 32]))
    rig.engine.run_once()
    (report,) = rig.engine.take_reports(force=True, live=True)
    assert sorted(report.live_seqs) == [1, 2, 3] and report.live_transfers == [7] and report.backed_blocks == 0
    rig.engine.hold_back(40)  # from the thread that takes the pool's memory
    assert rig.engine.take_reports(force=True)[0].backed_blocks == 0
    assert rig.engine.take_reports(force=True, live=True)[0].backed_blocks == 40


# --- siblings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [6, 8, 3])
@pytest.mark.parametrize("budget", [64, 3])
def test_siblings_equal_separate_requests(make_rig, length, budget) -> None:
    prompt, sampling = prompt_of(length), Sampling(temperature=1.0, logprobs=1)
    rig = make_rig(budget=budget)
    rig.admit(1, prompt, siblings=[2, 3, 4], sampling=sampling, seed=50)
    rig.run()
    seeds = {1: 50, 2: 52, 3: 53, 4: 54}
    for seq, seed in seeds.items():
        assert rig.tokens[seq] == alone(make_rig, prompt, sampling, seed=seed)
        assert [item.token for item in rig.logprobs[seq]] == rig.tokens[seq]
    assert len({tuple(tokens) for tokens in rig.tokens.values()}) == 4
    assert sum(report.prefill_tokens for report in rig.reports) == length, "the prompt is prefilled once"


def test_siblings_of_a_cached_prompt(make_rig) -> None:
    prompt = prompt_of(10)
    rig = make_rig()
    first = rig.admit(9, prompt)
    rig.run()
    own = rig.take(rig.blocks_for(18) - 2)
    rig.admit(1, prompt, cached=8, blocks=first.blocks[:2] + own, siblings=[2])
    rig.run()
    assert rig.tokens[1] == rig.tokens[2] == rig.tokens[9]


@pytest.mark.parametrize("done", [0, 1, 2])
@pytest.mark.parametrize("reason", ["preempt", "cancel"])
def test_a_leader_that_leaves_before_the_split_hands_over(make_rig, done, reason) -> None:
    """Its first sibling prefills for the others, from the full blocks that they share."""
    prompt = prompt_of(11)
    rig = make_rig(budget=5)
    rig.admit(1, prompt, siblings=[2, 3], sampling=SAMPLED, seed=20)
    for _ in range(done):
        rig.step()
    rig.post(StopOrder(1, reason))
    rig.run()
    assert rig.released[1] == (11, 5 * done)
    for seq in (2, 3):
        assert rig.tokens[seq] == alone(make_rig, prompt, SAMPLED, seed=20 + seq)
    assert 1 not in rig.reasons


def test_a_whole_group_is_stopped_in_any_order(make_rig) -> None:
    for order in ([1, 2, 3], [3, 2, 1], [2, 1, 3]):
        rig = make_rig(budget=5)
        rig.admit(1, prompt_of(11), siblings=[2, 3])
        rig.step()
        rig.post(*(StopOrder(seq, "preempt") for seq in order))
        rig.step()
        assert {seq: length for seq, (length, _) in rig.released.items()} == {1: 11, 2: 11, 3: 11}
        assert not rig.engine.busy


def test_stop_grant_and_update_reach_a_sibling_before_the_split(make_rig) -> None:
    prompt = prompt_of(11)
    rig = make_rig(budget=5)
    short = rig.admit(
        1, prompt, siblings=[2, 3, 4], max_new=1, sampling=SAMPLED, seed=20, max_len=31, blocks=rig.take(3)
    )
    assert len(short.siblings[0].blocks) == 3
    rig.step()
    rig.post(StopOrder(3, "cancel"), GrantOrder(2, rig.take(5)), UpdateOrder(4, 0, True), GrantOrder(1, rig.take(5)))
    for _ in range(30):
        rig.step()
    assert rig.released[3] == (11, 0)
    for seq in (1, 2):
        assert rig.tokens[seq] == alone(make_rig, prompt, SAMPLED, seed=20 + (seq if seq > 1 else 0), max_new=20)
    assert len(rig.tokens[4]) == 1, "paused, it has what the end of the prefill gave"


def test_a_leader_that_ends_with_its_first_token_leaves_its_siblings_alive(make_rig) -> None:
    prompt = prompt_of(9)
    token = alone(make_rig, prompt, SAMPLED, seed=20, max_new=1)[0]
    sampling = dataclasses.replace(SAMPLED, stop_ids=frozenset({token}))
    rig = make_rig()
    rig.admit(1, prompt, siblings=[2, 3], sampling=sampling, seed=20)
    rig.run()
    assert rig.reasons[1] == "stop"
    for seq in (2, 3):
        assert rig.tokens[seq] == alone(make_rig, prompt, sampling, seed=20 + seq)


# --- what must not kill the process ----------------------------------------------------------------------------------


class Faulty:
    """A decoder that fails as told: NaN rows for some seqs' last tokens, or out of memory while the batch is large."""

    def __init__(self, decoder, *, poison: int = -1, most: int = 99, error: BaseException | None = None) -> None:
        self.inner, self.config, self.device = decoder, decoder.config, decoder.device
        self.poison, self.most, self.error = poison, most, error

    def forward(self, inputs, pool):
        if self.error is not None and len(inputs.context_len) > self.most:
            raise self.error
        logits = self.inner.forward(inputs, pool).clone()
        if self.poison >= 0:
            logits[inputs.token_ids[inputs.sample_rows] == self.poison, 3] = float("nan")
        return logits


@KINDS
def test_a_row_that_is_not_finite_fails_alone(make_rig, decoder, sampling) -> None:
    rig = make_rig(model=Faulty(decoder, poison=96))
    good, bad = [5, 7, 9], [5, 7, 96]
    rig.admit(1, good, sampling=dataclasses.replace(sampling, logprobs=1))
    rig.admit(2, bad, sampling=dataclasses.replace(sampling, logprobs=1))
    rig.step()
    assert rig.reasons == {2: "failed"} and rig.released == {2: (3, 3)} and rig.tokens[2] == []
    assert "finite" in rig.reports[-1].finishes[0].message
    for _ in range(3):
        rig.step()
    assert len(rig.tokens[1]) == 4 == len(rig.logprobs[1])


OOM = [
    MemoryError("no"),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", OOM, ids=lambda e: type(e).__name__)
def test_out_of_memory_makes_steps_smaller_and_nothing_is_lost(make_rig, decoder, error) -> None:
    rig = make_rig(model=Faulty(decoder, most=2, error=error))
    for seq in (1, 2, 3, 4):
        rig.admit(seq, prompt_of(5, seq), rank=10 - seq)
    rig.run()
    assert rig.reasons == dict.fromkeys((1, 2, 3, 4), "length")
    assert sum(report.failed_allocations for report in rig.reports) > 0
    assert rig.tokens[4] == alone(make_rig, prompt_of(5, 4)) and rig.tokens[1] == alone(make_rig, prompt_of(5, 1))


def test_any_other_error_of_a_step_is_not_swallowed(make_rig, decoder) -> None:
    rig = make_rig(model=Faulty(decoder, most=0, error=RuntimeError("kernel launch failed")))
    rig.admit(1, prompt_of(5))
    with pytest.raises(RuntimeError, match="kernel launch"):
        rig.engine.run_once()


BAD = {
    "tokens: empty": {"tokens": []},
    "tokens: id 97": {"tokens": [1, VOCAB, 2]},
    "prompt_len: 9": {"prompt_len": 9},
    "max_len: 5": {"max_len": 5},
    "cached_len: 5": {"cached": 5},
    "block_ids: 0": {"blocks": [0, 1, 2]},
    "block_ids: 200": {"blocks": [1, 200, 2]},
    "sampling: id 500": {"sampling": dataclasses.replace(GREEDY, stop_ids=frozenset({500}))},
    "sampling: id 97": {"sampling": dataclasses.replace(GREEDY, bias=((97, 1.0),))},
    "slot: 8": {"slot": 8},
} | {
    f"sampling: {message}": {"sampling": dataclasses.replace(GREEDY, **change)}
    for message, change in {
        "temperature is nan": {"temperature": math.nan},
        "temperature is inf": {"temperature": math.inf},
        "presence_penalty is nan": {"presence_penalty": math.nan},
        "frequency_penalty is -inf": {"frequency_penalty": -math.inf},
        "repetition_penalty is inf": {"repetition_penalty": math.inf},
        "repetition_penalty is -1.0": {"repetition_penalty": -1.0},
        "top_p is -0.5": {"top_p": -0.5},
        "top_p is nan": {"top_p": math.nan},
        "top_k is -1": {"top_k": -1},
        "min_p is nan": {"min_p": math.nan},
        "min_p is 1.5": {"min_p": 1.5},
        "the bias of token 5 is": {"bias": ((4, -math.inf), (5, math.inf))},
    }.items()
}


@pytest.mark.parametrize("message", BAD)
def test_an_impossible_admit_fails_its_sequence_only(make_rig, message) -> None:
    rig = make_rig()
    rig.admit(8, prompt_of(6, 8), max_new=4)
    rig.step()
    change = {"tokens": prompt_of(5), "blocks": rig.take(4), **BAD[message]}
    rig.admit(1, change.pop("tokens"), **change)
    (report,) = [r for r in rig.step() if r.finishes]
    assert [(f.seq, f.reason) for f in report.finishes] == [(1, "failed")]
    assert report.finishes[0].message.startswith(message)
    assert 1 in rig.released
    rig.slots[8] = 8
    rig.run()
    assert rig.reasons[8] == "length"


def test_a_grant_outside_the_pool_fails_its_sequence(make_rig) -> None:
    rig = make_rig()
    rig.admit(1, prompt_of(5), max_new=40)
    rig.post(GrantOrder(1, [10_000]))
    rig.step()
    assert rig.reasons == {1: "failed"} and 1 in rig.released


def test_a_second_admit_of_a_live_seq_is_passed_over(make_rig) -> None:
    rig = make_rig()
    order = rig.admit(1, prompt_of(5))
    rig.post(order)
    rig.run()
    assert rig.reasons == {1: "length"}
