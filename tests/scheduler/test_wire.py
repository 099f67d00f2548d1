"""Proto to events and back: nothing is lost, and damaged bytes are named."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.manifest import Manifest
from octavo.packing import pack_u32
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import worker_pb2 as wpb
from octavo_scheduler import orders, wire
from octavo_scheduler.connections import fold_epoch
from octavo_scheduler.events import Calibration, Cancelled, Finish, FirstToken, Paused, Released, Reported, TransferDone
from octavo_scheduler.preloads.rule import CacheRule
from octavo_scheduler.report_wire import ReportReader
from octavo_scheduler.settings import policy_from

from tests.scheduler.chaos_link import read_order, write_report

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
blocks = st.lists(u32, max_size=5)
keys = st.lists(st.binary(min_size=32, max_size=32), max_size=4)

any_order = st.one_of(
    st.builds(orders.Grant, u64, blocks),
    st.builds(orders.Stop, u64, st.sampled_from(["cancel", "preempt"])),
    st.builds(orders.Label, blocks, keys, keys),
    st.builds(orders.Leave),
    st.builds(orders.Offload, u64, blocks, keys, keys),
    st.builds(orders.Load, u64, keys, blocks, u64),
    st.builds(orders.Update, u64, u32, st.booleans(), u32),
    st.builds(orders.StepPolicy, u32, u32, u32),
    st.builds(
        orders.Admit,
        seq=u64,
        slot=u32,
        tokens=blocks.map(pack_u32),
        prompt_len=u32,
        cached_len=u32,
        block_ids=blocks,
        sampling=blocks.map(lambda ids: wpb.SamplingParams(stop_ids=pack_u32(ids)).SerializeToString()),
        seed=u64,
        deadline_us=u64,
        rank=u32,
        max_len=u32,
        request_id=st.text(max_size=5),
        traceparent=st.text(max_size=5),
        wait_xfer=u64,
        wait_base=u32,
        siblings=st.lists(st.builds(orders.SiblingAdmit, u64, u32, u64, blocks), max_size=2),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(any_order, max_size=6))
def test_orders_survive_the_wire(batch: list[orders.Order]) -> None:
    sent = [order for message in wire.write_orders(batch) for order in message.orders]
    for order in batch:
        if isinstance(order, orders.Admit):
            order.sampling = wpb.SamplingParams.FromString(order.sampling).stop_ids
    assert [read_order(order) for order in sent] == batch


def test_big_batches_are_split_below_the_message_limit() -> None:
    admit = orders.Admit(1, 0, bytes(4 * 200_000), 1, 0, [1], b"", 1, 0, 1, 9, "r", "")
    messages = list(wire.write_orders([admit] * 8))
    assert len(messages) > 1 and max(message.ByteSize() for message in messages) < 4 * 2**20
    assert sum(len(message.orders) for message in messages) == 8


def test_a_report_survives_the_wire() -> None:
    report = Reported(
        5,
        7,
        step=9,
        steps=2,
        slots=[0, 3],
        counts=[2, 1],
        tokens=array("I", [5, 6, 7]),
        computed_len=[10, 20],
        finishes=[Finish(3, 99, "stop", 7, "m")],
        logprobs=[wpb.Logprobs(token=5, logprob=-1.5).SerializeToString()],
        released=[Released(99, 21, 20)],
        transfers_done=[TransferDone(4, 2, 100, 5, 6)],
        starved=[1],
        first_tokens=[FirstToken(99, 1, 2, 3, dispatch_us=4, report_us=5)],
        wall_us=777,
        prefill_tokens=3,
        decode_seqs=2,
        live_seqs=[99],
        live_transfers=[4],
        orders_applied=17,
        backed_blocks=12,
    )
    assert ReportReader(7).read(write_report(report), 5) == report


def test_columns_that_say_the_same_again_are_read_once_and_others_anew() -> None:
    reader = ReportReader(7)

    def read(slots: list[int], counts: list[int]) -> Reported:
        columns = {"slots": pack_u32(slots), "counts": pack_u32(counts), "computed_len": pack_u32([9] * len(slots))}
        return reader.read(wpb.Report(tokens=pack_u32(range(sum(counts))), **columns), 5)

    first, second, third = read([0, 3], [1, 1]), read([0, 3], [1, 1]), read([0, 3], [1, 2])
    assert (first.slots, first.counts) == (second.slots, second.counts) == ([0, 3], [1, 1])
    assert second.slots is first.slots and third.slots is first.slots and third.counts == [1, 2]
    with pytest.raises(wire.WireError, match="slots"):
        reader.read(wpb.Report(slots=b"abc"), 5)
    assert read([0, 3], [1, 2]).slots == [0, 3] and read([3, 0], [1, 2]).slots == [3, 0] and first.slots == [0, 3]
    assert reader.read(wpb.Report(), 5) == Reported(5, 7)


def test_arrays_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(wire.WireError, match="slots"):
        ReportReader(1).read(wpb.Report(slots=pack_u32([1]), counts=pack_u32([1, 2])), 1)
    with pytest.raises(wire.WireError, match="counts"):
        ReportReader(1).read(wpb.Report(counts=b"abc"), 1)
    with pytest.raises(wire.WireError, match="resident_keys"):
        wire.read_hello(wpb.WorkerHello(resident_blocks=pack_u32([1])), 1, "w", 1)
    one = {"resident_blocks": pack_u32([1]), "resident_keys": bytes(32)}
    for parents in ([], [0, 0], [2]):
        with pytest.raises(wire.WireError, match="resident_parents"):
            wire.read_hello(wpb.WorkerHello(**one, resident_parents=pack_u32(parents)), 1, "w", 1)
    with pytest.raises(wire.WireError, match="prompt_keys"):
        wire.read_submit(pb.Submit(prompt_keys=b"short"), 1, 1)


def test_an_epoch_depends_on_all_three_and_is_never_zero() -> None:
    names = [("s", "w", 1), ("s", "w", 2), ("s", "v", 1), ("t", "w", 1)]
    epochs = {fold_epoch(*name) for name in names}
    assert len(epochs) == 4 and 0 not in epochs and max(epochs) < 2**64


def test_the_policy_comes_from_the_manifest() -> None:
    policy = policy_from(Manifest())
    assert policy.max_num_seqs == Manifest().scheduler.max_num_seqs
    assert policy.worker_silence_us == int(Manifest().scheduler.worker_silence_s * 1e6)


def test_a_cache_rule_and_a_tag_arrive() -> None:
    rule = pb.CacheRule(ttl_us=5, pin=True, priority=-2, tiers=["hbm", "nvme"], generation=3, layout=b"L", preload="p")
    submit = pb.Submit(prompt_tokens=pack_u32([1]), cache=rule, namespace_tag=b"t" * 16)
    event = wire.read_submit(submit, 1, 2)
    assert event.cache == CacheRule(5, True, -2, ("hbm", "nvme"), 3, b"L", "p") and event.namespace_tag == b"t" * 16
    assert wire.read_submit(pb.Submit(prompt_tokens=pack_u32([1])), 1, 2).cache == CacheRule()


def test_what_stores_are_told() -> None:
    keys = [bytes([i]) * 32 for i in (1, 2)]
    forget = wire.write_store_order(orders.Forget(keys, b"n" * 16)).forget
    assert (forget.keys, forget.namespace, forget.below) == (b"".join(keys), b"n" * 16, True)
    pin = wire.write_store_order(orders.Keep(keys, True)).pin
    assert (pin.keys, pin.pinned) == (b"".join(keys), True)


def test_an_offload_s_notes_have_one_entry_per_block_or_none() -> None:
    order = orders.Offload(1, [4, 5], [b"k" * 32] * 2, [b"p" * 32] * 2, [b"", b"t" * 16], [0, 9], [], [7, 7], [2, 0])
    (message,) = wire.write_orders([order])
    offload = message.orders[0].offload
    assert offload.namespaces == bytes(16) + b"t" * 16 and list(offload.ttl_us) == [0, 9]
    assert list(offload.priorities) == [] and list(offload.tiers) == [2, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e10])
@pytest.mark.parametrize("name", ["fixed_us", "prefill_token_us", "decode_seq_us", "context_token_us"])
def test_a_worker_that_measured_nonsense_is_refused(name: str, value: float) -> None:
    hello = wpb.WorkerHello(calibration=wpb.Calibration(**{name: value}))
    with pytest.raises(wire.WireError, match=rf"calibration\.{name}: .* must lie in"):
        wire.read_hello(hello, 1, "w", 1)


def test_what_a_worker_did_not_measure_has_a_default() -> None:
    hello = wpb.WorkerHello(calibration=wpb.Calibration(fixed_us=7.0))
    assert wire.read_hello(hello, 1, "w", 1).calibration == Calibration(fixed_us=7.0)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(wire.WireError, match="role: 'cook' is unknown; use both, prefill, decode"):
        wire.read_hello(wpb.WorkerHello(role="cook"), 1, "w", 1)
    assert wire.read_hello(wpb.WorkerHello(), 1, "w", 1).role == "both"


def test_a_message_of_many_orders_is_an_event_each_in_order_and_at_one_time() -> None:
    message = pb.AttachGatewayRequest()
    message.many.orders.add().cancel.request_id = "a"
    message.many.orders.add().heartbeat.SetInParent()
    message.many.orders.add().pause.request_id = "b"
    message.many.orders.add().cancel.request_id = "c"
    events = list(wire.read_gateway(message, 3, 77))
    assert [(type(event), event.request_id, event.now_us) for event in events] == [  # type: ignore[attr-defined]
        (Cancelled, "a", 77), (Paused, "b", 77), (Cancelled, "c", 77),
    ]  # fmt: skip
    assert list(wire.read_gateway(pb.AttachGatewayRequest(heartbeat=pb.Heartbeat()), 3, 77)) == []
    damaged = pb.AttachGatewayRequest()
    damaged.many.orders.add().submit.prompt_keys = b"short"
    with pytest.raises(wire.WireError, match="prompt_keys"):
        list(wire.read_gateway(damaged, 3, 77))
