"""Disaggregation: one worker prefills, another decodes; full blocks travel by key through the kvstore.

The prefill worker is admitted with `stop_after: 1`. While it computes, blocks that are full go out (exports), and from
the kvstore into the pool that will decode (preloads), where they become ordinary cached blocks. Its report commits the
first token; then the request waits only for copies under way, and is admitted for decode like any other: what the pool
holds is shared, what only the kvstore holds is loaded, the tail below one block is recomputed. Of n choices the first is
prefilled; the others are admitted with it where it decodes, and fork the prompt's blocks there. So nothing but
transfers ever holds a block for a handoff, and a worker that is lost on the way leaves nothing behind.

Credit: a prefill begins, and its blocks go out, only while the pool that will decode has room for the whole request.
"""

from __future__ import annotations

from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves import copies, pieces
from octavo_scheduler.moves.credit import blocks_of, find_target, room, target_of
from octavo_scheduler.moves.exports import Item, answering, items_of, order_exports
from octavo_scheduler.orders import Load
from octavo_scheduler.request import Handoff, Outcome, Request, Sequence
from octavo_scheduler.tiers import Transfer

WAIT_LOADS = 2
"""How many load limits the decode waits for copies under way before it goes on without them."""


def begin(cell: Cell, source: Worker, target: Worker, sequence: Sequence) -> None:
    """The source was given the prefill; the target's room is promised."""
    request = sequence.choice.request
    handoff = Handoff(
        source.epoch,
        source.worker_id,
        target.epoch,
        target.worker_id,
        cell.now_us,
        sequence.length // source.block_tokens,
        source.block_bytes,
    )
    request.handoff = sequence.handoff = handoff
    _promise(cell, target, request)
    cell.counters["handoffs_started"] += 1
    pieces.cut(cell, source, target, sequence)
    advance(cell, source, sequence)  # what was cached there can go at once


def _promise(cell: Cell, target: Worker, request: Request) -> None:
    size, length = target.block_tokens, request.choices[0].length
    predicted = len(request.prompt) + cell.history.predict(request.tenant, request.max_tokens)
    positions = min(request.max_len, max(predicted, length + 1))
    target.promised[request] = blocks_of(request, positions, size)


def retarget(cell: Cell, gone: Worker) -> None:
    """A worker that was to decode is gone: what is prefilled for it goes to another that has room, or waits for one."""
    for request in list(gone.promised):
        handoff = request.handoff
        serving = [worker for worker in cell.fleet.accepting() if worker.role != "prefill"]
        target = find_target(cell, request, serving)
        if handoff is not None and target is not None:
            handoff.target_epoch, handoff.target_id, handoff.preloaded = target.epoch, target.worker_id, 0
            _promise(cell, target, request)
    gone.promised.clear()


def advance(cell: Cell, source: Worker, sequence: Sequence) -> None:
    """More of the prefill is indexed: full blocks go out while the target gives credit."""
    handoff, request = sequence.handoff, sequence.choice.request
    if handoff is None or request.handoff is not handoff:
        return
    directory = answering(cell, source)
    ready = min(sequence.walked, handoff.total_blocks)
    if directory is None or handoff.exported >= ready:
        return
    target = target_of(cell, handoff)
    if target is None or room(cell, target, request) < ready - handoff.preloaded:
        handoff.credit_waits += 1
        cell.counters["handoff_credit_waits"] += 1
        return
    items = items_of(source, sequence.choice, sequence.blocks, handoff.exported, ready)
    _export(cell, source, request, [item for item in items if item[1].key not in directory])
    handoff.exported = ready
    preload(cell, request)


def _export(cell: Cell, source: Worker, request: Request, items: list[Item]) -> None:
    handoff = request.handoff
    if handoff is None:
        return
    for transfer in order_exports(cell, source, request, items, "handoff"):
        transfer.handoff = handoff
        handoff.exports += 1


def exported(cell: Cell, transfer: Transfer, ok: int, size_bytes: int) -> None:
    """A copy from the source has ended; what came whole may go on to the target."""
    handoff, request = transfer.handoff, transfer.request
    if handoff is None or request is None:
        return
    handoff.exports -= 1
    handoff.moved_blocks += ok
    if handoff.prefilled_us < 0:
        handoff.early_blocks += ok
        cell.counters["handoff_early_blocks"] += ok
    cell.counters["handoff_blocks"] += ok
    cell.counters["handoff_bytes"] += size_bytes
    cell.moved.add(cell.now_us, size_bytes, cell.now_us - transfer.started_us)
    if request.handoff is handoff:
        preload(cell, request)


def preload(cell: Cell, request: Request) -> None:
    """While the source still computes, what the target's kvstore or its peers have goes into its pool, if there is room."""
    handoff = request.handoff
    if handoff is None or handoff.prefilled_us >= 0:
        return  # the decode's own admission loads the rest
    target = target_of(cell, handoff)
    reach = cell.fleet.reach_of(target, cell.now_us) if target is not None else None
    if target is None or reach is None:
        return
    choice, size = request.choices[0], target.block_tokens
    keys: list[bytes] = []
    most = cell.policy.max_offload_blocks
    while handoff.preloaded < handoff.total_blocks and len(keys) < most:
        key = choice.key(handoff.preloaded, size)
        if key is None or not (key in target.index or reach.run([key], 0)[1]):
            break
        if key not in target.index:
            keys.append(key)
        elif keys:
            break  # a load is a chain without gaps
        handoff.preloaded += 1
    if not keys:
        return
    if room(cell, target, request) < len(keys):
        handoff.preloaded -= len(keys)
        return
    blocks = target.take(len(keys), "admission")
    for block in blocks:
        target.pool.hold_transfer(block)
        target.pool.drop(block)
    transfer = Transfer(cell.number(), "load", blocks, keys, cell.now_us, purpose="handoff", request=request)
    transfer.handoff, transfer.base_blocks = handoff, handoff.preloaded - len(keys)
    transfer.sources = reach.sources(keys) if reach.peers else []
    handoff.preloads += 1
    copies.begin(target, transfer, request)
    transfer.order_number = target.order(
        Load(transfer.xfer_id, keys, blocks, cell.policy.load_limit_us, transfer.sources)
    )
    cell.touched[target] = None
    cell.counters["loads_started"] += 1


def preloaded(cell: Cell, transfer: Transfer, ok: int) -> None:
    """A copy to the target has ended."""
    handoff, request = transfer.handoff, transfer.request
    if handoff is None or request is None:
        return
    handoff.preloads -= 1
    cell.counters["handoff_preloaded_blocks"] += ok
    if request.handoff is handoff and ok == len(transfer.keys):
        preload(cell, request)


def lost(transfer: Transfer) -> None:
    """A copy ended with its worker."""
    if transfer.handoff is not None:
        if transfer.kind == "offload":
            transfer.handoff.exports -= 1
        else:
            transfer.handoff.preloads -= 1


def prefilled(cell: Cell, source: Worker, sequence: Sequence) -> None:
    """The source released it after its first token: what is still there goes out, and the decode waits for its turn."""
    request, handoff = sequence.choice.request, sequence.handoff
    if handoff is None or request.handoff is not handoff:
        return
    handoff.computed_len = sequence.computed_len
    handoff.prefilled_us = cell.now_us
    handoff.until_us = cell.now_us + WAIT_LOADS * cell.policy.load_limit_us
    directory = answering(cell, source)
    target = target_of(cell, handoff)
    full = min(sequence.computed_len // source.block_tokens, len(sequence.blocks))
    if directory is not None and handoff.exported < full and target is not None:
        items = items_of(source, sequence.choice, sequence.blocks, handoff.exported, full)
        _export(cell, source, request, [item for item in items if item[1].key not in directory])
        handoff.exported = full
    cell.arriving[request] = None
    cell.timers.at(handoff.until_us, "move", request)


def waits(cell: Cell, request: Request) -> bool:
    """Its blocks are still on their way."""
    handoff = request.handoff
    return handoff is not None and bool(handoff.exports or handoff.preloads) and cell.now_us < handoff.until_us


def arrived(cell: Cell, target: Worker, sequence: Sequence) -> None:
    """The decode gave a token of its own: the handoff is over."""
    request, handoff = sequence.choice.request, sequence.choice.request.handoff
    if handoff is None or handoff.prefilled_us < 0:
        return
    recomputed = max(0, handoff.computed_len - sequence.cached_len)
    cell.counters["handoff_recomputed_tokens"] += recomputed
    whole = recomputed < target.block_tokens
    if whole:
        cell.counters["handoffs_done"] += 1
        prefill_us = target.costs.predict_prefill_us(handoff.computed_len, cell.policy.max_num_batched_tokens)
        # what the target's other sequences did not stand still for
        source = cell.fleet.workers.get(handoff.source_epoch)
        spared = 1 - (cell.neighbours.taken_share(source, target) if source is not None else 0.0)
        saved_ms = prefill_us * spared * max(0, len(target.sequences) - 1) / 1000
        exposed_ms = (cell.now_us - handoff.prefilled_us) / 1000
        cell.switches.observe("handoff", request, saved_ms, exposed_ms)
        cell.ledger.book("handoff", who_is(request), saved_ms=saved_ms, hit_tokens=handoff.computed_len)
    end(cell, request, "done" if whole else "recomputed", target=target.worker_id, recomputed=recomputed)


def end(cell: Cell, request: Request, cause: str, target: str = "", recomputed: int = 0) -> None:
    """The handoff is over: `done`, `short` (it ended with the first token), or why it failed."""
    handoff = request.handoff
    if handoff is None:
        return
    request.handoff = None
    cell.arriving.pop(request, None)
    cell.admission_due = True  # choices that found no room beside the first
    promised_to = cell.fleet.workers.get(handoff.target_epoch)
    if promised_to is not None:
        promised_to.promised.pop(request, None)
    if cause not in ("done", "short", "cancelled"):
        request.failed_handoffs += 1
        cell.counters["handoffs_failed"] += 1
    first_us = handoff.prefilled_us if handoff.prefilled_us >= 0 else cell.now_us
    cell.fact(
        "handoff",
        request,
        first_us if cause in ("done", "recomputed") else handoff.started_us,
        cell.now_us,
        cause=cause,
        source=handoff.source_id,
        target=target or handoff.target_id,
        prefill_us=first_us - handoff.started_us,
        blocks=handoff.moved_blocks,
        bytes=handoff.moved_blocks * handoff.block_bytes,
        early_blocks=handoff.early_blocks,
        recomputed_tokens=recomputed,
        credit_waits=handoff.credit_waits,
    )


def cause_of(outcome: Outcome) -> str:
    """How the end of a request ends its handoff."""
    return "short" if outcome.outcome == "finished" else "cancelled"
