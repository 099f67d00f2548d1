"""SteadyRun: the same decodes step after step. Between two such steps the other cores wait, so what need not be done there is put off.

A step that gives every sequence one more token, ends none and needs no block changes three numbers per sequence. They stand here, and
are booked into the sequences when somebody looks at them: an order, an end, a table that runs low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.step import Step

from octavo_gpuworker.orders import AbortOrder, GrantOrder, LabelOrder, OffloadOrder
from octavo_gpuworker.sequence import Sequence
from octavo_gpuworker.slots import SlotTable

UNDISTURBING = (GrantOrder, LabelOrder, OffloadOrder, AbortOrder)
"""Orders that leave open what the next step is: they look at no sequence's tokens, and move none in or out."""


class SteadyRun:
    """Made after a step of decodes alone; `launched` is the backend's handle of it."""

    __slots__ = ("at", "computed", "drawn", "launched", "left", "seqs", "slots", "step", "stops")

    def __init__(self, seqs: list[Sequence], step: Step, launched: Any, block_tokens: int) -> None:
        self.seqs = seqs
        self.step = step
        """Its slots and totals are those of every step of the run."""
        self.launched = launched
        self.slots = [seq.slot for seq in seqs]
        self.at = {slot: at for at, slot in enumerate(self.slots)}
        self.stops = frozenset[int]().union(*[seq.sampling.stop_ids for seq in seqs])
        self.computed = [seq.computed for seq in seqs]
        """As of the last step, also where it is not booked."""
        self.drawn: list[list[int]] = []
        """Tokens per step that are not booked, in the order of `seqs`."""
        self.left = 0
        """So many more steps surely end no sequence by its length, and find their blocks."""
        self.measure(block_tokens)

    def measure(self, block_tokens: int) -> None:
        """Sets `left` anew; call it when a sequence has more blocks."""
        self.left = min([seq.calm_steps(block_tokens) for seq in self.seqs]) - len(self.drawn)

    def takes(self, tokens: list[int]) -> bool:
        """Whether a step drew tokens that end none of them; a negative one stands for a row that failed."""
        return min(tokens) >= 0 and self.stops.isdisjoint(tokens)

    def add(self, tokens: list[int]) -> None:
        """A step's tokens, which it takes."""
        self.drawn.append(tokens)
        self.computed = [computed + 1 for computed in self.computed]
        self.left -= 1

    def book(self, table: SlotTable) -> None:
        """Brings the sequences and the table up to the last step that was added."""
        if not self.drawn:
            return
        for seq, computed, tokens in zip(self.seqs, self.computed, zip(*self.drawn, strict=True), strict=True):
            table.extend(seq.slot, len(seq.tokens), tokens)
            seq.tokens.extend(tokens)
            seq.computed = computed
            seq.steps += len(tokens)
        self.drawn.clear()


def is_steady(step: Step, rows: list[Sequence], held: Mapping[int, Sequence]) -> bool:
    """Whether the step after this one, whose `rows` are booked, does the same again for the same sequences, if no order comes.

    `held`: all sequences of the worker, by number. Rows with log-probabilities or with logits that depend on what was drawn are none.
    """
    if step.prefill_tokens or step.starved or not rows or len(rows) != len(step.chunks):  # siblings draw by one chunk
        return False
    if sum([not (seq.paused or seq.waiting) for seq in held.values()]) != len(rows):
        return False
    return all([seq.seq in held and _plain(seq) for seq in rows])


def _plain(seq: Sequence) -> bool:
    sampling = seq.sampling
    return not (
        seq.siblings
        or seq.wait_xfer
        or seq.joins_len
        or not seq.first_token_ns
        or sampling.beam
        or sampling.logprobs >= 0
        or sampling.alters_logits
    )
