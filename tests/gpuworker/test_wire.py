"""The conversion between messages and the engine's nouns: every field arrives, defaults mean off."""

from __future__ import annotations

import time

import pytest
from octavo.packing import pack_keys, pack_u32, unpack_u32
from octavo.v1 import worker_pb2 as pb
from octavo.v1.kvstore_pb2 import BlockSource
from octavo_gpuworker.orders import (
    AbortOrder,
    AdmitOrder,
    BlendPart,
    FirstToken,
    GrantOrder,
    LabelOrder,
    LoadOrder,
    LoadSource,
    OffloadOrder,
    PassedOver,
    PolicyOrder,
    Released,
    Report,
    Sampling,
    SeqFinish,
    SiblingOrder,
    StopOrder,
    TokenLogprobs,
    TransferDone,
    UpdateOrder,
)
from octavo_gpuworker.wire import fill_report, orders_from

K1, K2 = b"a" * 32, b"b" * 32


def read(*orders: pb.Order) -> list:
    return list(orders_from(pb.Orders.FromString(pb.Orders(orders=orders).SerializeToString())))


def test_every_kind_of_order_in_order() -> None:
    got = read(
        pb.Order(grant=pb.Grant(seq=1, block_ids=pack_u32([4, 5]))),
        pb.Order(update=pb.Update(seq=2, rank=7, paused=True)),
        pb.Order(stop=pb.Stop(seq=3, reason="cancel")),
        pb.Order(offload=pb.Offload(xfer_id=4, block_ids=pack_u32([1]), keys=pack_keys([K1]))),
        pb.Order(
            load=pb.Load(
                xfer_id=5,
                keys=pack_keys([K1, K2]),
                block_ids=pack_u32([1, 2]),
                limit_us=9,
                sources=[BlockSource(store_id="far", first=1, count=1)],
            )
        ),
        pb.Order(abort=pb.Abort(xfer_id=6)),
        pb.Order(prepare=pb.Prepare(resource_id="r")),
        pb.Order(step_policy=pb.StepPolicy(budget_with_decodes=10, budget_alone=20, max_seqs=30)),
        pb.Order(label=pb.Label(block_ids=pack_u32([8]), keys=pack_keys([K2]), parents=pack_keys([K1]))),
    )
    assert got == [
        GrantOrder(1, [4, 5]),
        UpdateOrder(2, 7, True),
        StopOrder(3, "cancel"),
        OffloadOrder(4, [1], [K1]),
        LoadOrder(5, [K1, K2], [1, 2], 9, (LoadSource("far", 1, 1),)),
        AbortOrder(6),
        PassedOver("prepare"),
        PolicyOrder(10, 20, 30),
        LabelOrder([8], [K2], [K1]),
    ]


def test_admit_whole() -> None:
    sampling = pb.SamplingParams(
        temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, presence_penalty=1, frequency_penalty=2,
        repetition_penalty=1.5, bias_ids=pack_u32([7]), bias_values=[2.5], stop_ids=pack_u32([2, 3]), min_tokens=4, logprobs=5,
    )  # fmt: skip
    message = pb.Admit(
        seq=2**63, slot=2, tokens=pack_u32([1, 2, 3]), prompt_len=2, cached_len=1, block_ids=pack_u32([9]), sampling=sampling,
        seed=2**64 - 1, wait_xfer=6, wait_base=16, stop_after=7, rank=8, max_len=99, traceparent="00-x", request_id="r",
        siblings=[pb.Sibling(seq=3, slot=4, seed=5, block_ids=pack_u32([9, 10]))],
        blend_parts=[pb.BlendPart(start=4, count=8, first=1, block_ids=pack_u32([11, 12]))], blend_share=0.25,
    )  # fmt: skip
    expected = AdmitOrder(
        2**63, 2, [1, 2, 3], 2, 1, [9],
        Sampling(0.5, 0.25, 3, 0.125, 1.0, 2.0, 1.5, ((7, 2.5),), frozenset({2, 3}), 4, 5),
        2**64 - 1, 99, 8, 6, 16, 7, (SiblingOrder(3, 4, 5, [9, 10]),), "00-x", "r",
        blend_parts=(BlendPart(4, 8, 1, [11, 12]),), blend_share=0.25,
    )  # fmt: skip
    before_ns = time.time_ns()
    (order,) = read(pb.Order(admit=message))
    assert order == expected
    assert isinstance(order, AdmitOrder) and before_ns <= order.received_ns <= time.time_ns()


def test_unset_sampling_fields_are_off() -> None:
    (order,) = read(pb.Order(admit=pb.Admit(seq=1, sampling=pb.SamplingParams(logprobs=-1))))
    assert order.sampling == Sampling(temperature=0.0)
    assert not order.sampling.alters_logits


@pytest.mark.parametrize("bad", [pb.Order(grant=pb.Grant(block_ids=b"12345")), pb.Order(label=pb.Label(keys=b"1"))])
def test_bytes_of_a_wrong_length_are_an_error(bad) -> None:
    with pytest.raises(ValueError, match="multiple"):
        read(bad)


def test_report_whole() -> None:
    report = Report(
        step=9, steps=2, slots=[3, 1], tokens=[[10, 11], []], computed_len=[7, 8],
        logprobs=[[TokenLogprobs(10, -0.5, [10, 4], [-0.5, -1.5]), TokenLogprobs(11, -0.25, [], [])], []],
        finishes=[SeqFinish(3, 30, "stop", 11, "m")], released=[Released(30, 12, 11)],
        transfers_done=[TransferDone(5, 2, 100, 3, 4)], starved=[6], first_tokens=[FirstToken(30, 1, 2, 3, dispatch_us=40, sampled_ns=1_000_000)],
        wall_us=100, forward_us=60, sample_us=30, prefill_tokens=4, decode_seqs=2, live_seqs=[30], live_transfers=[], orders_applied=6, backed_blocks=12,
    )  # fmt: skip
    message = pb.Report()
    fill_report(message, report, 1_500_000)
    assert (message.step, message.steps, message.prefill_tokens, message.decode_seqs) == (9, 2, 4, 2)
    assert unpack_u32(message.slots) == [3, 1] and unpack_u32(message.counts) == [2, 0]
    assert unpack_u32(message.tokens) == [10, 11] and unpack_u32(message.computed_len) == [7, 8]
    assert [(i.token, i.logprob, unpack_u32(i.top_tokens)) for i in message.logprobs] == [
        (10, -0.5, [10, 4]),
        (11, -0.25, []),
    ]
    assert list(message.logprobs[0].top_logprobs) == [-0.5, -1.5]
    assert message.finishes[0] == pb.SeqFinish(slot=3, seq=30, reason="stop", stop_token=11, message="m")
    assert message.released[0] == pb.Released(seq=30, len=12, computed_len=11)
    assert message.transfers_done[0] == pb.TransferDone(xfer_id=5, ok_blocks=2, bytes=100, lookup_us=3, transfer_us=4)
    assert unpack_u32(message.starved) == [6]
    assert message.first_tokens[0] == pb.FirstToken(
        seq=30, wait_us=1, prefill_us=2, chunks=3, dispatch_us=40, report_us=500
    )
    assert message.times == pb.StepTimes(wall_us=100, forward_us=60, sample_us=30, host_us=10)
    assert list(message.live.seqs) == [30] and message.HasField("live") and message.backed_blocks == 12


def test_an_empty_report_is_a_heartbeat() -> None:
    message = pb.Report()
    fill_report(message, Report(step=4), 1)
    assert message == pb.Report(step=4)
