"""Admission by KV budget: what a residency needs now, and what the running ones are expected to need still.

Keep: free blocks >= reserved growth of what runs + growth of the newcomer + margin. Growth is reserved from a predicted
output length, not from max_tokens; a request on an idle worker may use the margin, so one that fits exactly runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from octavo_scheduler.beams.search import common_length
from octavo_scheduler.books.path import NOTHING_TO_LOAD, Path, Way
from octavo_scheduler.books.paths import choose_path, link_wait_us, work_of
from octavo_scheduler.fleet import Shape, Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.orders import LoadSource
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads.blend_parts import Blend
from octavo_scheduler.reach import Reach
from octavo_scheduler.request import Choice, Request, Sequence


@dataclass(slots=True)
class Plan:
    """How one choice, or one n > 1 group, would start on a worker. Blocks are not taken yet."""

    worker: Worker
    choices: list[Choice]  # the leader first
    keys: list[bytes]  # of the leader's full blocks
    matched: list[int]  # indexed blocks to share
    load_keys: list[bytes]  # the next blocks, from the kvstore
    table_blocks: int  # length of the leader's first block table
    shared_blocks: int  # full prompt blocks that siblings share with the leader
    free_needed: int
    growth: int  # blocks expected later
    worst: int  # blocks that may be asked for later, at most
    target: Worker | None = None  # who decodes after this worker's prefill
    waits: bool = False  # it does not fit yet, and is better than any that does
    fits: bool = False  # it was found to, in this event
    spreads: bool = False  # another worker holds more of the prompt
    sources: list[LoadSource] = field(default_factory=list)  # of load_keys that only other hosts hold
    path: Path | None = None  # how it gets what a kvstore holds of it
    other_way: bool = False  # its path is not the one that was predicted to be the best (books/trial.py)
    routed_us: float = 0.0  # predicted time to the first token on the least busy worker, less that on this one
    spread_us: float = 0.0  # ... on the one that holds most of the prompt, less that on this one
    spread_tokens: int = 0  # that this one computes and that one has
    blend: Blend | None = None  # chunks that are reused at other positions
    split_len: int = 0  # tokens that the leader computes for all, of beams that go on where they were; 0: all it has

    @property
    def head_blocks(self) -> int:
        """Blocks between `matched` and the load that it computes meanwhile."""
        return self.path.head if self.path is not None else 0

    @property
    def sibling_blocks(self) -> int:
        """Own blocks of each sibling."""
        return self.table_blocks - self.shared_blocks

    def uncached_tokens(self) -> int:
        """Tokens to prefill when every load succeeds."""
        if self.blend is not None:
            return self.blend.computed(self.choices[0].length)
        cached = (len(self.matched) + len(self.load_keys)) * self.worker.block_tokens
        length = self.choices[0].length
        tails = (len(self.choices) - 1) * (length - self.split_len) if self.split_len else 0
        return length - cached + tails


def blocks_for(positions: int, block_tokens: int) -> int:
    """Blocks that cover `positions` KV positions."""
    return -(-positions // block_tokens)


def max_positions(request: Request) -> int:
    """KV positions a choice can ever need: the last token's KV is never written."""
    return max(1, len(request.prompt) + request.max_tokens - 1)


def least_blocks(prompt_tokens: int, max_tokens: int, choices: int, block_tokens: int, beams: bool = False) -> int:
    """Blocks without which a request can never run: one choice to its end, and the start of its group; all beams to their end."""
    positions = max(1, prompt_tokens + max_tokens - 1)
    alone = blocks_for(positions, block_tokens)
    if choices == 1:
        return alone
    if beams:
        shared = min(prompt_tokens // block_tokens, alone)
        return shared + choices * (alone - shared)
    start = blocks_for(min(prompt_tokens + 1, positions), block_tokens)
    shared = min(prompt_tokens // block_tokens, start)
    return max(alone, shared + choices * (start - shared))


def can_ever_hold(shape: Shape, prompt_tokens: int, max_tokens: int, choices: int, beams: bool = False) -> bool:
    """Whether a worker of this shape can run such a request once it has nothing else to do."""
    need = least_blocks(prompt_tokens, max_tokens, choices, shape.block_tokens, beams)
    return need <= shape.usable_blocks and choices <= shape.max_seqs


def size_of(request: Request, choices: int) -> tuple[int, int, int, bool]:
    """What decides where so many choices of it can ever run: the arguments of `can_ever_hold` behind the shape."""
    return len(request.prompt), request.max_tokens, choices, request.beams is not None


MAX_PREEMPTIONS = 4
"""A choice that was preempted so often is seated to its end the next time, and is nobody's victim any more."""


def is_protected(choice: Choice) -> bool:
    """Whether it was preempted as often as any may be."""
    return choice.preemptions >= MAX_PREEMPTIONS


def next_group(waiting: list[Choice]) -> list[Choice]:
    """The choices to admit together: all that have no output yet (one prompt, one prefill), else the first.

    A protected one goes alone: several of them, each seated to its end, might never fit. Beams go together, wherever they are.
    """
    if len(waiting) == 1 or waiting[0].request.beams is not None:
        return waiting
    fresh = [choice for choice in waiting if not choice.output and not is_protected(choice)]
    return fresh if len(fresh) > 1 else waiting[:1]


def usable_keys(choice: Choice, block_tokens: int, policy: Policy) -> list[bytes]:
    """Keys of the choice's full blocks that leave at least one token to compute; empty when caching is off."""
    request = choice.request
    prompt, known = len(request.prompt), len(request.prompt_keys)
    limit = (prompt + len(choice.output) - 1) // block_tokens
    if not limit or not policy.prefix_cache:
        return []
    if limit <= known == prompt // block_tokens:
        return request.prompt_keys[:limit]
    if not request.cacheable(block_tokens):
        return []
    choice.key(limit - 1, block_tokens)
    return (request.prompt_keys + choice.output_keys)[:limit]


def load_path(
    worker: Worker,
    keys: list[bytes],
    matched: int,
    policy: Policy,
    reach: Reach | None,
    length: int = 0,
    *,
    now_us: int = 0,
    overlap: bool = False,
    forced: Way | None = None,
    other_way: bool = False,
) -> Path:
    """How a prompt of `length` tokens (0: a token more than its keys) gets what follows the `matched` blocks.

    Loaded is all that the host's kvstore and its peers hold, or what it holds itself, whichever is sooner there, or
    nothing. `forced`: all of it goes that way, whatever is predicted; what was handed over is loaded, as that it pays was
    weighed before it was prefilled elsewhere. `other_way`: a trial does what the prediction does not say.
    """
    near, whole = reach.run(keys, matched) if reach is not None else (0, 0)
    if not whole:
        return NOTHING_TO_LOAD
    work = work_of(worker, policy)
    length = length or len(keys) * worker.block_tokens + 1
    wait_us = link_wait_us(worker, now_us)

    def load_us(first: int, count: int) -> float:
        close = max(0, min(near, first + count) - first)
        return wait_us + load_time_us(worker, close, count - close)

    forced = forced or (None if policy.load_path == "auto" else cast(Way, policy.load_path))
    best: Path | None = None
    for run in (whole,) if forced or whole == near else (whole, near):
        path = choose_path(work, length, matched, run, load_us, overlap=overlap, forced=forced)
        if best is None or path.first_token_us < best.first_token_us:
            best = path
    assert best is not None
    if other_way:
        way: Way = "load" if best.way == "recompute" else "recompute"
        best = choose_path(work, length, matched, whole, load_us, overlap=False, forced=way)
    return best


def make_plan(
    worker: Worker,
    choices: list[Choice],
    keys: list[bytes],
    policy: Policy,
    history: OutputHistory,
    reach: Reach | None,
    now_us: int = 0,
    forced: Way | None = None,
    other_way: bool = False,
) -> Plan:
    """What admitting `choices` (the leader first, with its usable keys) on `worker` takes. Changes nothing."""
    leader = choices[0]
    request = leader.request
    block_tokens, prompt, count = worker.block_tokens, len(request.prompt), len(choices)
    length = prompt + len(leader.output)
    matched = worker.index.match(keys, len(keys)) if keys and keys[0] in worker.index.block_of else []
    path, load_keys = NOTHING_TO_LOAD, []
    if reach is not None:
        path = load_path(
            worker,
            keys,
            len(matched),
            policy,
            reach,
            length,
            now_us=now_us,
            overlap=len(choices) == 1 and request.handoff is None and not request.swapped,
            forced="load" if request.handoff is not None else forced,
            other_way=other_way,
        )
        load_keys = keys[len(matched) + path.head : len(matched) + path.run]
    sources = reach.sources(load_keys) if reach is not None and reach.peers and load_keys else []
    positions = max(1, prompt + request.max_tokens - 1)  # max_positions and blocks_for, in line
    # one that was preempted too often is seated to its end: it never asks for a block again, so nobody need take its own
    if leader.preemptions >= MAX_PREEMPTIONS or length >= positions:
        table = -(-positions // block_tokens)
    else:
        table = -(-(length + 1) // block_tokens)
    split_len = split_length(choices) if count > 1 and leader.output else 0
    shared = min((split_len or prompt) // block_tokens, table) if count > 1 else table
    revived = worker.pool.count_cached(matched) if matched else 0
    need = table - len(matched) + (count - 1) * (table - shared) + revived
    version, output, _expected = request.foreseen
    if version != history.version:
        output = history.predict(request.tenant, request.max_tokens, prompt)
    target = -(-min(positions, max(prompt + output, length + 1)) // block_tokens)
    worst = count * (-(-positions // block_tokens) - table)
    growth = count * max(0, target - table)
    plan = Plan(
        worker,
        choices,
        keys,
        matched,
        load_keys,
        table,
        shared,
        need,
        growth,
        worst,
        None,
        False,
        False,
        False,
        sources,
        path,
        other_way,
    )
    plan.split_len = split_len
    return plan


def split_length(choices: list[Choice]) -> int:
    """Leading tokens of beams that are the same in all of them: the prompt, and what all have said alike."""
    return len(choices[0].request.prompt) + common_length([choice.output for choice in choices])


def load_time_us(worker: Worker, near: int, far: int) -> float:
    """Predicted time of loading `near` blocks from the host's own kvstore and `far` ones through it from its peers."""
    near_us = worker.link.predict_us(near * worker.block_bytes) if near else 0.0
    return near_us + (worker.peer_link.predict_us(far * worker.block_bytes) if far else 0.0)


def growth_of(sequence: Sequence, block_tokens: int, history: OutputHistory) -> int:
    """Blocks that a running sequence is still expected to need."""
    request = sequence.choice.request
    held = len(sequence.blocks)
    most = blocks_for(sequence.max_positions, block_tokens) - held
    prompt = len(request.prompt)
    predicted = prompt + history.predict(request.tenant, request.max_tokens, prompt)
    # past its prediction a sequence is expected to need one block more, until it cannot
    return max(min(1, most), min(most, blocks_for(predicted, block_tokens) - held))


def margin_blocks(worker: Worker, policy: Policy) -> int:
    """Blocks that admission leaves free."""
    return max(1, int(worker.pool.usable_blocks * policy.margin_fraction))


def fits(plan: Plan, policy: Policy, history: OutputHistory) -> bool:
    """Whether the plan can start now."""
    worker, pool = plan.worker, plan.worker.pool
    if len(plan.choices) > len(worker.free_slots) or worker.preempting:
        return False  # a newcomer could share blocks that a victim was chosen to give back
    free = pool.empty_blocks + pool.cached_blocks
    usable = pool.usable_blocks
    if not worker.sequences:
        return plan.free_needed <= free
    # shares that are already being computed by someone else cost nothing: free_needed counts new blocks only
    left = free - plan.free_needed - plan.growth - margin_blocks(worker, policy)
    if worker.promised:
        others = [request for request in worker.promised if request is not plan.choices[0].request]
        left -= sum(worker.promised[request] for request in others)
        if len(worker.free_slots) - sum(len(request.choices) for request in others) < len(plan.choices):
            return False
    if usable - free + plan.free_needed + worker.ungranted + plan.worst > policy.max_overcommit * usable:
        return False
    if left < 0 or worker.ungranted <= left:  # nobody can grow beyond its last position
        return left >= 0
    return sum(growth_of(sequence, worker.block_tokens, history) for sequence in worker.running()) <= left
