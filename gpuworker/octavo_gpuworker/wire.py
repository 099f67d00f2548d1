"""The only conversion between protobuf and the engine's nouns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

from octavo.packing import pack_u32, unpack_keys, unpack_u32
from octavo.v1 import worker_pb2 as pb

from octavo_gpuworker.orders import (
    AbortOrder,
    AdmitOrder,
    BlendPart,
    ForkOrder,
    GrantOrder,
    LabelOrder,
    LeaveOrder,
    LoadOrder,
    LoadSource,
    OffloadOrder,
    Order,
    PassedOver,
    PolicyOrder,
    Report,
    Sampling,
    SiblingOrder,
    StopOrder,
    TokenLogprobs,
    UpdateOrder,
)

TAG_BYTES = 16
"""Of a namespace."""


def orders_from(message: pb.Orders) -> Iterator[Order]:
    """The orders of one message, one for each: the audit counts them."""
    received_ns = time.time_ns()
    for order in message.orders:
        match kind := order.WhichOneof("order"):
            case "admit":
                yield _admit(order.admit, received_ns)
            case "grant":
                yield GrantOrder(order.grant.seq, unpack_u32(order.grant.block_ids))
            case "fork":
                yield _fork(order.fork)
            case "update":
                yield UpdateOrder(order.update.seq, order.update.rank, order.update.paused)
            case "stop":
                yield StopOrder(order.stop.seq, order.stop.reason)
            case "offload":
                offload = order.offload
                yield OffloadOrder(
                    offload.xfer_id,
                    unpack_u32(offload.block_ids),
                    unpack_keys(offload.keys),
                    unpack_keys(offload.parents),
                    _tags(offload.namespaces),
                    list(offload.ttl_us),
                    list(offload.priorities),
                    list(offload.recompute_us),
                    list(offload.tiers),
                )
            case "load":
                load = order.load
                sources = tuple(LoadSource(item.store_id, item.first, item.count) for item in load.sources)
                blocks = unpack_u32(load.block_ids)
                yield LoadOrder(load.xfer_id, unpack_keys(load.keys), blocks, load.limit_us, sources)
            case "abort":
                yield AbortOrder(order.abort.xfer_id)
            case "label":
                label = order.label
                yield LabelOrder(unpack_u32(label.block_ids), unpack_keys(label.keys), unpack_keys(label.parents))
            case "step_policy":
                policy = order.step_policy
                yield PolicyOrder(policy.budget_with_decodes, policy.budget_alone, policy.max_seqs)
            case "leave":
                yield LeaveOrder()
            case _:
                yield PassedOver(kind or "")


def _tags(packed: bytes) -> list[bytes]:
    if len(packed) % TAG_BYTES:
        raise ValueError(f"namespaces: {len(packed)} bytes is no multiple of {TAG_BYTES}")
    return [packed[at : at + TAG_BYTES] for at in range(0, len(packed), TAG_BYTES)]


def _fork(fork: pb.Fork) -> ForkOrder:
    seqs, parents, tokens = list(fork.seqs), unpack_u32(fork.parents), unpack_u32(fork.tokens)
    if not len(seqs) == len(parents) == len(tokens) or max(parents, default=-1) >= len(seqs):
        raise ValueError(f"fork: {len(seqs)} seqs, parents {parents}, {len(tokens)} tokens do not fit together")
    return ForkOrder(seqs, parents, tokens)


def _admit(admit: pb.Admit, received_ns: int) -> AdmitOrder:
    return AdmitOrder(
        seq=admit.seq,
        slot=admit.slot,
        tokens=unpack_u32(admit.tokens),
        prompt_len=admit.prompt_len,
        cached_len=admit.cached_len,
        blocks=unpack_u32(admit.block_ids),
        sampling=_sampling(admit.sampling),
        seed=admit.seed,
        max_len=admit.max_len,
        rank=admit.rank,
        wait_xfer=admit.wait_xfer,
        wait_base=admit.wait_base,
        stop_after=admit.stop_after,
        siblings=tuple(
            SiblingOrder(s.seq, s.slot, s.seed, unpack_u32(s.block_ids), unpack_u32(s.tokens)) for s in admit.siblings
        ),
        split_len=admit.split_len,
        blend_parts=tuple(
            BlendPart(part.start, part.count, part.first, unpack_u32(part.block_ids)) for part in admit.blend_parts
        ),
        blend_share=admit.blend_share,
        traceparent=admit.traceparent,
        request_id=admit.request_id,
        dispatch_us=admit.dispatch_us,
        received_ns=received_ns,
    )


def _sampling(params: pb.SamplingParams) -> Sampling:
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p or 1.0,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
        bias=tuple(zip(unpack_u32(params.bias_ids), params.bias_values, strict=True)),
        stop_ids=frozenset(unpack_u32(params.stop_ids)),
        min_tokens=params.min_tokens,
        logprobs=params.logprobs,
        beam=params.beam,
    )


def fill_report(message: pb.Report, report: Report, now_ns: int) -> None:
    """Puts a report into an empty message, at `now_ns` (wall clock). A field that is set costs most of what a step's message costs: few are."""
    message.step = report.step
    if report.slots:
        message.slots, message.computed_len = pack_u32(report.slots), pack_u32(report.computed_len)
        message.counts = pack_u32([len(tokens) for tokens in report.tokens])
        message.tokens = pack_u32([token for tokens in report.tokens for token in tokens])
    if report.starved:
        message.starved = pack_u32(report.starved)
    if report.failed_allocations:
        message.failed_allocations = report.failed_allocations
    if report.steps:
        message.steps, message.decode_seqs = report.steps, report.decode_seqs
        if report.prefill_tokens:
            message.prefill_tokens = report.prefill_tokens
        times = message.times
        times.wall_us, times.forward_us, times.sample_us = report.wall_us, report.forward_us, report.sample_us
        times.host_us = max(0, report.wall_us - report.forward_us - report.sample_us)
    for f in report.finishes:
        message.finishes.add(slot=f.slot, seq=f.seq, reason=f.reason, stop_token=f.stop_token, message=f.message)
    for row in report.beam_rows:
        message.beam_rows.add(seq=row.seq, len=row.length, tokens=pack_u32(row.tokens), logprobs=row.logprobs)
    for r in report.released:
        message.released.add(seq=r.seq, len=r.length, computed_len=r.computed_len)
    for first in report.first_tokens:
        message.first_tokens.add(
            seq=first.seq,
            wait_us=first.wait_us,
            prefill_us=first.prefill_us,
            chunks=first.chunks,
            load_us=first.load_us,
            sample_us=first.sample_us,
            dispatch_us=first.dispatch_us,
            report_us=max(0, now_ns - first.sampled_ns) // 1000 if first.sampled_ns else 0,
        )
    for done in report.transfers_done:
        message.transfers_done.add(**asdict(done))
    if any(report.logprobs):
        _fill_logprobs(message, report.logprobs)
    if report.live_seqs is not None and report.live_transfers is not None:
        message.backed_blocks = report.backed_blocks
        message.live.CopyFrom(
            pb.LiveList(seqs=report.live_seqs, transfers=report.live_transfers, orders_applied=report.orders_applied)
        )


def _fill_logprobs(message: pb.Report, logprobs: list[list[TokenLogprobs]]) -> None:
    for per_slot in logprobs:
        for item in per_slot:
            message.logprobs.add(
                token=item.token,
                logprob=item.logprob,
                top_tokens=pack_u32(item.top_tokens),
                top_logprobs=item.top_logprobs,
            )
