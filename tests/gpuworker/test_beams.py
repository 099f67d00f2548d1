"""Beams in the engine: they offer, wait and fork; what they share and copy is what they read afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest
from octavo.packing import pack_u32
from octavo.v1 import worker_pb2 as pb
from octavo_gpuworker.orders import ForkOrder, Sampling, StopOrder
from octavo_gpuworker.wire import fill_report, orders_from

from tests.gpuworker.conftest import GREEDY, Rig, alone, prompt_of

BEAM = Sampling(temperature=0.0, logprobs=6, beam=True)


def rows(rig: Rig) -> dict[int, Any]:
    """The last row of each beam."""
    return {row.seq: row for report in rig.reports for row in report.beam_rows}


def start(rig: Rig, length: int = 10, siblings: tuple[int, ...] = (2, 3)) -> list[int]:
    prompt = prompt_of(length)
    rig.admit(1, prompt, sampling=BEAM, max_new=20, siblings=list(siblings))
    rig.run_idle() if hasattr(rig, "run_idle") else [rig.step() for _ in range(length)]
    return prompt


def test_a_beam_offers_its_best_and_waits(rig) -> None:
    prompt = start(rig)
    found = rows(rig)
    assert set(found) == {1, 2, 3} and {tuple(row.tokens) for row in found.values()} == {tuple(found[1].tokens)}
    row = found[1]
    assert row.length == len(prompt) and len(row.tokens) == 6 and row.logprobs == sorted(row.logprobs, reverse=True)
    assert sum(map(math.exp, row.logprobs)) < 1 and not any(report.finishes for report in rig.reports)
    steps = rig.engine.steps
    rig.step()
    assert rig.engine.steps == steps and not rig.engine.has_work and rig.engine.busy


def test_a_fork_goes_on_from_another_s_tokens(make_rig) -> None:
    """Whatever a beam inherits, its next row is that of its tokens computed alone."""
    rig = make_rig()
    prompt = start(rig)
    said = {1: list(prompt), 2: list(prompt), 3: list(prompt)}
    orders = [
        ([1, 2, 3], [0, 1, 2], [0, 1, 2]),  # each its own child
        ([3, 1, 2], [0, 0, 0], [0, 1, 2]),  # all from the third
        ([2, 3, 1], [0, 1, 0], [3, 0, 4]),
        ([1, 2, 3], [0, 1, 1], [0, 0, 1]),
    ]
    for seqs, parents, picks in orders:
        found, before = rows(rig), {seq: list(tokens) for seq, tokens in said.items()}
        tokens = [found[seqs[parent]].tokens[pick] for parent, pick in zip(parents, picks, strict=True)]
        rig.post(ForkOrder(seqs, parents, tokens))
        rig.step()
        for seq, parent, token in zip(seqs, parents, tokens, strict=True):
            said[seq] = [*before[seqs[parent]], token]
        for seq, row in rows(rig).items():
            assert row.length == len(said[seq])
            assert row.tokens[0] == alone(make_rig, said[seq], GREEDY, max_new=1)[0], seq


def test_resumed_beams_branch_off_behind_what_they_have_in_common(make_rig) -> None:
    for split in (9, 11, 12):  # inside of a block, and at its end
        prompt = prompt_of(9)
        common = prompt + [5, 6, 7][: split - 9]
        tails = {seq: common + [20 + seq] * (14 - split) for seq in (1, 2, 3)}
        for budget in (3, 64):
            rig = make_rig(budget=budget)
            order = rig.admit(1, tails[1], prompt_len=len(common), sampling=BEAM, max_new=8, siblings=[2, 3])
            object.__setattr__(order, "split_len", split)
            for sibling in order.siblings:
                object.__setattr__(sibling, "tokens", tails[sibling.seq])
            for _ in range(20):
                rig.step()
            found = rows(rig)
            for seq, tokens in tails.items():
                assert found[seq].length == 14
                assert found[seq].tokens[0] == alone(make_rig, tokens, GREEDY, max_new=1)[0]


def test_a_stop_ends_a_waiting_beam_and_a_fork_passes_over_it(rig) -> None:
    prompt = start(rig)
    rig.post(StopOrder(2, "cancel"), ForkOrder([1, 2, 3], [0, 0, 0], [4, 5, 6]), ForkOrder([1, 9], [0, 0], [7, 7]))
    rig.step()
    assert rig.released[2] == (len(prompt), len(prompt))
    assert {seq: row.length for seq, row in rows(rig).items()} == {1: 11, 2: 10, 3: 11}


def test_what_cannot_be_a_beam_is_refused(rig) -> None:
    rig.admit(1, prompt_of(5), sampling=Sampling(temperature=0.0, beam=True))
    rig.step()
    (finish,) = [finish for report in rig.reports for finish in report.finishes]
    assert finish.reason == "failed" and "a beam offers at least 1" in finish.message


def test_the_wire_knows_forks_and_rows(rig) -> None:
    start(rig)
    message = pb.Report()
    for report in rig.reports:
        fill_report(message, report, 0)
    assert len(message.beam_rows) == 3 and len(message.beam_rows[0].tokens) == 4 * 6
    fork = pb.Fork(seqs=[4, 5], parents=pack_u32([0, 0]), tokens=pack_u32([7, 8]))
    assert list(orders_from(pb.Orders(orders=[pb.Order(fork=fork)]))) == [ForkOrder([4, 5], [0, 0], [7, 8])]
    for changed in ({"parents": pack_u32([0, 2])}, {"tokens": b""}, {"seqs": [1]}):
        with pytest.raises(ValueError, match=r"fork: .* do not fit together"):
            list(orders_from(pb.Orders(orders=[pb.Order(fork=_with(fork, changed))])))


def _with(fork: pb.Fork, changed: dict[str, Any]) -> pb.Fork:
    fields = {"seqs": list(fork.seqs), "parents": fork.parents, "tokens": fork.tokens} | changed
    return pb.Fork(**fields)
