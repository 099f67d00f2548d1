"""How a beam search lives in the core: its beams are the request's choices, and run, wait and leave together.

A beam is a sequence of its worker. After each of its steps it waits there, for which token it takes depends on all the others.
When the rows of all have come, those that do not go on become children of those that do: they give their full blocks back, share their
parent's, and get a copy of the partial one into the one that they have. So a fork takes no block, tables grow as any
sequence's, and what a search may need at most is what so many independent choices need.
"""

from __future__ import annotations

from array import array

from octavo_scheduler.batching import ahead_tokens
from octavo_scheduler.beams.rule import BeamRow
from octavo_scheduler.beams.search import BeamSearch, Move
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import accrue, split_shared
from octavo_scheduler.fleet import Worker
from octavo_scheduler.lifecycle import decide, finish_choice
from octavo_scheduler.orders import Fork
from octavo_scheduler.request import Outcome, Phase, Request, Sequence
from octavo_scheduler.residency import stop


def row_fault(sequence: Sequence | None, row: BeamRow) -> str:
    """Why a row contradicts the orders; empty when it does not."""
    if sequence is None:
        return f"seq {row.seq} offers continuations and is not here"
    if sequence.choice.request.beams is None:
        return f"seq {row.seq} offers continuations and is no beam"
    if row.length != sequence.length or sequence.computed_len != row.length:
        return f"seq {row.seq} offers continuations of {row.length} tokens: {sequence!r}"
    return "" if row.tokens else f"seq {row.seq} offers no continuation"


def take(sequence: Sequence, row: BeamRow) -> None:
    """A beam's row has come; one that is being stopped offers nothing any more."""
    search = sequence.choice.request.beams
    if search is not None and not sequence.stopping and sequence.choice.phase is Phase.RUNNING:
        search.rows[sequence.choice.index] = row


def go_on(cell: Cell, worker: Worker, rows: list[BeamRow]) -> None:
    """The searches that rows have come for: those that now have all of them go on, or end."""
    found = (worker.sequences[row.seq].choice.request for row in rows)
    for request in dict.fromkeys(found):
        search = request.beams
        if search is not None and request.live and len(search.rows) == search.width:
            _step(cell, worker, request, search)


def _step(cell: Cell, worker: Worker, request: Request, search: BeamSearch) -> None:
    outputs = [choice.output for choice in request.choices]
    last = len(request.prompt) + len(outputs[0]) + 1 >= request.max_len
    moves = search.step(outputs, last=last)
    request.losses = 0
    cell.counters["beam_steps"] += 1
    if moves:
        _fork(cell, worker, request, moves)
    else:
        _finish(cell, request, search)


def _fork(cell: Cell, worker: Worker, request: Request, moves: list[Move]) -> None:
    """Every beam takes its token; whoever goes on from another has its blocks and tokens from now on."""
    beams = [beam_of(request, at) for at in range(len(request.choices))]
    children = [move for move in moves if move.parent != move.beam]
    if children:
        for sequence in beams:
            accrue(sequence, worker.block_bytes, cell.now_us)
        for move in children:
            child, parent = beams[move.beam], beams[move.parent]
            _share(worker, child, parent)
            child.choice.output[:] = parent.choice.output
        split_shared(beams)
        cell.counters["beam_forks"] += len(children)
    low_water = ahead_tokens(worker, cell.policy)
    for move in moves:
        sequence = beams[move.beam]
        sequence.choice.output.append(move.token)
        sequence.length += 1
        worker.note_behind(sequence)
        covered = len(sequence.blocks) * worker.block_tokens
        if covered < sequence.length + low_water and covered < sequence.max_positions:
            worker.hungry[sequence] = None
    place = {move.beam: at for at, move in enumerate(moves)}
    worker.order(
        Fork(
            [beams[move.beam].seq for move in moves],
            [place[move.parent] for move in moves],
            [move.token for move in moves],
        )
    )


def beam_of(request: Request, at: int) -> Sequence:
    """The sequence of a beam that runs."""
    sequence = request.choices[at].sequence
    if sequence is None:
        raise ValueError(f"beam {at} of {request.request_id} does not run")
    return sequence


def _share(worker: Worker, child: Sequence, parent: Sequence) -> None:
    """The parent's full blocks take the place of the child's. What is behind them stays the child's own."""
    full = parent.computed_len // worker.block_tokens
    ours, theirs = child.blocks[:full], parent.blocks[:full]
    same = next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other), full)
    worker.pool.share_all(theirs[same:])
    child.choice.request.blocks_freed += worker.pool.drop_all(reversed(ours[same:]))
    child.blocks[same:full] = theirs[same:]


def _finish(cell: Cell, request: Request, search: BeamSearch) -> None:
    """The best hypotheses become what the choices have said; the other beams have said nothing."""
    shown = search.rule.shown
    if len(search.ended) < shown:  # of a tiny vocabulary, or where the model gives most of it no probability
        message = f"the search ended with {len(search.ended)} different answers for {shown}; ask for fewer beams"
        decide(cell, request, Outcome("failed", "too-few-continuations", message))
        return
    for choice in request.choices:
        best = search.ended[choice.index] if choice.index < shown else None
        choice.output = best.tokens if best is not None else array("I")
        choice.hypothesis = best
        if best is not None:
            finish_choice(cell, choice, best.reason, best.stop_token)
        else:
            choice.end()
        if choice.sequence is not None:
            stop(cell, choice.sequence, "finished")
    search.ended = []
    decide(cell, request, Outcome("finished"))
