"""Warm-up before a worker is ready: an inference through the engine, the manifest's parity prompt, and a calibration.

Sequences here use blocks of an empty pool before the scheduler knows of it; nothing of them remains.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from octavo.errors import OctavoError

from octavo_gpuworker.engine import Engine
from octavo_gpuworker.orders import AdmitOrder, Sampling

WARM_PROMPT = 32
CALIBRATION_PROMPT = 128
CALIBRATION_CONTEXT = 1024
CALIBRATION_BATCH = 8
DECODE_STEPS = 5
PREFILL_RUNS = 3
LEAST_US = 0.1
"""A cost that noise made negative; the scheduler divides by it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a step costs, in microseconds: fixed + prefill * tokens + decode * seqs + context * context tokens."""

    fixed_us: float
    prefill_token_us: float
    decode_seq_us: float
    context_token_us: float


class ArtifactMismatch(OctavoError):
    """What was loaded is not what the manifest names; the process ends with exit code 3."""

    default_reason = "artifact-mismatch"
    exit_code = 3


def generate(engine: Engine, prompt: Tokens[int], count: int) -> list[int]:
    """`count` greedy tokens of one prompt, alone in the engine. Raises OctavoError when the pool is too small or logits are not finite."""
    blocks = blocks_for(len(prompt) + count, engine.pool.block_tokens)
    if blocks >= engine.pool.num_blocks:
        raise OctavoError(
            f"the KV pool of {engine.pool.num_blocks} blocks is too small for {len(prompt)} + {count} tokens; raise engine.kv_pool_bytes"
        )
    table, end = list(range(1, blocks + 1)), len(prompt) + count
    order = AdmitOrder(1, 0, list(prompt), len(prompt), 0, table, Sampling(temperature=0.0), 0, end)
    engine.post(order)
    tokens: list[int] = []
    while engine.busy or not tokens:
        engine.run_once()
        for report in engine.take_reports(force=True):
            tokens += [token for per_slot in report.tokens for token in per_slot]
            for finish in report.finishes:
                if finish.reason == "failed":
                    raise OctavoError(f"the model cannot run here: {finish.message}")
    return tokens


def check_parity(engine: Engine, prompt: Tokens[int], expected: Tokens[int]) -> None:
    """Raises ArtifactMismatch unless the greedy continuation of the manifest's parity prompt is reproduced."""
    vocab = engine.backend.vocab_size
    if not prompt:
        raise ArtifactMismatch(
            "model.parity_prompt_ids is empty, but model.parity_greedy_ids is not; give both or none"
        )
    if any(not 0 <= token < vocab for token in (*prompt, *expected)):
        raise ArtifactMismatch(
            f"model.parity_prompt_ids: an id lies outside the vocabulary of {vocab}; was it made for another model?"
        )
    got = generate(engine, prompt, len(expected))
    if got != list(expected):
        at = next(i for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)) if ours != theirs)
        raise ArtifactMismatch(
            f"parity prompt: greedy token {at} is {got[at]}, model.parity_greedy_ids says {expected[at]}; "
            "weights, dtype or tokenizer differ from those of the manifest"
        )


def calibrate(engine: Engine, max_model_len: int) -> Calibration:
    """Step time as fixed + prefill * tokens + decode * seqs + context * tokens, from medians of a few timed steps (microseconds).

    Each slope comes from two points that differ in one thing; a slope that noise made negative counts as least.
    """
    size, usable = engine.pool.block_tokens, engine.pool.num_blocks - 1
    longest = max(2, min(CALIBRATION_PROMPT, max_model_len // 2, usable * size // 4))
    short = max(1, longest // 4)
    generate(engine, [1] * min(WARM_PROMPT, longest), 2)
    prefill_us = _slope(_prefill_us(engine, short), _prefill_us(engine, longest), longest - short)
    batch = max(1, min(CALIBRATION_BATCH, usable // blocks_for(short + DECODE_STEPS + 1, size)))
    one_us = _decode_us(engine, 1, short)
    decode_us = _slope(one_us, _decode_us(engine, batch, short), batch - 1)
    deep = min(CALIBRATION_CONTEXT, max_model_len, usable * size) - DECODE_STEPS - 1
    context_us = _slope(one_us, _decode_us(engine, 1, deep), deep - short, least=0.0) if deep > 2 * short else 0.0
    return Calibration(
        fixed_us=max(1.0, one_us - decode_us - context_us * short),
        prefill_token_us=prefill_us,
        decode_seq_us=decode_us,
        context_token_us=context_us,
    )


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that cover `tokens` positions."""
    return -(-tokens // block_tokens)


def _slope(low_us: float, high_us: float, distance: int, least: float = LEAST_US) -> float:
    return max(least, (high_us - low_us) / distance) if distance > 0 else least


def _prefill_us(engine: Engine, length: int) -> float:
    times = []
    for _ in range(PREFILL_RUNS):
        started = time.perf_counter()
        generate(engine, [1] * length, 1)
        times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times)


def _decode_us(engine: Engine, batch: int, length: int) -> float:
    """Median time of a decode step of `batch` sequences whose context is `length`; what their KV holds does not matter."""
    per_seq = blocks_for(length + DECODE_STEPS + 1, engine.pool.block_tokens)
    for i in range(batch):
        blocks = list(range(1 + i * per_seq, 1 + (i + 1) * per_seq))
        end = length + DECODE_STEPS + 1
        engine.post(AdmitOrder(i + 1, i, [1] * length, length, length - 1, blocks, Sampling(temperature=0.0), 0, end))
    times = []
    engine.run_once()  # the first of each shape is slower
    while engine.busy:
        started = time.perf_counter()
        engine.run_once()
        times.append((time.perf_counter() - started) * 1e6)
    engine.take_reports(force=True)
    return statistics.median(times)
