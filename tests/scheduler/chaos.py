"""A chaos worker in pure Python: the protocol of design section 3 without any model.

The worker keeps, for every block and position, an id of the token prefix whose KV stands there. A step first reads
all positions below the ones it computes and fails when one holds anything but that sequence's own prefix, so a block
that was shared before it was computed, freed too early, or granted twice is found by the next reader.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from random import Random

from octavo.packing import pack_u32, unpack_u32
from octavo.step import Chunk, SeqView, StepBudget, compose
from octavo_scheduler.events import Calibration, Finish, FirstToken, Released, Reported, TransferDone, WorkerJoined
from octavo_scheduler.orders import (
    Abort,
    Admit,
    Fork,
    Grant,
    Label,
    Leave,
    Load,
    LoadSource,
    Offload,
    Order,
    StepPolicy,
    Stop,
    Update,
)

from tests.scheduler import chaos_beams
from tests.scheduler.chains import chain_of, extend_chain
from tests.scheduler.chaos_blend import Blends
from tests.scheduler.chaos_store import ChaosStore

POISON = -1
VOCAB = 64


def token_at(seed: int, position: int) -> int:
    """The token that sampling draws at `position`: a pure function, as the design's section 5 has it (splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (x ^ (x >> 31)) % VOCAB


def expected_output(seed: int, prompt_len: int, max_tokens: int, stop_ids: list[int]) -> tuple[list[int], str]:
    """What a choice must yield, whatever happens to it: tokens and finish reason."""
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(token_at(seed, prompt_len + len(output)))
        if output[-1] in stop_ids:
            return output, "stop"
    return output, "length"


@dataclass(eq=False)
class ChaosSequence:
    seq: int
    slot: int
    rank: int
    tokens: list[int]
    prompt_len: int
    computed: int
    blocks: list[int]
    seed: int
    stop_ids: list[int]
    max_len: int
    wait_xfer: int = 0
    wait_base: int = 0
    joins_len: int = 0  # a load brought what lies between wait_base and here, before wait_base was reached
    siblings: list[ChaosSequence] = field(default_factory=list)
    unsplit: bool = False  # a sibling whose leader still prefills
    ending: bool = False
    release_in: int = 0
    first_token_sent: bool = False
    ends_at: int = 0  # stop_after: this many tokens in all; 0: none
    chain: list[int] = field(default_factory=list)
    beam: int = 0  # continuations that it offers; 0: it is no beam
    parked: bool = False  # it waits for Fork
    split_len: int = 0  # what it computes for siblings with tokens of their own


@dataclass(eq=False)
class ChaosTransfer:
    xfer_id: int
    kind: str
    blocks: list[int]
    keys: list[bytes]
    left: int
    ok_blocks: int
    parents: list[bytes] = field(default_factory=list)
    sources: list[LoadSource] = field(default_factory=list)
    remote: bool = False
    aborted: bool = False


class ChaosWorker:
    """Applies orders, steps by `octavo.step.compose`, reports. `iterate(now_us)` is one iteration boundary."""

    def __init__(
        self,
        rng: Random,
        worker_id: str = "w0",
        num_blocks: int = 24,
        block_tokens: int = 4,
        max_seqs: int = 4,
        store: ChaosStore | None = None,
        max_merge: int = 1,
        calm: bool = False,
        max_model_len: int = 4096,
        role: str = "both",
    ) -> None:
        self.role = role
        self.rng, self.worker_id, self.store = rng, worker_id, store
        self.num_blocks, self.block_tokens, self.max_seqs = num_blocks, block_tokens, max_seqs
        self.max_merge, self.calm, self.max_model_len = max_merge, calm, max_model_len
        self.content = [[POISON] * block_tokens for _ in range(num_blocks)]
        self.labels: dict[int, tuple[bytes, bytes]] = {}
        self.key_content: dict[bytes, list[int]] = {}
        self.blends = Blends(self)
        self.computed_tokens = 0
        self.steps = 0
        self.max_batch = 0
        self.draining = False
        self.freeze_transfers = False
        self.calm_steps = 1  # iterations that a transfer takes when the worker is calm
        self.backed_blocks = 0  # of its pool, from the first on; 0: all
        self.fail_every = 0  # of the steps, one of so many finds no memory; 0: none
        self.allocations = 0
        self.pool_labels: list[str] = []
        self.boot_id = f"boot-{rng.random()}"
        self._reset()

    def _reset(self) -> None:
        self.sequences: dict[int, ChaosSequence] = {}
        self.slots: dict[int, ChaosSequence] = {}
        self.transfers: dict[int, ChaosTransfer] = {}
        self.launched: list[Chunk] = []
        self.budget = StepBudget(64, 64, self.max_seqs)
        self.inbox: list[Order] = []
        self.applied = 0
        self.last_sent_us = 0
        self.last_live_us = 0
        self._fresh_report()

    def _fresh_report(self) -> None:
        self.slot_tokens: dict[int, list[int]] = {}
        self.slot_computed: dict[int, int] = {}
        self.report = Reported(0, 0)
        self.composition: tuple[int, ...] | None = None
        self.must_send = False

    # -- connection ------------------------------------------------------------------------------------------------

    def quiesce(self) -> None:
        """Launched steps and copies end, every sequence is dropped: what must be true before Hello."""
        self._complete_step()
        for transfer in list(self.transfers.values()):
            self._copy(transfer)
        self._reset()

    def die(self) -> None:
        """A new process: nothing is resident."""
        self.draining = False
        self.content = [[POISON] * self.block_tokens for _ in range(self.num_blocks)]
        self.labels = {}
        self.boot_id = f"boot-{self.rng.random()}"
        self._reset()

    def _resident(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """As the real worker's labels give it: of two blocks with one key the newer counts."""
        newest = {key: (block, parent) for block, (key, parent) in self.labels.items()}
        place = {key: at for at, key in enumerate(newest, 1)}
        parents = [place.get(parent, place[key]) if any(parent) else 0 for key, (_block, parent) in newest.items()]
        return [(block, key) for key, (block, _parent) in newest.items()], parents

    def hello(self, now_us: int, epoch: int) -> WorkerJoined:
        resident, parents = self._resident()
        self.last_sent_us = self.last_live_us = now_us
        return WorkerJoined(
            now_us,
            epoch,
            self.worker_id,
            self.num_blocks,
            self.block_tokens,
            self.max_seqs,
            self.max_model_len,
            block_bytes=1000,
            store_id=self.store.store_id if self.store else "",
            root_key=b"r" * 32,
            model="chaos",
            pid=1,
            resident=resident,
            resident_parents=parents,
            calibration=Calibration(2000.0, 500.0, 1000.0, 0.5),
            role=self.role,
            labels=self.pool_labels,
            capabilities=["blending"],
        )

    # -- orders ----------------------------------------------------------------------------------------------------

    def receive(self, orders: list[Order]) -> None:
        self.inbox.extend(orders)

    def _apply_orders(self) -> None:
        self.applied += len(self.inbox)
        for order in self.inbox:
            if isinstance(order, Admit):
                self._admit(order)
            elif isinstance(order, Grant):
                sequence = self.sequences.get(order.seq)
                if sequence is not None:
                    self._poison(order.block_ids)
                    self.blends.granted(order.seq, order.block_ids)
                    sequence.blocks.extend(order.block_ids)
            elif isinstance(order, Fork):
                chaos_beams.fork(self, order)
            elif isinstance(order, Stop):
                sequence = self.sequences.get(order.seq)
                if sequence is not None and not sequence.ending:
                    self._end(sequence)
            elif isinstance(order, Offload | Load):
                self._start_transfer(order)
            elif isinstance(order, Abort):
                self._abort(order.xfer_id)
            elif isinstance(order, StepPolicy):
                self.budget = StepBudget(order.budget_with_decodes, order.budget_alone, order.max_seqs)
            elif isinstance(order, Leave):
                self.drain()
            elif isinstance(order, Label):
                self._label(order)
            else:
                assert isinstance(order, Update)
        self.inbox = []

    def fail(self) -> None:
        """A step finds no memory; tried again with less it runs."""
        self.report.failed_allocations += 1
        self.must_send = True

    def drain(self) -> None:
        """SIGTERM: the next report says so."""
        self.draining = self.must_send = True

    def _admit(self, order: Admit) -> None:
        assert order.seq not in self.sequences, "a seq was used twice"
        assert order.slot not in self.slots, f"slot {order.slot} is taken"
        assert 0 not in order.block_ids, "the null block was allocated"
        assert len(set(order.block_ids)) == len(order.block_ids)
        assert order.cached_len % self.block_tokens == 0 or order.blend_parts
        tokens = unpack_u32(order.tokens)
        assert order.cached_len < len(tokens), "nothing is left to compute"
        stop_ids = unpack_u32(order.sampling)
        beam = chaos_beams.offers_of(stop_ids)
        loading = {b for x in self.transfers.values() if x.xfer_id == order.wait_xfer for b in x.blocks}
        kept = 0 if order.blend_parts else order.cached_len // self.block_tokens
        self._poison([b for b in order.block_ids[kept:] if b not in loading])

        def make(seq: int, slot: int, seed: int, blocks: list[int], computed: int) -> ChaosSequence:
            made = ChaosSequence(
                seq, slot, order.rank, list(tokens), order.prompt_len, computed, list(blocks), seed, stop_ids, order.max_len
            )  # fmt: skip
            made.beam, made.split_len = beam, order.split_len if seq == order.seq else 0
            made.ends_at = len(tokens) + order.stop_after if order.stop_after else 0
            extend_chain(made.chain, made.tokens)
            self.sequences[seq] = self.slots[slot] = made
            return made

        leader = make(order.seq, order.slot, order.seed, order.block_ids, order.cached_len)
        leader.wait_xfer, leader.wait_base = order.wait_xfer, order.wait_base
        alone = [chain_of(tokens[part.start : part.start + part.count]) for part in order.blend_parts]
        if alone:
            self.blends.begin(order, leader.chain, alone)
        full = (order.split_len or order.prompt_len) // self.block_tokens
        assert order.split_len < len(tokens)
        for item in order.siblings:
            assert item.slot not in self.slots and item.seq not in self.sequences
            shared = min(full, len(order.block_ids))
            assert item.block_ids[:shared] == order.block_ids[:shared], "siblings share the full prompt blocks"
            assert not set(item.block_ids[shared:]) & set(order.block_ids), "a sibling's tail is its own"
            self._poison(item.block_ids[shared:])
            sibling = make(item.seq, item.slot, item.seed, item.block_ids, 0)
            sibling.unsplit = True
            if order.split_len:
                sibling.tokens = unpack_u32(item.tokens)
                assert sibling.tokens[: order.split_len] == tokens[: order.split_len]
                assert len(sibling.tokens) == len(tokens)
                sibling.chain = chain_of(sibling.tokens)
            leader.siblings.append(sibling)
        self._check_reads(leader, leader.computed)

    def _poison(self, blocks: list[int]) -> None:
        for block in blocks:
            self.content[block] = [POISON] * self.block_tokens
            self.labels.pop(block, None)
            self.blends.forget(block)

    def _label(self, order: Label) -> None:
        for block in order.block_ids[len(order.keys) :]:
            self.labels.pop(block, None)
        for block, key, parent in zip(order.block_ids, order.keys, order.parents, strict=False):
            content = self.content[block]
            self.blends.refuse(block)
            assert POISON not in content, f"block {block} was labelled before it was computed"
            known = self.key_content.setdefault(key, list(content))
            assert known == content, f"block {block} does not hold what its key says"
            self.labels.pop(block, None)
            self.labels[block] = (key, parent)

    def _end(self, sequence: ChaosSequence) -> None:
        self.blends.end(sequence.seq)
        sequence.ending = True
        sequence.release_in = 0 if self.calm else self.rng.choice((0, 0, 0, 1, 3))

    # -- transfers -------------------------------------------------------------------------------------------------

    def _start_transfer(self, order: Offload | Load) -> None:
        kind = "load" if isinstance(order, Load) else "offload"
        ok = len(order.keys)
        if not self.calm and self.rng.random() < 0.3:
            ok = self.rng.randint(0, ok)
        left = self.calm_steps if self.calm else self.rng.randint(1, 5)
        transfer = ChaosTransfer(order.xfer_id, kind, list(order.block_ids), list(order.keys), left, ok)
        if isinstance(order, Offload):
            transfer.parents = list(order.parents)
        if isinstance(order, Load):
            transfer.sources = order.sources
        if kind == "load":
            self._poison(transfer.blocks)
        self.transfers[transfer.xfer_id] = transfer

    def _abort(self, xfer_id: int) -> None:
        """The copy ends once it is fenced, with as much as it has by then."""
        transfer = self.transfers.get(xfer_id)
        if transfer is not None:
            transfer.aborted = True
            transfer.ok_blocks = 0 if self.calm else self.rng.randint(0, transfer.ok_blocks)
            transfer.left = 1 if self.calm else self.rng.randint(1, 2)

    def _copy(self, transfer: ChaosTransfer) -> int:
        """The copy itself, at its end; returns the leading run that was whole."""
        store = self.store
        if store is None or not store.alive:
            if transfer.kind == "load":
                self._poison(transfer.blocks)
            return 0
        done = 0
        for block, key in zip(transfer.blocks, transfer.keys, strict=True):
            if done >= transfer.ok_blocks:
                break
            if transfer.kind == "offload":
                content = self.content[block]
                known = self.key_content.get(key)
                self.blends.refuse(block)
                assert POISON not in content and (known is None or known == content), "offloaded a block that changed"
                store.put(key, content, transfer.parents[done])
            else:
                held = store.held.get(key)
                if held is None:
                    held = store.fetch(key, transfer.sources, done)
                    transfer.remote = held is not None
                if held is None:
                    break
                self.content[block] = list(held)
            done += 1
        return done

    def _advance_transfers(self) -> None:
        for transfer in list(self.transfers.values()):
            if self.freeze_transfers and not transfer.aborted:
                continue
            transfer.left -= 1
            if transfer.left > 0:
                continue
            ok = self._copy(transfer)
            del self.transfers[transfer.xfer_id]
            self.report.transfers_done.append(
                TransferDone(transfer.xfer_id, ok, ok * 1000, 100, 500, "remote" if transfer.remote else "")
            )
            self.must_send = True
            for sequence in self.sequences.values():
                if sequence.wait_xfer == transfer.xfer_id:
                    sequence.wait_xfer = 0
                    loaded = sequence.wait_base + ok * self.block_tokens
                    if sequence.computed >= sequence.wait_base:
                        sequence.computed = loaded
                    elif ok:
                        sequence.joins_len = loaded
                    if not sequence.ending:
                        self._check_reads(sequence, sequence.computed)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _check_reads(self, sequence: ChaosSequence, length: int) -> None:
        size = self.block_tokens
        for start in range(0, length, size):
            want = sequence.chain[start : min(start + size, length)]
            have = self.content[sequence.blocks[start // size]][: len(want)]
            assert have == want, f"seq {sequence.seq} reads KV that is not its own at {start}: {have} != {want}"

    def _launch(self) -> None:
        views = [
            SeqView(
                item.slot,
                item.rank,
                len(item.tokens),
                item.computed,
                self._covered(item),
                item.ending or item.unsplit or item.parked or (item.wait_xfer > 0 and item.computed >= item.wait_base),
            )
            for item in self.sequences.values()
        ]
        step = compose(views, self.budget)
        tokens = sum(chunk.count for chunk in step.chunks)
        self.max_batch = max(self.max_batch, tokens)
        composition = tuple(chunk.slot for chunk in step.chunks) if not step.prefill_tokens else None
        if self.report.steps and (composition is None or composition != self.composition):
            self.must_send = True
        self.composition = composition
        if step.starved:
            self.report.starved = step.starved
            self.must_send = True
        if step.chunks and self.fail_every:
            self.allocations += 1
            if self.allocations % self.fail_every == 0:  # the step does not run, and nothing of it is lost
                self.report.failed_allocations += 1
                self.must_send = True
                return
        self.launched = step.chunks
        self.pending_step = step

    def _covered(self, item: ChaosSequence) -> int:
        """Positions that it may compute now: up to where a load begins that has not ended, or that it has not reached."""
        covered = len(item.blocks) * self.block_tokens
        return min(covered, item.wait_base) if item.wait_xfer or item.joins_len else covered

    def _complete_step(self) -> None:
        if not self.launched:
            return
        step, chunks = self.pending_step, self.launched
        self.launched = []
        self.steps += 1
        self.report.steps += 1
        self.report.prefill_tokens += step.prefill_tokens
        self.report.decode_seqs = step.decode_seqs
        self.report.wall_us += 2000 + 500 * step.prefill_tokens + 1000 * step.decode_seqs
        for chunk in chunks:
            sequence = self.slots[chunk.slot]
            self._check_reads(sequence, chunk.start)
            for position in range(chunk.start, chunk.start + chunk.count):
                block = sequence.blocks[position // self.block_tokens]
                self.content[block][position % self.block_tokens] = sequence.chain[position]
            sequence.computed = chunk.start + chunk.count
            if sequence.joins_len and sequence.computed >= sequence.wait_base:
                sequence.computed, sequence.joins_len = sequence.joins_len, 0
                self._check_reads(sequence, sequence.computed)
            self.computed_tokens += chunk.count
            self.slot_computed[sequence.slot] = sequence.computed
            self.slot_tokens.setdefault(sequence.slot, [])
            if 0 < sequence.split_len <= sequence.computed:
                for sibling in sequence.siblings:
                    self._split(sequence, sibling)
                sequence.siblings = []
            if chunk.samples:
                for sibling in sequence.siblings:
                    self._split(sequence, sibling)
                sequence.siblings = []
                self._sample(sequence)

    def _split(self, leader: ChaosSequence, sibling: ChaosSequence) -> None:
        sibling.unsplit = False
        if sibling.ending:
            return
        common = leader.split_len or leader.prompt_len
        tail = common % self.block_tokens
        if tail:
            at = common // self.block_tokens
            self.content[sibling.blocks[at]][:tail] = self.content[leader.blocks[at]][:tail]
        sibling.computed = common
        if leader.split_len:
            return  # it goes on with its own tokens
        self.slot_computed[sibling.slot] = sibling.computed
        self._sample(sibling)

    def _sample(self, sequence: ChaosSequence) -> None:
        if sequence.beam:
            chaos_beams.sample(self, sequence)
            self._first(sequence)
            return
        token = token_at(sequence.seed, len(sequence.tokens))
        sequence.tokens.append(token)
        extend_chain(sequence.chain, sequence.tokens)
        self.slot_tokens.setdefault(sequence.slot, []).append(token)
        self._first(sequence)
        length = len(sequence.tokens)
        ended = length >= sequence.max_len or length == sequence.ends_at
        reason = "stop" if token in sequence.stop_ids else "length" if ended else ""
        if reason and not sequence.ending:
            stop_token = token if reason == "stop" else 0
            self.report.finishes.append(Finish(sequence.slot, sequence.seq, reason, stop_token))
            self._end(sequence)
            self.must_send = True

    def _first(self, sequence: ChaosSequence) -> None:
        if not sequence.first_token_sent:
            sequence.first_token_sent = True
            self.report.first_tokens.append(FirstToken(sequence.seq, 10, 20, 1))
            self.must_send = True

    def _release_ended(self) -> None:
        for sequence in list(self.sequences.values()):
            if not sequence.ending:
                continue
            if sequence.release_in > 0:
                sequence.release_in -= 1
                continue
            for sibling in sequence.siblings:
                assert sibling.ending, "a leader was stopped without its unsplit siblings"
            del self.sequences[sequence.seq]
            del self.slots[sequence.slot]
            self.report.released.append(Released(sequence.seq, len(sequence.tokens), sequence.computed))
            self.must_send = True

    def iterate(self, now_us: int) -> Reported | None:
        """Completes the launched step, applies orders, launches the next; returns a report when one is due."""
        self._complete_step()
        self._apply_orders()
        self._advance_transfers()
        # whatever was sampled before a release in this same iteration is in the same report
        self._release_ended()
        stepped = self.report.steps
        if self.calm or self.rng.random() < 0.9:
            self._launch()
        silent_us = now_us - self.last_sent_us
        if stepped and (stepped >= self.max_merge or self.rng.random() < 0.3):
            self.must_send = True
        if silent_us >= (100_000 if self.sequences else 1_000_000):
            self.must_send = True
        return self._send(now_us) if self.must_send else None

    def _send(self, now_us: int) -> Reported:
        report, composition = self.report, self.composition
        report.now_us, report.step, report.draining = now_us, self.steps, self.draining
        for slot, computed in self.slot_computed.items():
            report.slots.append(slot)
            report.counts.append(len(self.slot_tokens.get(slot, [])))
            report.tokens.extend(self.slot_tokens.get(slot, []))
            report.computed_len.append(computed)
        if now_us - self.last_live_us >= 1_000_000:
            self.last_live_us = now_us
            report.live_seqs = list(self.sequences)
            report.live_transfers = list(self.transfers)
            report.orders_applied = self.applied
            report.backed_blocks = self.backed_blocks
        self.last_sent_us = now_us
        self._fresh_report()
        self.composition = composition
        return report


def sampling_of(stop_ids: list[int]) -> bytes:
    """The chaos worker's sampling parameters: nothing but stop ids."""
    return pack_u32(stop_ids)


def tokens_of(values: list[int]) -> array[int]:
    """An `array('I')`."""
    return array("I", values)
