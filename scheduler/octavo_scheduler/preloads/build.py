"""How a preload comes to be and goes: computed by a request of its own, pinned where that ran, swapped at its end.

Until the swap what served before serves on; requests that run on its blocks hold them until they end. When the worker
of a preload is lost, or a new scheduler starts, it is pinned where its blocks still are, else loaded from a store or
computed again; `source` says which.
"""

from __future__ import annotations

from octavo.keys import extend_keys, root_of

from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.orders import Keep
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.preloads.book import Preload
from octavo_scheduler.preloads.cache_events import CacheResult, PreloadPinned, PreloadPut, PreloadRemoved, PreloadUsed
from octavo_scheduler.preloads.drop import drop_below
from octavo_scheduler.preloads.quota import over_quota, too_many
from octavo_scheduler.preloads.rule import CacheRule
from octavo_scheduler.request import Choice, Request

RETRY_US = 5 * SECOND_US
"""A preload that could not be built, or whose pin had to yield, is tried again after this long."""
PIN_PRIORITY = 8
"""Of preloads among pins: those of single requests yield first."""


def refusal(cell: Cell, tenant: str, name: str, tokens: int) -> str:
    """Why a preload of this size cannot be; empty: it can."""
    policy, workers = cell.policy, cell.fleet.accepting()
    if not policy.prefix_cache:
        return "cache.prefix is off, so nothing is kept; switch it on"
    if not workers:
        return "no worker is ready; retry"
    if why := too_many(cell, tenant, name):
        return why
    block_tokens = workers[0].block_tokens
    if tokens < block_tokens:
        return f"texts: {tokens} tokens are less than one block of {block_tokens}; put them into the requests"
    longest = max(worker.hello.max_model_len for worker in workers)
    most = longest - policy.preload_reserve_tokens
    if tokens > most:
        return (
            f"texts: {tokens} tokens exceed the {most} that a preload may have: the context of {longest} less "
            f"cache.preload_reserve_tokens {policy.preload_reserve_tokens}; shorten the documents"
        )
    why = over_quota(cell, tenant, tokens // block_tokens, besides=name)
    if not why and (refused := cell.tenants.refusal(tenant, tokens, cell.now_us)) is not None:
        why = refused.message
    return f"texts: {why}" if why else ""


def put(cell: Cell, event: PreloadPut) -> None:
    """Begins to build; the same content again changes nothing, but for another that was to replace it."""
    book, name = cell.caching.book, (event.tenant, event.name)
    preload = Preload(
        event.tenant,
        event.name,
        event.version,
        event.form,
        event.salt,
        event.prompt,
        event.mac,
        event.sampling,
        event.generation,
        cell.now_us,
        pinned=event.pinned,
        tag=event.tag,
        restored=event.restored,
        root_key=event.root_key,
    )
    active = book.active.get(name)
    if active is not None and active.state == "ready" and _same(active, preload):
        _withdraw(cell, book.pending.pop(name, None))
        return
    pending = book.pending.get(name)
    if pending is not None and pending.state == "building" and _same(pending, preload):
        return  # a repeat waits for the same computation
    _withdraw(cell, book.pending.pop(name, None))
    book.pending[name] = preload
    if not event.restored:
        cell.tenants.spend(event.tenant, len(event.prompt), cell.now_us)
    build(cell, preload)


def _same(a: Preload, b: Preload) -> bool:
    return (a.prompt, a.mac, a.salt, a.form) == (b.prompt, b.mac, b.salt, b.form)


def build(cell: Cell, preload: Preload) -> None:
    """Pins it where all of it is indexed, else asks for its computation. Without a worker it waits for `tend`."""
    workers = cell.fleet.accepting()
    preload.started_us = cell.now_us
    preload.retry_us = cell.now_us + RETRY_US
    if not workers:
        return
    if preload.restored and preload.root_key not in (b"", workers[0].hello.root_key):
        preload.state, preload.pinned = "failed", False
        preload.why = "it was made for another model or KV layout; preload it again"
        return
    longest = max(worker.hello.max_model_len for worker in workers)
    if longest and len(preload.prompt) >= longest:  # a restart with other settings, or only smaller workers are left
        preload.state, preload.pinned = "failed", False
        preload.why = f"its {len(preload.prompt)} tokens exceed the context of {longest}; preload less"
        return
    _make_keys(preload, workers[0])
    for worker in workers:
        if worker.index.match_len(preload.keys, len(preload.keys)) == len(preload.keys):
            preload.source = {"hbm": len(preload.keys) * worker.block_tokens}
            _built(cell, preload, worker)
            return
    request = Request(
        request_id=f"preload/{preload.name}/{preload.version}",
        tenant=preload.tenant,
        prompt=preload.prompt,
        prompt_keys=list(preload.keys),
        namespace_root=preload.namespace_root,
        namespace_tag=preload.tag,
        sampling=preload.sampling,
        logprobs=-1,
        max_tokens=1,
        arrival_us=cell.now_us,
        submitted_us=cell.now_us,
        waiting_since_us=cell.now_us,
        slo_class=cell.policy.default_slo_class,
        cache=CacheRule(generation=preload.generation, preload=preload.name),
    )
    request.choices.append(Choice(request, 0, 0, request.prompt[:0]))
    preload.request = request
    cell.caching.book.by_request[request] = preload
    cell.queue.push(request)
    cell.admission_due = True


def _make_keys(preload: Preload, worker: Worker) -> None:
    preload.root_key = worker.hello.root_key
    preload.namespace_root = root_of(preload.root_key, preload.mac, preload.salt)
    preload.keys = extend_keys(preload.namespace_root, preload.prompt, worker.block_tokens)


def ended(cell: Cell, request: Request) -> None:
    """The request that computed a preload came to its outcome."""
    preload = cell.caching.book.by_request.pop(request, None)
    if preload is None or preload.request is not request:
        return  # it was withdrawn meanwhile
    preload.request = None
    sequence = request.choices[0].sequence if request.choices else None
    worker = cell.fleet.workers.get(sequence.epoch) if sequence is not None else None
    outcome = request.outcome
    if outcome is None or outcome.outcome != "finished" or worker is None:
        why = outcome.message or outcome.reason if outcome is not None else ""
        preload.state, preload.why = "failed", why or "its worker was lost"
        preload.retry_us = cell.now_us + RETRY_US
        if not preload.restored:  # whoever asked for it is told, and may ask again
            cell.caching.book.drop_pending(preload)
        return
    found = max(0, request.cached_tokens)
    preload.source = dict(request.cached_by_tier)
    if (untold := found - sum(preload.source.values())) > 0:
        preload.source["store"] = untold
    preload.source["computed"] = len(request.prompt) - found
    cell.ledger.book("preload", who_is(request), cost_ms=request.cost.prefill_us / 1000)
    _built(cell, preload, worker)


def _built(cell: Cell, preload: Preload, worker: Worker) -> None:
    """Pins it and puts it in force in this very event."""
    book, name = cell.caching.book, (preload.tenant, preload.name)
    _pin(cell, preload, worker)
    preload.state, preload.why, preload.epoch = "ready", "", worker.epoch
    preload.build_us = cell.now_us - preload.started_us
    cell.counters["preloads_built"] += 1
    cell.counters["preloads_restored"] += preload.restored
    if book.pending.get(name) is preload:
        del book.pending[name]
        before = book.active.get(name)
        book.active[name] = preload
        if before is not None:
            cell.counters["preloads_swapped"] += 1
            preload.uses = before.uses
            _release(cell, before, kept=set(preload.keys))


def _pin(cell: Cell, preload: Preload, worker: Worker) -> None:
    if preload.pinned:
        preload.pin = worker.index.pin(preload.keys, 0, PIN_PRIORITY)
        if worker.store_id in cell.fleet.stores:
            cell.effects.stores.append((worker.store_id, Keep(preload.keys, True)))
        if len(preload.pin.blocks) < len(preload.keys):  # some went private: the next look makes it whole
            preload.retry_us = cell.now_us + RETRY_US


def _unpin(cell: Cell, preload: Preload) -> None:
    worker = cell.fleet.workers.get(preload.epoch)
    if preload.pin is not None and worker is not None:
        worker.index.unpin(preload.pin)
    preload.pin = None


def _let_go(cell: Cell, preload: Preload) -> None:
    """It is not to be pinned any more: neither in a pool nor in a store."""
    _unpin(cell, preload)
    if preload.keys:
        cell.effects.stores += [(store_id, Keep(preload.keys, False)) for store_id in cell.fleet.stores]


def keep_in(cell: Cell, store_id: str) -> None:
    """A store came: what is pinned shall outlive evictions and restarts there too."""
    for preload in cell.caching.book:
        if preload.held_blocks:
            cell.effects.stores.append((store_id, Keep(preload.keys, True)))


def _withdraw(cell: Cell, preload: Preload | None) -> None:
    """Its computation, if one is under way, runs to its end for nobody; one that has not begun never does."""
    if preload is not None and (request := preload.request) is not None:
        cell.caching.book.by_request.pop(request, None)
        preload.request = None
        if all(choice.sequence is None for choice in request.choices):
            cell.queue.remove(request)


def _release(cell: Cell, preload: Preload, kept: set[bytes]) -> int:
    """Ends its pin and throws its blocks out, those of `kept` apart; how many left the pools."""
    _withdraw(cell, preload)
    _let_go(cell, preload)
    own = [key for key in preload.keys if key not in kept and not _kept_by_other(cell, preload, key)]
    return drop_below(cell, own[0]) if own else 0


def _kept_by_other(cell: Cell, preload: Preload, key: bytes) -> bool:
    return any(key in item.keys for item in cell.caching.book if item is not preload and item.held_blocks)


def remove(cell: Cell, event: PreloadRemoved) -> None:
    """Forgets it and its blocks."""
    book, name = cell.caching.book, (event.tenant, event.name)
    result = cell.caching.result = CacheResult()
    for preload in (book.pending.pop(name, None), book.active.pop(name, None)):
        if preload is not None:
            result.found = True
            result.blocks += _release(cell, preload, set())


def set_pinned(cell: Cell, event: PreloadPinned) -> None:
    """Pins it again, computing what is gone, or lets its blocks go when room is needed."""
    preload = cell.caching.book.named(event.tenant, event.name)
    cell.caching.result = CacheResult(found=preload is not None)
    if preload is None:
        return
    preload.pinned = event.pinned
    if not event.pinned:
        _let_go(cell, preload)
    elif not preload.held_blocks and preload.request is None:
        preload.state = "building"
        cell.tenants.spend(event.tenant, len(preload.prompt), cell.now_us)
        build(cell, preload)


def evict(cell: Cell, preload: Preload) -> int:
    """Throws its blocks out; it stays known, unpinned, and comes back when it is used or pinned."""
    preload.pinned = False
    gone = _release(cell, preload, set())
    preload.state = "evicted"
    return gone


def used(cell: Cell, event: PreloadUsed) -> None:
    """A request is about to name it."""
    preload = cell.caching.book.active.get((event.tenant, event.name))
    if preload is not None:
        preload.uses += 1


def tend(cell: Cell) -> None:
    """Once a second, and when a worker came: whatever should be pinned and is not is built again."""
    workers = cell.fleet.workers
    for preload in cell.caching.book:
        if preload.request is not None:
            continue
        lost = preload.state == "ready" and preload.epoch not in workers
        short = preload.pinned and preload.state == "ready" and preload.held_blocks < len(preload.keys)
        if lost:
            preload.pin = None
        due = lost or not preload.keys or cell.now_us >= preload.retry_us
        if preload.pinned and due and (lost or short or preload.state in ("building", "failed")):
            _unpin(cell, preload)
            preload.state = "ready" if short and not lost else "building"
            build(cell, preload)


def withdraw_all(cell: Cell, tenant: str) -> None:
    """Before the tenant's blocks are thrown out: no computation of a preload brings old ones back."""
    for preload in cell.caching.book:
        if preload.tenant == tenant:
            if preload.request is not None:
                preload.request.prompt_keys, preload.request.namespace_root = [], b""
            _withdraw(cell, preload)
            _unpin(cell, preload)


def rekey(cell: Cell, tenant: str, mac: bytes, generation: int) -> int:
    """The tenant's namespace was rotated: its preloads are computed again under the new one; how many."""
    count = 0
    for preload in cell.caching.book:
        if preload.tenant == tenant:
            preload.mac, preload.generation, preload.keys = mac, generation, []
            preload.state = "building" if preload.pinned else "evicted"
            count += preload.pinned
            if preload.pinned:
                build(cell, preload)
    return count
