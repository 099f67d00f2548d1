"""Protobuf to events and orders to protobuf: the only place of this service that knows both."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote

from octavo.packing import pack_keys, pack_u32, unpack_keys, unpack_u32
from octavo.v1 import kvstore_pb2 as kpb
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import worker_pb2 as wpb

from octavo_scheduler import events, orders
from octavo_scheduler.beams.rule import BeamRule
from octavo_scheduler.preloads.rule import NO_RULE, CacheRule, PromptChunk

MAX_ORDERS_BYTES = 2 * 2**20
"""Orders of one message, well below the 4 MB limit."""


MOST_STEP_US = 1e9
"""No step takes a quarter of an hour."""
ROLES = ("", "both", "prefill", "decode")


class WireError(ValueError):
    """A message that cannot be read; the text names the field."""


def tokens_array(packed: bytes, field: str) -> array[int]:
    """Packed u32 as an array. Raises WireError."""
    if len(packed) % 4:
        raise WireError(f"{field}: {len(packed)} bytes is no multiple of 4")
    values = array("I")
    values.frombytes(packed)
    return values


def u32_list(packed: bytes, field: str, unpack: Callable[[bytes], list[int]] = unpack_u32) -> list[int]:
    """Packed u32 as a list. Raises WireError."""
    try:
        return unpack(packed)
    except ValueError as error:
        raise WireError(f"{field}: {error}") from error


def _keys(packed: bytes, field: str) -> list[bytes]:
    try:
        return unpack_keys(packed)
    except ValueError as error:
        raise WireError(f"{field}: {error}") from error


# -- gateway -------------------------------------------------------------------------------------------------------


def read_submit(message: pb.Submit, gateway: int, now_us: int) -> events.Submitted:
    """A Submit as an event. Raises WireError naming the field."""
    choices = [
        events.ChoiceStart(item.seed, tokens_array(item.emitted_tokens, "choices.emitted_tokens"), item.finished)
        for item in message.choices
    ]
    return events.Submitted(
        now_us=now_us,
        gateway=gateway,
        request_id=message.request_id,
        prompt=tokens_array(message.prompt_tokens, "prompt_tokens"),
        max_tokens=message.max_tokens,
        choices=choices,
        attempt=max(1, message.attempt),
        tenant=message.tenant,
        prompt_keys=_keys(message.prompt_keys, "prompt_keys"),
        sampling=message.sampling.SerializeToString(),
        logprobs=_logprobs(message),
        remaining_deadline_us=message.remaining_deadline_us,
        age_us=message.age_us,
        priority=message.priority,
        slo_class=message.slo_class,
        traceparent=message.traceparent,
        idempotency_key=message.idempotency_key,
        body_hash=message.body_hash,
        gateway_state=message.gateway_state,
        cache_off=message.cache_off,
        namespace_root=message.namespace_root,
        cache=read_rule(message.cache) if message.HasField("cache") else NO_RULE,
        namespace_tag=message.namespace_tag,
        pause_tool=message.pause_tool,
        pause_expected_us=message.pause_expected_us,
        resumes=message.resumes,
        beams=_read_beams(message) if message.HasField("beams") else None,
    )


def _logprobs(message: pb.Submit) -> int:
    """Alternatives that the client is told with each token. A beam's worker reports more, which the search needs."""
    if message.HasField("beams"):
        return message.beams.logprobs
    return message.sampling.logprobs if message.HasField("sampling") else -1


def _read_beams(message: pb.Submit) -> BeamRule:
    beams = message.beams
    if not 1 <= beams.shown <= len(message.choices):
        raise WireError(f"beams.shown: {beams.shown} must lie in [1, {len(message.choices)}], the number of choices")
    return BeamRule(
        beams.shown,
        beams.length_penalty,
        beams.early_stopping,
        tuple(u32_list(beams.stop_ids, "beams.stop_ids")),
        beams.logprobs,
    )


def read_rule(message: pb.CacheRule) -> CacheRule:
    """What the request says about its KV."""
    return CacheRule(
        message.ttl_us,
        message.pin,
        message.priority,
        tuple(message.tiers),
        message.generation,
        message.layout,
        message.preload,
        tuple(PromptChunk(item.name, item.start, item.tokens, item.skip) for item in message.chunks),
    )


def read_gateway(message: pb.AttachGatewayRequest, gateway: int, now_us: int) -> Iterator[events.Event]:
    """The events of a gateway's message, all read at `now_us`; none for hello and heartbeats. Raises WireError."""
    orders = message.many.orders if message.HasField("many") else (message,)
    for order in orders:
        if (event := _read_order(order, gateway, now_us)) is not None:
            yield event


def _read_order(message: pb.AttachGatewayRequest, gateway: int, now_us: int) -> events.Event | None:
    kind = message.WhichOneof("message")
    if kind == "submit":
        return read_submit(message.submit, gateway, now_us)
    if kind == "cancel":
        order = message.cancel
        return events.Cancelled(now_us, gateway, order.request_id, order.reason or "client_cancel", order.tenant)
    if kind == "pause":
        pause = message.pause
        return events.Paused(now_us, gateway, pause.request_id, pause.tool, pause.expected_us, pause.tenant)
    if kind == "stop_choice":
        stop = message.stop_choice
        return events.ChoiceStopped(now_us, gateway, stop.request_id, stop.index, stop.at_len)
    if kind == "attach":
        attach = message.attach
        return events.AttachRequested(now_us, gateway, attach.request_id, attach.idempotency_key, attach.tenant)
    return None


def write_store_order(order: orders.Forget | orders.Keep) -> pb.AttachStoreResponse:
    """What a kvstore is told."""
    if isinstance(order, orders.Keep):
        return pb.AttachStoreResponse(pin=pb.PinOrder(keys=pack_keys(order.keys), pinned=order.pinned))
    forget = pb.ForgetOrder(keys=pack_keys(order.keys), namespace=order.namespace, below=True)
    return pb.AttachStoreResponse(forget=forget)


# -- worker --------------------------------------------------------------------------------------------------------


def read_hello(message: wpb.WorkerHello, epoch: int, worker_id: str, now_us: int) -> events.WorkerJoined:
    """A worker's Hello as an event. Raises WireError."""
    blocks = u32_list(message.resident_blocks, "resident_blocks")
    keys = _keys(message.resident_keys, "resident_keys")
    parents = u32_list(message.resident_parents, "resident_parents")
    if len(blocks) != len(keys):
        raise WireError(f"resident_keys: {len(keys)} keys for {len(blocks)} blocks")
    if len(parents) != len(blocks) or max(parents, default=0) > len(blocks):
        raise WireError(f"resident_parents: {len(parents)} for {len(blocks)} blocks, each at most that; give one each")
    if message.role not in ROLES:
        raise WireError(f"role: {message.role[:40]!r} is unknown; use {', '.join(ROLES[1:])}")
    calibration = _read_calibration(message.calibration)
    return events.WorkerJoined(
        now_us=now_us,
        epoch=epoch,
        worker_id=worker_id,
        num_blocks=message.num_blocks,
        block_tokens=message.block_tokens,
        max_num_seqs=message.max_num_seqs,
        max_model_len=message.max_model_len,
        block_bytes=message.block_bytes,
        store_id=message.store_id,
        root_key=message.root_key,
        model=message.model,
        pid=message.pid,
        resident=list(zip(blocks, keys, strict=True)),
        resident_parents=parents,
        calibration=calibration,
        role=message.role or "both",
        labels=list(message.labels),
        capabilities=list(message.capabilities),
    )


def _read_calibration(given: wpb.Calibration) -> events.Calibration:
    """What the worker measured, defaults where it says nothing. One number that is none would be in every forecast of the cell."""
    default = events.Calibration()
    values = []
    for name in ("fixed_us", "prefill_token_us", "decode_seq_us", "context_token_us"):
        value = getattr(given, name)
        if not 0 <= value <= MOST_STEP_US:
            raise WireError(f"calibration.{name}: {value!r} must lie in [0, {MOST_STEP_US:g}]")
        values.append(value or getattr(default, name))
    return events.Calibration(*values)


def write_orders(batch: Iterable[orders.Order]) -> Iterator[wpb.Orders]:
    """Orders in messages that stay below the limit."""
    message, size = wpb.Orders(), 0
    for order in batch:
        written = write_order(order)
        length = written.ByteSize()
        if size and size + length > MAX_ORDERS_BYTES:
            yield message
            message, size = wpb.Orders(), 0
        message.orders.append(written)
        size += length
    if size:
        yield message


def stamp_admits(message: wpb.Orders, admitted_us: dict[int, int], now_us: int) -> None:
    """The message is written now: its Admits tell how long they waited since they were decided, by sequence."""
    if not admitted_us:
        return
    for order in message.orders:
        if order.HasField("admit"):
            order.admit.dispatch_us = max(0, now_us - admitted_us.pop(order.admit.seq, now_us))


def write_order(order: orders.Order) -> wpb.Order:
    """One order."""
    match order:
        case orders.Grant():
            return wpb.Order(grant=wpb.Grant(seq=order.seq, block_ids=pack_u32(order.block_ids)))
        case orders.Admit():
            return wpb.Order(admit=_write_admit(order))
        case orders.Fork():
            fork = wpb.Fork(seqs=order.seqs, parents=pack_u32(order.parents), tokens=pack_u32(order.tokens))
            return wpb.Order(fork=fork)
        case orders.Stop():
            return wpb.Order(stop=wpb.Stop(seq=order.seq, reason=order.reason))
        case orders.Label():
            label = wpb.Label(
                block_ids=pack_u32(order.block_ids), keys=pack_keys(order.keys), parents=pack_keys(order.parents)
            )
            return wpb.Order(label=label)
        case orders.Offload():
            offload = wpb.Offload(
                xfer_id=order.xfer_id,
                block_ids=pack_u32(order.block_ids),
                keys=pack_keys(order.keys),
                parents=pack_keys(order.parents),
                namespaces=b"".join(tag or bytes(16) for tag in order.namespaces),
                ttl_us=order.ttl_us,
                priorities=order.priorities,
                recompute_us=order.recompute_us,
                tiers=order.tiers,
            )
            return wpb.Order(offload=offload)
        case orders.Load():
            load = wpb.Load(
                xfer_id=order.xfer_id,
                keys=pack_keys(order.keys),
                block_ids=pack_u32(order.block_ids),
                limit_us=order.limit_us,
                sources=[
                    kpb.BlockSource(store_id=item.store_id, first=item.first, count=item.count)
                    for item in order.sources
                ],
            )
            return wpb.Order(load=load)
        case orders.Abort():
            return wpb.Order(abort=wpb.Abort(xfer_id=order.xfer_id))
        case orders.Update():
            update = wpb.Update(seq=order.seq, rank=order.rank, paused=order.paused, draft_len=order.draft_len)
            return wpb.Order(update=update)
        case orders.Leave():
            return wpb.Order(leave=wpb.Leave())
        case orders.StepPolicy():
            policy = wpb.StepPolicy(
                budget_with_decodes=order.budget_with_decodes,
                budget_alone=order.budget_alone,
                max_seqs=order.max_seqs,
            )
            return wpb.Order(step_policy=policy)


def _write_admit(order: orders.Admit) -> wpb.Admit:
    admit = wpb.Admit(
        seq=order.seq,
        slot=order.slot,
        tokens=order.tokens,
        prompt_len=order.prompt_len,
        cached_len=order.cached_len,
        block_ids=pack_u32(order.block_ids),
        seed=order.seed,
        deadline_us=order.deadline_us,
        wait_xfer=order.wait_xfer,
        wait_base=order.wait_base,
        stop_after=order.stop_after,
        rank=order.rank,
        max_len=order.max_len,
        traceparent=order.traceparent,
        request_id=order.request_id,
        siblings=[
            wpb.Sibling(
                seq=item.seq, slot=item.slot, seed=item.seed, block_ids=pack_u32(item.block_ids), tokens=item.tokens
            )
            for item in order.siblings
        ],
        blend_parts=[
            wpb.BlendPart(start=part.start, count=part.count, first=part.first, block_ids=pack_u32(part.block_ids))
            for part in order.blend_parts
        ],
        blend_share=order.blend_share,
        split_len=order.split_len,
    )
    admit.sampling.MergeFromString(order.sampling)
    return admit


# -- kvstore -------------------------------------------------------------------------------------------------------


def read_store(message: pb.AttachStoreRequest, store_id: str, connection: int, now_us: int) -> events.Event | None:
    """A kvstore's message as an event; None for hello and heartbeats. Raises WireError."""
    kind = message.WhichOneof("message")
    if kind == "events":
        changes = [(item.key, item.removed) for item in message.events.events]
        return events.StoreChanged(now_us, store_id, connection, message.events.first_number, changes)
    if kind == "codec":
        codec = message.codec
        saved = codec.saved_bytes
        return events.StoreCoded(now_us, store_id, codec.blocks, codec.saved_us, codec.cost_us, saved)
    if kind == "inventory":
        inventory = message.inventory
        keys = _keys(inventory.keys, "inventory.keys")
        return events.StoreInventory(now_us, store_id, connection, inventory.number, keys, inventory.last)
    return None


def peer_address(told: str, dialled_from: str) -> str:
    """Where a kvstore's peers reach it: `told`, its host taken from gRPC's name of the caller (`ipv4:10.0.0.5:4242`) if it has none.

    Empty: nowhere.
    """
    host, colon, port = told.rpartition(":")
    if host or not colon:
        return told
    kind, _, caller = dialled_from.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return f"127.0.0.1:{port}"  # it came over a unix socket: the same host
    return f"{unquote(caller.rpartition(':')[0])}:{port}"
