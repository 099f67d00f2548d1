"""The engine and its transfers: sequences that wait for a load, and labels that never claim a stale block."""

from __future__ import annotations

import pytest
from octavo.step import StepBudget
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import AbortOrder, GrantOrder, LabelOrder, LoadOrder, OffloadOrder, StopOrder, TransferDone

from tests.gpuworker.conftest import alone, prompt_of


def donate(rig, prompt):
    """Runs the prompt once and returns its blocks' bytes."""
    order = rig.admit(99, prompt)
    rig.run()
    return [rig.engine.pool.read_block(block) for block in order.blocks]


def loaded(rig, prompt, ok, *, ends_first=False, base=0, siblings=None):
    """Admit that waits for a load of 4 blocks of which `ok` come."""
    payloads = donate(rig, prompt)
    table = rig.take(rig.blocks_for(len(prompt) + 8))
    order = LoadOrder(7, [b"%032d" % i for i in range(4)], table[:4], 1_000_000)
    rig.post(order)
    rig.step()
    assert rig.started == [order]
    if not ends_first:
        rig.admit(1, prompt, blocks=table, wait_xfer=7, wait_base=base, siblings=siblings)
        rig.step()
        assert rig.engine.busy and not rig.engine.has_work, "it waits for its load"
    rig.post(*(LoadedBlock(7, block, payload) for block, payload in zip(table[:ok], payloads, strict=False)))
    rig.post(TransferDone(7, ok))
    reports = rig.step(force=False)
    assert [done.ok_blocks for report in reports for done in report.transfers_done] == [ok]
    if ends_first:
        rig.admit(1, prompt, blocks=table, wait_xfer=7, wait_base=base, siblings=siblings)
    rig.run()


@pytest.mark.parametrize("ends_first", [False, True])
@pytest.mark.parametrize("ok", [0, 1, 4])
def test_a_load_saves_the_prefill_of_what_came(make_rig, ok, ends_first) -> None:
    prompt = prompt_of(19)
    rig = make_rig()
    loaded(rig, prompt, ok, ends_first=ends_first)
    assert rig.tokens[1] == rig.tokens[99]
    assert sum(report.prefill_tokens for report in rig.reports) == 19 + 19 - 4 * ok


def test_a_load_that_covers_everything_leaves_one_token_to_compute(make_rig) -> None:
    prompt = prompt_of(16)
    rig = make_rig()
    loaded(rig, prompt, 4)
    assert rig.tokens[1] == rig.tokens[99]


def test_siblings_wait_for_their_leaders_load(make_rig) -> None:
    prompt = prompt_of(19)
    rig = make_rig()
    loaded(rig, prompt, 2, siblings=[2, 3])
    assert rig.tokens[1] == rig.tokens[2] == rig.tokens[3] == rig.tokens[99]


def test_an_heir_takes_over_the_load(make_rig) -> None:
    prompt = prompt_of(19)
    rig = make_rig()
    payloads = donate(rig, prompt)
    table = rig.take(7)
    rig.post(LoadOrder(7, [b"k" * 32] * 4, table[:4], 0))
    rig.admit(1, prompt, blocks=table, wait_xfer=7, siblings=[2])
    rig.step()
    rig.post(StopOrder(1, "cancel"))
    rig.step()
    assert rig.released == {99: (27, 26), 1: (19, 0)}
    rig.post(*(LoadedBlock(7, block, payload) for block, payload in zip(table[:4], payloads, strict=False)))
    rig.post(TransferDone(7, 4))
    rig.run()
    assert rig.tokens[2] == rig.tokens[99]
    assert rig.reports and sum(report.prefill_tokens for report in rig.reports) == 19 + 3


def test_a_load_outlives_its_sequence(make_rig) -> None:
    """The transfer's hold ends with its own report, whatever became of the sequence."""
    rig = make_rig()
    rig.post(LoadOrder(7, [b"k" * 32], [5], 0))
    rig.admit(1, prompt_of(9), wait_xfer=7)
    rig.step()
    rig.post(StopOrder(1, "cancel"))
    (report,) = rig.step(force=False)
    assert [item.seq for item in report.released] == [1] and not report.transfers_done
    rig.post(TransferDone(7, 0))
    (report,) = rig.step(force=False)
    assert [done.xfer_id for done in report.transfers_done] == [7]


def test_an_abort_is_passed_on_while_its_transfer_runs(make_rig) -> None:
    rig = make_rig()
    aborted: list[int] = []
    rig.engine._abort_transfer = aborted.append
    rig.post(AbortOrder(7), LoadOrder(7, [b"k" * 32], [5], 0), AbortOrder(7))
    rig.step()
    assert aborted == [7], "one for a transfer that is not known changes nothing"
    rig.post(TransferDone(7, 0), AbortOrder(7))
    rig.step()
    assert aborted == [7]


def test_an_admit_that_waits_for_an_unknown_load_prefills(make_rig) -> None:
    rig = make_rig()
    rig.admit(1, prompt_of(9), wait_xfer=1234)
    rig.run()
    assert rig.tokens[1] == alone(make_rig, prompt_of(9))


def test_labels_never_claim_a_block_that_is_written_anew(make_rig) -> None:
    rig = make_rig()
    keys = [b"%032d" % block for block in range(1, 40)]
    rig.post(LabelOrder(list(range(1, 40)), keys, [bytes(32)] * 39))
    rig.step()
    rig.admit(1, prompt_of(9), cached=4, blocks=[1, 2, 3, 4])
    rig.post(GrantOrder(1, [5]), LoadOrder(3, [b"k" * 32] * 2, [6, 7], 0))
    rig.admit(2, prompt_of(9), blocks=[8, 9, 10], max_len=10)
    rig.admit(3, prompt_of(9), cached=8, blocks=[1, 11, 12], max_len=10)
    rig.step()
    blocks, found, _parents = rig.engine.labels.resident()
    assert set(blocks) == {1, 11, *range(13, 40)}
    assert found == [b"%032d" % block for block in blocks]


def test_labels_of_siblings(make_rig) -> None:
    rig = make_rig()
    keys = [b"%032d" % block for block in range(1, 200)]
    rig.post(LabelOrder(list(range(1, 200)), keys, [bytes(32)] * 199))
    rig.step()
    order = rig.admit(1, prompt_of(9), cached=8, siblings=[2])
    rig.step()
    gone = set(range(1, 200)) - set(rig.engine.labels.resident()[0])
    assert gone == {*order.blocks[2:], *order.siblings[0].blocks[2:]}


def test_reset_forgets_sequences_and_keeps_labels(make_rig) -> None:
    rig = make_rig()
    rig.post(LabelOrder([3], [b"x" * 32], [bytes(32)]), OffloadOrder(4, [3], [b"x" * 32]))
    rig.admit(1, prompt_of(9), siblings=[2], blocks=[10, 11, 12, 13, 14])
    rig.step()
    rig.post(StopOrder(1, "cancel"))
    rig.engine.reset()
    assert rig.engine.labels.resident() == ([3], [b"x" * 32], [0])
    assert rig.engine.run_once() is False
    (report,) = rig.engine.take_reports(force=True, live=True)
    assert not (report.released or report.slots or report.live_seqs or report.live_transfers)
    assert {end.reason for end in rig.ends} == {"epoch"}
    rig.post(TransferDone(4, 1), LoadedBlock(4, 3, b"")), rig.step()  # of the old epoch: neither told nor written
    assert not rig.reports[-1].transfers_done


def test_a_live_list_counts_the_orders_that_are_in_it(make_rig) -> None:
    rig = make_rig()
    rig.admit(1, prompt_of(6), siblings=[2, 3])
    rig.post(OffloadOrder(7, [1], [b"k" * 32]))
    rig.engine.run_once()
    (report,) = rig.engine.take_reports(force=True, live=True)
    assert report.orders_applied == 2
    rig.post(TransferDone(7, 1), StopOrder(1, "cancel"))
    rig.engine.run_once()
    (report,) = rig.engine.take_reports(force=True, live=True)
    assert sorted(report.live_seqs) == [2, 3] and report.live_transfers == [] and report.orders_applied == 3
    rig.engine.reset()
    (report,) = rig.engine.take_reports(force=True, live=True)
    assert report.orders_applied == 0, "a new epoch counts from its own first order"


@pytest.mark.parametrize("pace", [3, 16])
@pytest.mark.parametrize("ok", [0, 1, 3])
@pytest.mark.parametrize("load_first", [False, True])
def test_the_head_is_computed_while_a_load_brings_the_tail(make_rig, ok, load_first, pace) -> None:
    """The prompt's first block is computed, the next three are loaded, whichever ends first; then what is left."""
    prompt = prompt_of(19)
    rig = make_rig()
    payloads = donate(rig, prompt)
    rig.engine.budget = StepBudget(pace, pace, 8)
    table = rig.take(rig.blocks_for(len(prompt) + 8))
    rig.post(LoadOrder(7, [b"%032d" % i for i in range(3)], table[1:4], 1_000_000))
    rig.admit(1, prompt, blocks=table, wait_xfer=7, wait_base=4)
    if not load_first:
        for _ in range(4):
            rig.step()
        assert rig.engine.busy and not rig.engine.has_work, "its head is there, and it waits for its load"
        assert rig.reports and sum(report.prefill_tokens for report in rig.reports) == 19 + 4
    rig.post(*(LoadedBlock(7, block, payload) for block, payload in zip(table[1 : 1 + ok], payloads[1:], strict=False)))
    rig.post(TransferDone(7, ok))
    rig.run()
    assert rig.tokens[1] == rig.tokens[99]
    computed = sum(report.prefill_tokens for report in rig.reports)
    assert 0 <= 19 + 19 - 4 * ok - computed <= 1, "a last token alone counts as a decode"


def test_a_load_behind_a_head_leaves_a_token_to_compute(make_rig) -> None:
    prompt = prompt_of(16)
    rig = make_rig()
    payloads = donate(rig, prompt)
    table = rig.take(rig.blocks_for(len(prompt) + 8))
    rig.post(LoadOrder(7, [b"%032d" % i for i in range(3)], table[1:4], 1_000_000))
    rig.admit(1, prompt, blocks=table, wait_xfer=7, wait_base=4)
    rig.post(*(LoadedBlock(7, block, payload) for block, payload in zip(table[1:4], payloads[1:], strict=False)))
    rig.post(TransferDone(7, 3))
    rig.run()
    assert rig.tokens[1] == rig.tokens[99]
