"""A worker's report: tokens, computed lengths, finishes, releases, transfers. One k-step report equals k reports."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any, cast

from octavo_scheduler.batching import adjust_budget, ahead_tokens
from octavo_scheduler.beams import group as beams
from octavo_scheduler.books import chunks, entries
from octavo_scheduler.books.book import NOBODY, who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import charge
from octavo_scheduler.costs import LinkCosts
from octavo_scheduler.events import Reported, TransferDone
from octavo_scheduler.fleet import Worker
from octavo_scheduler.lifecycle import worker_finished
from octavo_scheduler.limits import learn, memory
from octavo_scheduler.moves import copies, handoff
from octavo_scheduler.orders import Label
from octavo_scheduler.policies import guard
from octavo_scheduler.preloads import chunk_loads, drop, wishes
from octavo_scheduler.reach import note_missed
from octavo_scheduler.request import NO_PARENT, Delivery, Phase, Request, Sequence
from octavo_scheduler.residency import end_hold, release
from octavo_scheduler.tiers import Transfer

BUSY_HALF_LIFE_US = 10_000_000
OVERDUE = 20
"""A load that brought nothing in so many times of a block's tells of the link; a shorter one found nothing there."""
REMOTE_TIER = "remote"
"""What a kvstore calls blocks that it has just fetched from another host."""


_RUNNING = Phase.RUNNING


class ProtocolError(Exception):
    """A report that cannot be true; its worker's epoch is closed."""


def apply(cell: Cell, worker: Worker, report: Reported) -> None:
    """Changes the state by one report. Raises ProtocolError on a report that contradicts the orders."""
    since_us = cell.now_us - worker.last_report_us
    if since_us > 0:  # an idle worker reports too, so that this falls
        weight = 1 - 2.0 ** (-since_us / BUSY_HALF_LIFE_US)
        busy = min(1.0, report.wall_us / since_us)
        worker.busy_share += weight * (busy - worker.busy_share)
        worker.prefill_share += weight * (busy * bool(report.prefill_tokens) - worker.prefill_share)
    worker.last_report_us = cell.now_us
    cell.counters["reports"] += 1
    labels = Label([], [], [])
    # a load ended before the step that it let begin, which may be in this same report
    for done in report.transfers_done:
        transfer = worker.transfers.pop(done.xfer_id, None)
        if transfer is not None:
            _end_transfer(cell, worker, transfer, done, labels)
    if report.prefill_tokens and report.decode_seqs:
        chunks.stalled(worker, report)
    context_tokens = _advance(cell, worker, report, labels)
    for finish in report.finishes:
        finished = worker.sequences.get(finish.seq)
        if finished is not None:
            handed_over = finished.handoff is not None and finish.reason == "length" and not _at_its_end(finished)
            finished.stopping = finished.stopping or ("handoff" if handed_over else "finished")
            worker.note_behind(finished)
            worker.hungry.pop(finished, None)
            if handed_over:
                continue
            worker_finished(cell, finished.choice, finish.reason, finish.stop_token, finish.message)
    for first in report.first_tokens:
        sequence = worker.sequences.get(first.seq)
        if sequence is not None:
            sequence.worker_wait_us = first.wait_us
        if sequence is not None and not sequence.choice.request.prefill_us:
            request = sequence.choice.request
            request.kv_load_us = first.load_us
            request.worker_wait_us = max(0, first.wait_us - first.load_us)
            request.prefill_us = first.prefill_us
            request.sample_us = first.sample_us
            request.dispatch_us, request.report_us = first.dispatch_us, first.report_us
    for released in report.released:
        gone = worker.sequences.get(released.seq)
        if gone is not None:
            if gone.length != released.length:
                raise ProtocolError(f"seq {gone.seq} released at {released.length}, reported up to {gone.length}")
            release(cell, worker, gone, report.step)
    if report.first_tokens or report.released:
        guard.look(cell, worker)
    if labels.block_ids:
        # a block that a decode has filled is one of many; a prompt's are what a worker that joins again should bring back
        worker.name(labels, soon=bool(report.prefill_tokens or report.first_tokens or report.transfers_done))
    if report.failed_allocations:
        memory.failed(cell, worker, report.failed_allocations)
    _count(cell, worker, report, context_tokens, since_us)
    if not worker.healthy and worker.is_well(cell.now_us):
        worker.healthy = cell.admission_due = True
    if report.live_seqs is not None:
        memory.backed(cell, worker, report.backed_blocks)
        _compare_live(worker, report)


def _at_its_end(sequence: Sequence) -> bool:
    """The choice has all the tokens that it may have, not only those of this residency."""
    return sequence.length >= sequence.choice.request.max_len


def _advance(cell: Cell, worker: Worker, report: Reported, labels: Label) -> int:
    """Commits tokens slot by slot; returns the context tokens that were attended to, for the cost model.

    Its loop runs once per sequence and report, and each object it touches is a miss of the CPU's cache: a calm sequence's
    token touches few. What nearly no token needs stands in functions of its own.
    """
    block_tokens = worker.block_tokens
    counts, tokens, hungry, now_us = report.counts, report.tokens, worker.hungry, cell.now_us
    low_water, running, owing = _low_water(cell, worker), _RUNNING, cell.fleet.owing()
    if (told := sum(counts)) != len(tokens):
        raise ProtocolError(f"{len(tokens)} tokens reported, counts add up to {told}")
    advanced = _in_slots(worker, report.slots)
    singly = told == len(counts) and 0 not in counts  # a token for each
    logprob_at = 0
    fresh: list[Sequence] = []
    prefilled: dict[Sequence, int] = {}
    owed: list[Delivery] = []
    said: Items[Any] = tokens if singly else _in_pieces(tokens, counts)
    for sequence, count, computed, new in zip(advanced, counts, report.computed_len, said, strict=True):
        before = sequence.computed_len
        if before + count == computed <= sequence.calm_until and count:
            sequence.computed_len = computed
            sequence.length += count
            if singly:
                sequence.output.append(new)
            else:
                sequence.output.extend(new)
            if sequence.owed_at is not owing:
                owed += sequence.deliveries
                sequence.owed_at = owing
            continue
        covered = len(sequence.blocks) * block_tokens
        if not before <= computed <= covered or computed > sequence.length + count:
            raise ProtocolError(f"slot {sequence.slot}: computed_len {computed} is impossible for {sequence!r}")
        choice = sequence.choice
        request = choice.request
        if sequence.first_token_us < 0:
            prefilled[sequence] = _prefilled(sequence, computed)
            request.work_done = True
        sequence.computed_len = computed
        if count:
            sequence.length += count
            if sequence.first_token_us < 0:
                sequence.first_token_us = now_us
                fresh.append(sequence)
                _first_token(cell, worker, sequence)
            if choice.phase is running:
                if singly:
                    choice.output.append(new)
                else:
                    choice.output.extend(new)
                if choice.logprobs is not None:
                    choice.logprobs.extend(report.logprobs[logprob_at : logprob_at + count])
                request.losses = 0
                owed += request.deliveries
            if request.logprobs >= 0:
                logprob_at += count
        if sequence.behind:
            worker.note_behind(sequence)
        if computed >= (sequence.walked + 1) * block_tokens and choice.phase is running:
            _index_full_blocks(cell, worker, sequence, labels)
            if sequence.handoff is not None:
                handoff.advance(cell, worker, sequence)
        lacks = covered < sequence.max_positions
        if lacks and covered < sequence.length + low_water and not sequence.stopping:
            hungry[sequence] = None
        sequence.calm_until = 0
        if _is_calm(sequence):
            ends = (sequence.walked + 1) * block_tokens - 1
            enough = covered - worker.calm_water - (sequence.length - computed) if lacks else covered
            sequence.calm_until = ends if ends < enough else enough
    if told:
        cell.fleet.owe(owed, cell.effects.dirty_gateways)
    for slot in report.starved:
        starved = worker.slots[slot] if slot < len(worker.slots) else None
        if starved is not None and not starved.stopping:
            hungry[starved] = None
    counts = _take_rows(cell, worker, report, fresh) if report.beam_rows else counts
    if not charge(worker, report.wall_us, report.steps, advanced, counts, report.computed_len, prefilled):
        cell.counters["untold_device_us"] += report.wall_us
    for sequence in fresh:
        learn.from_first_token(cell, sequence)
        entries.first_token(cell, worker, sequence)
        chunks.first_token(cell, worker, sequence)
    if report.beam_rows:
        beams.go_on(cell, worker, report.beam_rows)
    if report.starved or worker.starved:
        worker.starved = len(report.starved)
        cell.counters["starved_steps"] += bool(report.starved)
    return sum(report.computed_len)


def _in_slots(worker: Worker, slots: list[int]) -> list[Sequence]:
    """The sequences in these slots. Raises ProtocolError for one that is empty, or is no slot."""
    seats = worker.slots
    try:
        found = [seats[slot] for slot in slots]
    except IndexError:
        found = [None]
    if None in found:
        empty = next(slot for slot in slots if slot >= len(seats) or seats[slot] is None)
        raise ProtocolError(f"slot {empty} advanced and holds no sequence")
    return cast(list[Sequence], found)


def _in_pieces(tokens: array[int], counts: list[int]) -> list[array[int]]:
    """Tokens cut into pieces of so many."""
    ends = list(accumulate(counts))
    return [tokens[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _low_water(cell: Cell, worker: Worker) -> int:
    """Positions that a table should reach beyond its tokens.

    Calm sequences were found to have `calm_water` of them ahead: as that is no less, none need be looked at.
    """
    low = ahead_tokens(worker, cell.policy)
    if not low <= worker.calm_water <= 2 * low:
        more = low + low // 8 + 1 - worker.calm_water
        worker.calm_water += more
        for sequence in worker.sequences.values() if more > 0 else ():
            sequence.calm_until -= more
    return low


def _take_rows(cell: Cell, worker: Worker, report: Reported, fresh: list[Sequence]) -> list[int]:
    """Rows of beams, each in the place of a token; returns the tokens per slot with them, for what the steps cost."""
    counts = list(report.counts)
    places = {slot: at for at, slot in enumerate(report.slots)}
    for row in report.beam_rows:
        sequence = worker.sequences.get(row.seq)
        if fault := beams.row_fault(sequence, row):
            raise ProtocolError(fault)
        if sequence is None or sequence.slot not in places:
            raise ProtocolError(f"seq {row.seq} offers continuations without having advanced")
        counts[places[sequence.slot]] += 1
        if sequence.first_token_us < 0:
            sequence.first_token_us = cell.now_us
            fresh.append(sequence)
            _first_token(cell, worker, sequence)
        beams.take(sequence, row)
    return counts


def _is_calm(sequence: Sequence) -> bool:
    """Until its next full block each token of it is only counted, delivered and charged."""
    choice = sequence.choice
    return (
        choice.phase is _RUNNING
        and sequence.first_token_us >= 0
        and choice.request.logprobs < 0
        and choice.request.beams is None
        and not (sequence.behind or sequence.handoff is not None or sequence.group)
    )


def _prefilled(sequence: Sequence, computed: int) -> int:
    """Positions that a sequence without a token computed itself on its way to `computed`."""
    if sequence.unpaid_blocks and not sequence.computed_len:
        # a sibling's prompt was computed by its leader
        return max(1, computed - sequence.split_len) if sequence.split_len else 1
    own = computed - sequence.computed_len
    if sequence.join_base and computed > sequence.join_base and not sequence.wait_xfer:
        own -= sequence.join_tokens  # a load brought those
        sequence.join_base = sequence.join_tokens = 0
    return own


def _first_token(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """The first token of a residency has come, and its prefill is over for whoever shares it."""
    choice = sequence.choice
    request = choice.request
    if request.handoff is not None and sequence.handoff is None:
        handoff.arrived(cell, worker, sequence)
    if choice.phase is Phase.RUNNING and request.first_token_us < 0:
        request.first_token_us = cell.now_us
    for member in sequence.group:
        member.group = ()


def _index_full_blocks(cell: Cell, worker: Worker, sequence: Sequence, labels: Label) -> None:
    """Offers every block wholly below computed_len to the index: a chunk's at once where they end one of its runs."""
    if not cell.policy.prefix_cache:
        return
    choice, size, index = sequence.choice, worker.block_tokens, worker.index
    full = sequence.computed_len // size
    if choice.request.beams is not None:
        full = min(full, len(choice.request.prompt_keys))
    while sequence.walked < full:
        at = sequence.walked
        link = choice.link(at, size) if full == at + 1 else None
        if link is not None:  # a decode has filled a block
            parent: bytes | None = link[0]
            keys = [link[1]]
        else:
            keys = choice.keys(max(0, at - 1), full, size)
            if not keys:
                sequence.walked = full
                return
            parent = keys.pop(0) if at else None
        if parent is not None and parent not in index.block_of:
            # its block there was a private copy, and the indexed one is gone: now it can be indexed itself
            sequence.walked = at - 1
            continue
        blocks = sequence.blocks[at:full]
        if len(keys) == 1 or not index.add_run(keys, blocks, parent, cell.now_us):
            del keys[1:], blocks[1:]
            if not index.add(keys[0], blocks[0], parent, cell.now_us):
                blocks = []
        if blocks:
            _label(cell, worker, choice.request, keys, blocks, parent, labels)
        computing = worker.computing
        for key in keys if computing else ():
            if computing.get(key) is sequence:
                del computing[key]
                cell.admission_due = True
        sequence.walked = at + len(keys)


def _label(
    cell: Cell,
    worker: Worker,
    request: Request,
    keys: list[bytes],
    blocks: list[int],
    parent: bytes | None,
    labels: Label,
) -> None:
    """Blocks of a chain were indexed: the worker is told their names, so that its Hello can bring them back."""
    if wishes.indexed(cell, worker, request, keys, parent):
        labels.block_ids += blocks
        labels.keys += keys
        labels.parents.append(parent or NO_PARENT)
        labels.parents += keys[:-1]


def _index_loaded(cell: Cell, worker: Worker, transfer: Transfer, ok: int, labels: Label) -> None:
    """The content is whole whatever became of the sequence; the transfer still holds the blocks here."""
    owner = transfer.owner
    choice = transfer.sequence.choice if transfer.sequence is not None else None
    if choice is None and owner is not None and owner.choices:
        choice = owner.choices[0]
    if choice is None or not cell.policy.prefix_cache or not choice.request.cacheable(worker.block_tokens):
        return
    parent = choice.key(transfer.base_blocks - 1, worker.block_tokens) if transfer.base_blocks else None
    for block, key in zip(transfer.blocks[:ok], transfer.keys[:ok], strict=True):
        if worker.index.add(key, block, parent, cell.now_us):
            _label(cell, worker, choice.request, [key], [block], parent, labels)
        parent = key


def _end_transfer(cell: Cell, worker: Worker, transfer: Transfer, done: TransferDone, labels: Label) -> None:
    """A transfer's hold ends; a load moves the sequence's start to what really came."""
    ok = min(done.ok_blocks, len(transfer.blocks))
    directory = cell.fleet.directory_of(worker)
    if not transfer.abandoned:
        _learn_link(worker, transfer, done)
    own_fault = not any(source.first == 0 for source in transfer.sources)  # else a peer was asked for the first block
    late = cell.now_us - transfer.started_us >= cell.policy.load_limit_us
    if directory is not None and not ok and late and own_fault and not transfer.abandoned:
        directory.stuck(cell.now_us)
    if transfer.kind == "offload":
        worker.offloads_in_flight -= transfer.purpose == "write-behind"
        cell.counters["offloaded_blocks"] += ok
        technique = "offload" if transfer.purpose == "write-behind" else transfer.purpose
        who = who_is(transfer.request) if transfer.request is not None else NOBODY
        cell.ledger.book(technique, who, cost_ms=done.transfer_us / 1000, cost_bytes=done.bytes)
        if directory is not None:
            directory.stored(transfer.keys[:ok])
        if transfer.purpose == "write-behind":
            entries.written_behind(cell, transfer.keys[:ok], done)
        drop.arrived(cell, transfer)
        handoff.exported(cell, transfer, ok, done.bytes)
    else:
        if transfer.purpose == "chunk":
            chunk_loads.arrived(cell, worker, transfer, done, ok, labels)
        else:
            _index_loaded(cell, worker, transfer, ok, labels)
        if transfer.sequence is not None:
            _end_load(cell, worker, transfer, transfer.sequence, done, ok)
        handoff.preloaded(cell, transfer, ok)
        if directory is not None and not transfer.abandoned:
            note_missed(directory, cell.fleet.stores, transfer.sources, transfer.keys, ok, cell.now_us)
    for block in reversed(transfer.blocks):
        worker.pool.drop_transfer(block)
    cell.admission_due = True
    if (owner := copies.ended(transfer)) is not None:
        end_hold(cell, owner)


def _end_load(cell: Cell, worker: Worker, transfer: Transfer, sequence: Sequence, done: TransferDone, ok: int) -> None:
    request = sequence.choice.request
    loaded_tokens = ok * worker.block_tokens
    elapsed_us = cell.now_us - transfer.started_us
    cell.counters["loaded_blocks"] += ok
    cell.counters["tier_hit_tokens"] += loaded_tokens
    if not request.prefill_us:  # the worker's own figure, which comes with the first token, is the closer one
        request.kv_load_us += elapsed_us
    leased_byte_s = done.bytes * elapsed_us / 1e6
    if done.tier == "nvme":
        request.cost.nvme_byte_s += leased_byte_s
    else:  # DRAM proper, or on its way below it
        request.cost.dram_byte_s += leased_byte_s
    entries.load_ended(cell, worker, sequence, done, ok, transfer.purpose)
    if worker.sequences.get(sequence.seq) is sequence:
        cached = sequence.cached_len + loaded_tokens
        sequence.wait_xfer = 0
        request.cost.saved_tier_tokens += loaded_tokens
        sequence.cached_len = cached
        if sequence.computed_len < sequence.join_base:  # it joins them when it has computed what is before them
            sequence.join_tokens = loaded_tokens
        else:
            sequence.computed_len = max(sequence.computed_len, (transfer.base_blocks + ok) * worker.block_tokens)
            sequence.walked = max(sequence.walked, _indexed_run(worker, transfer, sequence, ok))
            sequence.join_base = sequence.join_tokens = 0
        worker.note_behind(sequence)
        # a short load ends in the very report that brings the first token
        if request.cached_tokens >= 0 and (request.first_token_us < 0 or request.first_token_us == cell.now_us):
            before = request.cached_tokens
            request.cached_tokens = min(max(before, cached), len(request.prompt))
            if done.tier and request.cached_tokens > before:
                by_tier = request.cached_by_tier
                by_tier[done.tier] = by_tier.get(done.tier, 0) + request.cached_tokens - before
    else:
        cell.counters["wasted_load_blocks"] += ok


def _indexed_run(worker: Worker, transfer: Transfer, sequence: Sequence, ok: int) -> int:
    """Leading blocks that need not be offered to the index any more: a load's are there, if what is before them is."""
    return transfer.base_blocks + ok if sequence.walked >= transfer.base_blocks else sequence.walked


def _learn_link(worker: Worker, transfer: Transfer, done: TransferDone) -> None:
    """Loads tell how fast the tiers are; until there is one, what is copied out does."""
    took_us = done.transfer_us + done.deserialize_us
    if done.tier == REMOTE_TIER:
        worker.peer_link.observe(done.bytes, done.lookup_us, took_us)
    elif transfer.kind == "load":
        worker.link.observe(done.bytes, done.lookup_us, took_us)
        worker.loads_seen = True
    elif not worker.loads_seen:
        worker.link.observe(done.bytes, done.lookup_us, took_us)
    if transfer.kind == "load" and not done.bytes and took_us >= OVERDUE * worker.link.predict_us(worker.block_bytes):
        worker.link.observe(worker.block_bytes, done.lookup_us, took_us)  # not one block came in that time
    if transfer.kind == "load" and done.tier and done.bytes:
        link = worker.tier_links.get(done.tier)
        if link is None:
            link = worker.tier_links[done.tier] = LinkCosts(done.bytes / max(1, took_us), float(done.lookup_us))
        link.observe(done.bytes, done.lookup_us, took_us)


def _count(cell: Cell, worker: Worker, report: Reported, context_tokens: int, since_us: int) -> None:
    counters = cell.counters
    worker.steps = max(worker.steps, report.step)
    if report.steps:
        worker.stepped_us = cell.now_us
    counters["steps"] += report.steps
    counters["decode_tokens"] += report.decode_seqs * report.steps
    if worker.evicted:
        counters["evicted_blocks"] += worker.take_evicted()
    if report.prefill_tokens:
        counters["prefill_tokens"] += report.prefill_tokens
        share = worker.costs.prefill_share(report.steps, report.prefill_tokens, report.decode_seqs, context_tokens)
        counters["prefill_busy_us"] += report.wall_us * share
        counters["decode_busy_us"] += report.wall_us * (1 - share)
    else:
        counters["decode_busy_us"] += report.wall_us
    beside = report.decode_seqs if report.steps else 0  # without a step nothing is held against its prediction
    if beside and report.prefill_tokens:
        counters["mixed_steps"] += report.steps
        alone_us = worker.costs.predict_step_us(0, report.decode_seqs, context_tokens)
        # the gap as far as it is seen here: the step, or what lay between two reports that follow each other closely
        between_us = since_us if since_us < 2 * report.wall_us else 0
        worker.pace.felt(max(report.wall_us, between_us) / report.steps, alone_us)
    elif beside and worker.store_id and len(host := cell.fleet.of_host(worker.store_id)) > 1:
        predicted_us = report.steps * worker.costs.predict_step_us(0, report.decode_seqs, context_tokens)
        cell.neighbours.observe(worker, host, report.wall_us / predicted_us)
    adjust_budget(cell, worker, report.decode_seqs, context_tokens)
    if report.slots or report.transfers_done or report.released or report.finishes:
        worker.last_progress_us = cell.now_us
    worker.costs.observe(report.wall_us, report.steps, report.prefill_tokens, report.decode_seqs, context_tokens)


def _compare_live(worker: Worker, report: Reported) -> None:
    """The worker's own list against ours, as of the last order that it had applied then."""
    live = set(report.live_seqs or ())
    unknown = live - worker.sequences.keys()
    if unknown:
        raise ProtocolError(f"the worker runs sequences that were released: {sorted(unknown)[:4]}")
    applied = report.orders_applied
    if applied > worker.ordered + len(worker.orders):
        raise ProtocolError(f"the worker applied {applied} orders and was given {worker.ordered}")
    for sequence in worker.sequences.values():
        if sequence.seq not in live and sequence.order_number <= applied:
            raise ProtocolError(f"the worker lost {sequence!r} without a release")
    transfers = set(report.live_transfers or ())
    for transfer in worker.transfers.values():
        if transfer.xfer_id not in transfers and transfer.order_number <= applied:
            raise ProtocolError(f"the worker lost transfer {transfer.xfer_id} without transfer_done")
