"""A simulated worker's sequences, and runs of decodes that are only counted."""

from __future__ import annotations

from octavo.packing import unpack_u32
from octavo.step import SeqView

from octavo_scheduler.orders import (
    Admit,
)


class SimSequence(SeqView):
    """A residency: what `compose` reads, and what becomes of it. Lengths in tokens."""

    __slots__ = (
        "admitted_us",
        "end_len",
        "ends_by",
        "held",
        "hidden",
        "joins_len",
        "prompt_len",
        "request_id",
        "seq",
        "siblings",
        "spoke",
        "started_us",
        "unsplit",
        "wait_base",
        "wait_xfer",
    )

    def __init__(self, order: Admit, seq: int, slot: int, blocks: int, block_tokens: int, now_us: int) -> None:
        super().__init__(slot, order.rank, len(order.tokens) // 4, order.cached_len, blocks * block_tokens)
        self.seq = seq
        self.request_id = order.request_id
        self.prompt_len = order.prompt_len
        said = order.prompt_len + unpack_u32(order.sampling)[0]
        self.end_len = min(said, order.max_len)
        if order.stop_after:
            self.end_len = min(self.end_len, len(order.tokens) // 4 + order.stop_after)
        self.ends_by = "length" if said >= order.max_len or self.end_len < said else "stop"
        self.wait_xfer = order.wait_xfer
        self.wait_base = order.wait_base
        self.unsplit = False  # its leader still prefills for it
        self.held = False  # an Update paused it
        self.joins_len = 0  # a load has ended that brought what lies between wait_base and here
        # it computes up to where a load begins meanwhile: positions behind that are kept from it until it has joined
        self.hidden = 0
        if order.wait_xfer and order.wait_base > order.cached_len:
            self.hidden, self.capacity = self.capacity - order.wait_base, order.wait_base
        self.siblings: list[SimSequence] = []
        self.spoke = False
        self.admitted_us = now_us
        self.started_us = -1

    def settle_pause(self) -> None:
        """Something that it may wait for has changed."""
        self.paused = self.held or self.unsplit or (self.wait_xfer > 0 and self.computed >= self.wait_base)

    def grow(self, positions: int) -> None:
        """More blocks were granted."""
        if self.hidden:
            self.hidden += positions
        else:
            self.capacity += positions

    def join(self) -> None:
        """Goes on behind what a load brought, once all before that is computed."""
        if self.hidden and not self.wait_xfer and self.computed >= self.wait_base:
            self.computed = min(max(self.computed, self.joins_len), self.length - 1)
            self.capacity, self.hidden = self.capacity + self.hidden, 0


class Quiet:
    """Decodes of which none ends, runs short or is joined for `left` more steps: until then they are only counted.

    `computed` and `context` (their sum) are of the step to come; `passed` steps are not booked with the sequences yet.
    `low`: some are short of room, so that each step is reported at once.
    """

    __slots__ = ("computed", "context", "left", "low", "owners", "passed", "sequences", "slots")

    def __init__(self, sequences: list[SimSequence], left: int, low: bool) -> None:
        self.sequences = sequences
        self.left = left
        self.low = low
        self.passed = 0
        self.slots = [sequence.slot for sequence in sequences]
        self.owners = [sequence.request_id for sequence in sequences]
        self.computed = [sequence.computed + 1 for sequence in sequences]
        self.context = sum(self.computed)

    def pass_step(self) -> list[int]:
        """One more; returns where each is now."""
        done = self.computed
        self.left -= 1
        self.passed += 1
        self.context += len(done)
        self.computed = [computed + 1 for computed in done]
        return done
