"""Tool pauses: a turn ends in a tool call, and the client comes back with a longer prompt, or does not.

A pause is announced with the request or by Pause, and begins when the turn is over and its blocks are released. Kept
blocks are held as a sequence's are, so nobody evicts them; they give way to sequences that would starve, and to a
request that waits for room when holding on has become the dearer choice. What is offloaded, or was dropped and is
still cached, is found by its keys: a resume is an ordinary admission that finds more.
"""

from __future__ import annotations

from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.events import Paused
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.exports import answering, order_exports
from octavo_scheduler.moves.pause import Decision, Pause
from octavo_scheduler.moves.pause_costs import Costs, pause_costs, scarcity
from octavo_scheduler.preloads import wishes
from octavo_scheduler.request import NO_PARENT, Choice, Request
from octavo_scheduler.tiers import Directory

MAX_OPEN = 4096


def announce(cell: Cell, event: Paused) -> str:
    """A client says that it pauses after a turn; what is done, or `later` while the turn runs, or `` for an unknown one."""
    request = cell.registry.find(event.tenant, event.request_id)
    if request is None or (request.outcome is not None and request.outcome.outcome != "finished"):
        return ""
    request.pause = (event.tool, event.expected_us)
    if request.outcome is None or any(choice.sequence is not None for choice in request.choices):
        return "later"
    known = cell.pauses.get(request.name)
    if known is not None and known.resumed_us < 0:
        _told_more(cell, known, event)
    begin(cell, request)
    known = cell.pauses.get(request.name)
    return known.decision if known is not None else "drop"


def begin(cell: Cell, request: Request) -> None:
    """The turn is over and holds nothing: decide what becomes of its blocks."""
    if request.pause is None or request.name in cell.pauses or not request.choices:
        return
    if not cell.uses("pause", request):
        return
    if request.outcome is None or request.outcome.outcome != "finished":
        return
    if any(choice.sequence is not None for choice in request.choices):
        return
    tool_name, given_us = request.pause
    found = _residence(cell, request.choices[0])
    if found is None:
        return
    worker, keys = found
    tool = cell.tools.of(request.tenant, tool_name)
    pause = Pause(request, tool_name, given_us, tool.expected_us(given_us), cell.now_us, worker, keys)
    cell.pauses[request.name] = pause
    cell.counters["pauses"] += 1
    if len(cell.pauses) > MAX_OPEN:
        _end(cell, next(iter(cell.pauses.values())), returned=False)
    _carry_out(cell, pause, _decide(cell, pause))


def _told_more(cell: Cell, pause: Pause, event: Paused) -> None:
    """The client says what it knows of a pause that has begun, by itself or by an earlier word: decided anew."""
    said = event.tool or pause.tool, event.expected_us or pause.given_us
    if said == (pause.tool, pause.given_us):
        return
    pause.tool, pause.given_us = said
    pause.expected_us = cell.tools.of(pause.tenant, pause.tool).expected_us(pause.given_us)
    decision = _decide(cell, pause)
    if decision != pause.decision and pause.worker.index.match_len(pause.keys, len(pause.keys)):  # some may be left
        _let_go(cell, pause)
        _carry_out(cell, pause, decision)


def _residence(cell: Cell, choice: Choice) -> tuple[Worker, list[bytes]] | None:
    """The worker that has the longest beginning of this choice, and the keys of what it has."""
    best: tuple[Worker, list[bytes]] | None = None
    for worker in cell.fleet.workers.values():
        size = worker.block_tokens
        full = (choice.length - 1) // size
        if not full or choice.key(full - 1, size) is None:
            continue
        keys = (choice.request.prompt_keys + choice.output_keys)[:full]
        held = worker.index.match_len(keys, len(keys))
        if held and (best is None or held > len(best[1])):
            best = worker, keys[:held]
    return best


def _costs(cell: Cell, pause: Pause, wanted: float) -> Costs:
    tool = cell.tools.of(pause.request.tenant, pause.tool)
    waited_us = pause.waited_us(cell.now_us)
    chance = tool.return_chance(waited_us, pause.expected_us)
    left_us = max(0.0, pause.gives_up_us() - cell.now_us)
    hold_us = chance * pause.expected_us + (1 - chance) * left_us
    worker = pause.worker
    directory = _store(cell, pause)
    return pause_costs(worker, pause.keys, directory, hold_us, chance, wanted, cell.policy.budget_alone)


def _store(cell: Cell, pause: Pause) -> Directory | None:
    """Where its blocks may be copied to."""
    return answering(cell, pause.worker) if pause.request.cache.goes_below else None


def _decide(cell: Cell, pause: Pause) -> Decision:
    policy = cell.policy.pause
    if policy == "keep":
        return "keep"
    if policy == "drop":
        return "drop"
    directory = _store(cell, pause)
    if policy == "offload":
        return "offload" if directory is not None else "drop"
    return _costs(cell, pause, scarcity(cell, pause.worker)).best()


def _carry_out(cell: Cell, pause: Pause, decision: Decision) -> None:
    worker = pause.worker
    pause.decision = decision
    cell.counters[f"pauses_{decision}"] += 1
    blocks = worker.index.match(pause.keys, len(pause.keys))
    if decision == "keep":
        for block in blocks:
            worker.pool.share(block)
            worker.offload_candidates.pop(block, None)
        pause.kept = blocks
        worker.kept[pause] = pause.kept
        return
    directory = _store(cell, pause)
    if decision == "offload" and directory is not None:
        _copy_out(cell, pause, blocks, directory)
    if decision == "drop":
        for block in blocks:
            worker.offload_candidates.pop(block, None)
    worker.index.sink(pause.keys)


def _copy_out(cell: Cell, pause: Pause, blocks: list[int], directory: Directory) -> None:
    parents = [NO_PARENT, *pause.keys]
    items = [
        (block, wishes.leaving(pause.worker, pause.request, key, parent, at))
        for at, (block, key, parent) in enumerate(zip(blocks, pause.keys, parents, strict=False))
        if key not in directory
    ]
    for block, _leaving in items:
        pause.worker.offload_candidates.pop(block, None)
    if order_exports(cell, pause.worker, pause.request, items, "pause"):
        pause.copied_us += pause.worker.link.predict_us(len(items) * pause.worker.block_bytes)


def _let_go(cell: Cell, pause: Pause) -> int:
    """Its kept blocks are cached from now on; returns how many nobody else holds."""
    kept, pause.kept = pause.kept, []
    pause.worker.kept.pop(pause, None)
    freed = pause.worker.pool.drop_all(reversed(kept))
    cell.admission_due = cell.admission_due or bool(freed)
    return freed


def _end(cell: Cell, pause: Pause, returned: bool) -> None:
    _let_go(cell, pause)
    del cell.pauses[pause.request.name]
    if not returned:
        cell.counters["pauses_without_return"] += 1
        cell.tools.of(pause.request.tenant, pause.tool).gone()


# -- pressure ----------------------------------------------------------------------------------------------------------


def give_way(cell: Cell, worker: Worker, blocks: int) -> int:
    """Running sequences need `blocks` that nobody can give: kept ones go, the cheapest to lose first; how many are free now."""
    freed = 0
    for pause in _cheapest_first(cell, worker):
        if freed >= blocks:
            break
        freed += _demote(cell, pause)
    return freed


def review(cell: Cell, worker: Worker, waiting: Request) -> bool:
    """A request waits for room: whatever is dearer to keep than to lose goes. Whether any kept blocks went.

    On a worker that runs nothing all but the request's own go: kept blocks alone must never hold anybody up for good.
    """
    if not worker.kept:
        return False
    idle = not worker.sequences and not worker.transfers
    went = 0
    for pause in _cheapest_first(cell, worker):
        own = pause.request.name == waiting.resumes
        dear = cell.policy.pause == "auto" and pause.resumed_us < 0 and _costs(cell, pause, 1.0).best() != "keep"
        if not own and (idle or dear):
            _demote(cell, pause)
            went += 1
    return went > 0


def yield_own(cell: Cell, worker: Worker, waiting: Request) -> bool:
    """A request waits for its tenant's share of the pool: what the tenant keeps there for another pause goes first.

    Whether any kept blocks went; each call ends one pause's, the cheapest to lose.
    """
    for pause in _cheapest_first(cell, worker):
        if pause.tenant == waiting.tenant and pause.request.name != waiting.resumes and pause.resumed_us < 0:
            _demote(cell, pause)
            return True
    return False


def _cheapest_first(cell: Cell, worker: Worker) -> list[Pause]:
    def loss_us(pause: Pause) -> float:
        costs = _costs(cell, pause, 1.0)
        lost = min(costs.drop, costs.offload if costs.offload is not None else costs.drop)
        return (lost - costs.keep) / max(1, len(pause.kept))

    return sorted((pause for pause in worker.kept if isinstance(pause, Pause)), key=loss_us)


def _demote(cell: Cell, pause: Pause) -> int:
    """From kept to offloaded or dropped, whichever is cheaper; how many blocks are free now, or when the copy has ended."""
    costs = _costs(cell, pause, 1.0)
    freed = _let_go(cell, pause)
    copied = costs.offload is not None and costs.offload < costs.drop
    _carry_out(cell, pause, "offload" if copied else "drop")
    cell.counters["pauses_demoted"] += 1
    return freed


def tick(cell: Cell) -> None:
    """Once a second: who was not expected any more is given up, what is kept is decided anew."""
    for pause in list(cell.pauses.values()):
        if pause.resumed_us >= 0:
            continue
        if cell.now_us >= pause.gives_up_us():
            _end(cell, pause, returned=False)
        elif (
            pause.kept
            and cell.policy.pause == "auto"
            and _costs(cell, pause, scarcity(cell, pause.worker)).best() != "keep"
        ):
            _demote(cell, pause)


def worker_lost(cell: Cell, worker: Worker) -> None:
    """Kept blocks went with their worker."""
    for pause in [pause for pause in cell.pauses.values() if pause.worker is worker]:
        pause.kept = []
        del cell.pauses[pause.request.name]
    worker.kept.clear()


# -- the client is back ------------------------------------------------------------------------------------------------


def resume(cell: Cell, request: Request, paused_id: str) -> None:
    """A request says whose turn it continues: what is kept of that waits for its admission."""
    pause = cell.pauses.get((request.tenant, paused_id))
    if pause is None or pause.resumed_us >= 0:
        return
    pause.resumed_us = cell.now_us
    cell.tools.of(request.tenant, pause.tool).returned_after(pause.waited_us(cell.now_us))
    request.resumes = pause.request.name


def admitted(cell: Cell, request: Request, worker: Worker, cached_tokens: int, loaded_tokens: int) -> None:
    """The resumed request has its blocks: the pause is over, and its worth is known."""
    pause = cell.pauses.get(request.resumes) if request.resumes is not None else None
    request.resumes = None
    if pause is None:
        return
    paused_tokens = len(pause.keys) * worker.block_tokens
    spared = min(paused_tokens, cached_tokens + loaded_tokens)
    held_us = pause.waited_us(cell.now_us) if pause.kept else 0
    costs = worker.costs
    saved_us = spared * costs.prefill_token_us
    cost_us = held_us * len(pause.kept) / worker.pool.usable_blocks * scarcity(cell, worker)
    cell.ledger.book(
        "pause",
        who_is(request),
        saved_ms=saved_us / 1000,
        held_ms=cost_us / 1000,
        hit_tokens=spared,
        saved_bytes=spared // worker.block_tokens * worker.block_bytes,
    )
    cell.switches.observe("pause", request, saved_us / 1000, (cost_us + pause.copied_us) / 1000)
    cell.counters["pauses_resumed"] += 1
    cell.counters["pause_spared_tokens"] += spared
    cell.fact(
        "pause",
        request,
        pause.started_us,
        pause.resumed_us,
        tool=pause.tool,
        decision=pause.decision,
        expected_ms=round(pause.expected_us / 1000),
        paused_request=pause.request.request_id,
        paused_tokens=paused_tokens,
        spared_tokens=spared,
        loaded_tokens=min(loaded_tokens, spared),
        saved_ms=round(saved_us / 1000),
    )
    _end(cell, pause, returned=True)


def forget(cell: Cell, request: Request) -> None:
    """A resumed request ended before its admission: the pause ends with it."""
    pause = cell.pauses.get(request.resumes) if request.resumes is not None else None
    request.resumes = None
    if pause is not None:
        _end(cell, pause, returned=True)
