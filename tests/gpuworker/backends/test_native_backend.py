"""The engine over the native kernels: the torch oracle's greedy tokens, and the engine's promises with the sampler in C."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path

import numpy as np
import octavo_gpuworker.bench
import pytest
from octavo.artifacts import resolve_model
from octavo.step import Chunk, StepBudget
from octavo_gateway.tokenizer_files import load_tokenizer
from octavo_gpuworker.batch import build_batch
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.orders import AdmitOrder, Sampling, SiblingOrder, StopOrder
from octavo_gpuworker.sequence import from_admit
from octavo_gpuworker.slots import SlotTable

GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(
    temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.1, min_tokens=4, stop_ids=frozenset({2})
)
NEW = 12
TIE = 0.25
"""Two steps of bfloat16 at the size of these logits (16 to 32): what a sum in another order may move one against the other."""


class Run:
    """An engine of its own over a shared backend: every sequence's tokens, logprobs and end."""

    def __init__(self, backend, budget: int = 256) -> None:
        self.engine = Engine(
            backend, budget=StepBudget(budget, budget, 64), start_transfer=lambda order: None, on_end=lambda end: None
        )
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list] = {}
        self.reasons: dict[int, str] = {}
        self.slots: dict[int, int] = {}
        self._free = 1

    def admit(
        self, seq: int, tokens: list[int], new: int = NEW, sampling: Sampling = GREEDY, prompt_len: int = 0, siblings=()
    ) -> AdmitOrder:
        size = self.engine.pool.block_tokens
        count = -(-(len(tokens) + new) // size)
        blocks = self.take(count)
        shared = len(tokens) // size
        others = tuple(SiblingOrder(s, s, 100 + s, blocks[:shared] + self.take(count - shared)) for s in siblings)
        for one in (seq, *siblings):
            self.slots[one] = one
        order = AdmitOrder(
            seq,
            seq,
            list(tokens),
            prompt_len or len(tokens),
            0,
            blocks,
            sampling,
            7,
            len(tokens) + new,
            siblings=others,
        )
        self.engine.post(order)
        return order

    def take(self, count: int) -> list[int]:
        self._free += count
        return list(range(self._free - count, self._free))

    def step(self) -> None:
        self.engine.run_once()
        for report in self.engine.take_reports(force=True):
            for slot, tokens, logprobs in zip(report.slots, report.tokens, report.logprobs, strict=True):
                self.tokens.setdefault(slot, []).extend(tokens)
                self.logprobs.setdefault(slot, []).extend(logprobs)
            self.reasons |= {finish.seq: finish.reason for finish in report.finishes}

    def run(self) -> dict[int, list[int]]:
        self.step()
        while self.engine.busy:
            self.step()
        return self.tokens


@functools.cache
def prose() -> list[int]:
    text = (Path(octavo_gpuworker.bench.__file__).parent / "prose.txt").read_text(encoding="utf-8")
    return load_tokenizer(resolve_model("smollm2")).encode(text[:20_000])


def prompts(count: int) -> list[list[int]]:
    """Pieces of real text: on random tokens the model itself is at the mercy of the last bit."""
    lengths = itertools.cycle([5, 16, 17, 40, 90])
    return [prose()[150 * i : 150 * i + next(lengths)] for i in range(count)]


def greedy(backend, wanted: list[list[int]]) -> dict[int, list[int]]:
    run = Run(backend)
    for seq, prompt in enumerate(wanted, 1):
        run.admit(seq, prompt)
    return run.run()


def logits_after(backend, ids: list[int]) -> np.ndarray:
    """The raw logits behind the last of `ids`."""
    size = backend.pool.block_tokens
    order = AdmitOrder(1, 0, ids, len(ids), 0, list(range(1, 2 + len(ids) // size)), GREEDY, 0, len(ids) + 1)
    table, sequence = SlotTable(size), from_admit(order, 0)
    table.admit(sequence)
    return backend.logits(build_batch([Chunk(0, 0, len(ids), True)], {0: sequence}, table))[0]


def test_twenty_prompts_give_the_oracles_greedy_tokens_but_for_measured_ties(native, oracle) -> None:
    wanted = prompts(20)
    ours, theirs = greedy(native, wanted), greedy(oracle, wanted)
    ties = 0
    for seq, prompt in enumerate(wanted, 1):
        assert len(ours[seq]) == len(theirs[seq]) == NEW
        at = next((i for i in range(NEW) if ours[seq][i] != theirs[seq][i]), None)
        if at is None:
            continue
        ties += 1
        logits = logits_after(oracle, prompt + theirs[seq][:at])
        gap = float(logits[theirs[seq][at]] - logits[ours[seq][at]])
        assert abs(gap) <= TIE, f"prompt {seq}, token {at}: the oracle prefers its own by {gap}"
    assert ties <= 6, "more ties than rounding explains"


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_stopped_sequence_resumes_with_the_same_tokens(native, sampling) -> None:
    prompt = prompts(3)[2]
    whole = Run(native)
    whole.admit(1, prompt, sampling=sampling)
    tokens = whole.run()[1]
    run = Run(native)
    run.admit(1, prompt, sampling=sampling)
    for _ in range(5):
        run.step()
    run.engine.post(StopOrder(1, "preempt"))
    run.step()
    first = run.tokens[1]
    run.admit(2, prompt + first, new=NEW - len(first), sampling=sampling, prompt_len=len(prompt))
    assert first + run.run()[2] == tokens


def test_siblings_share_the_prompt_and_draw_their_own(native) -> None:
    run = Run(native)
    sampling = dataclasses.replace(SAMPLED, temperature=1.2)
    run.admit(1, prompts(5)[4][:21], sampling=sampling, siblings=(2, 3))
    tokens = run.run()
    assert all(len(tokens[seq]) <= NEW for seq in (1, 2, 3)) and len({tuple(tokens[seq]) for seq in (1, 2, 3)}) == 3


def test_logprobs_are_the_softmax_of_the_raw_logits_best_first(native) -> None:
    prompt = prompts(4)[3]
    run = Run(native)
    run.admit(1, prompt, new=2, sampling=dataclasses.replace(GREEDY, logprobs=4))
    run.admit(2, prompt, new=2)
    run.run()
    found = run.logprobs[1][0]
    logits = logits_after(native, prompt).astype(np.float64)
    expected = logits - np.logaddexp.reduce(logits)
    assert found.top_tokens == np.argsort(-expected, kind="stable")[:4].tolist() and found.token == found.top_tokens[0]
    assert np.allclose(found.top_logprobs, expected[found.top_tokens], atol=1e-4)
    assert run.logprobs[2] in ([], [None, None])


def test_a_block_travels_byte_for_byte_and_the_null_block_is_refused(native) -> None:
    run = Run(native)
    run.admit(1, prompts(4)[3], new=2)
    run.run()
    pool = native.pool
    payload = pool.read_block(1)
    assert len(payload) == pool.block_bytes and any(payload)
    pool.write_block(500, payload)
    assert pool.read_block(500) == payload
    pool.copy_block(500, 501)
    assert pool.read_block(501) == payload
    with pytest.raises(IndexError, match="null block"):
        pool.write_block(0, payload)
    with pytest.raises(IndexError, match="outside the pool"):
        pool.read_block(600)
    with pytest.raises(ValueError, match="a block of this pool has"):
        pool.write_block(1, payload[:-1])


def test_a_row_that_is_not_finite_fails_alone(native) -> None:
    run = Run(native)
    run.admit(1, [5, 6, 7, 8])
    order = run.admit(2, [9, 10, 11, 12])
    run.step()
    poison = np.full(native.pool.block_bytes // 2, 0x7FC0, np.uint16).tobytes()  # bfloat16 NaN
    native.pool.write_block(order.blocks[0], poison)
    run.run()
    assert run.reasons == {1: "length", 2: "failed"} and len(run.tokens[1]) == NEW
    native.pool.write_block(order.blocks[0], bytes(native.pool.block_bytes))


def test_other_weights_or_another_cache_never_share_blocks(native) -> None:
    from tests.gpuworker.backends.conftest import native_of

    keys = {
        native.fingerprint,
        *(native_of(**more).fingerprint for more in ({"weights": "int8"}, {"kv_dtype": "int8"})),
    }
    assert len(keys) == 3


def test_calls_are_counted_under_the_instruction_set(native) -> None:
    ((key, before),) = native.kernel_calls().items()
    run = Run(native)
    run.admit(1, [5, 6, 7], new=3)
    run.run()
    assert key[0] == "step" and key[1].startswith("native-") and key[2] == "chosen"
    assert native.kernel_calls()[key] == before + 3
