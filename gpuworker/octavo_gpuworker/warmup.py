"""Warm-up before a worker is ready: an inference through the engine, the manifest's parity prompt, and a calibration.

Sequences here use blocks of an empty pool before the scheduler knows of it; nothing of them remains.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence as Tokens

from octavo.errors import OctavoError
from octavo.v1 import worker_pb2 as pb

from octavo_gpuworker.engine import Engine
from octavo_gpuworker.orders import AdmitOrder, Report, Sampling, StopOrder

WARM_PROMPT = 32
CALIBRATION_PROMPT = 128
CALIBRATION_BATCH = 8


class ArtifactMismatch(OctavoError):
    """What was loaded is not what the manifest names; the process ends with exit code 3."""

    default_reason = "artifact-mismatch"
    exit_code = 3


def generate(engine: Engine, prompt: Tokens[int], count: int) -> list[int]:
    """`count` greedy tokens of one prompt, alone in the engine. Raises OctavoError when the pool is too small or logits are not finite."""
    blocks = -(-(len(prompt) + count) // engine.pool.block_tokens)
    if blocks >= engine.pool.num_blocks:
        raise OctavoError(
            f"the KV pool of {engine.pool.num_blocks} blocks is too small for {len(prompt)} + {count} tokens; raise engine.kv_pool_bytes"
        )
    order = AdmitOrder(
        1,
        0,
        list(prompt),
        len(prompt),
        0,
        list(range(1, blocks + 1)),
        Sampling(temperature=0.0),
        0,
        len(prompt) + count,
    )
    engine.post(order)
    tokens: list[int] = []
    while not tokens or engine.busy:
        engine.run_once()
        report = engine.take_report(force=True) or Report()
        tokens += [token for per_slot in report.tokens for token in per_slot]
        for finish in report.finishes:
            if finish.reason == "failed":
                raise OctavoError(f"the model cannot run here: {finish.message}")
    return tokens


def check_parity(engine: Engine, prompt: Tokens[int], expected: Tokens[int]) -> None:
    """Raises ArtifactMismatch unless the greedy continuation of the manifest's parity prompt is reproduced."""
    vocab = engine.decoder.config.vocab_size
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


def calibrate(engine: Engine, max_model_len: int) -> pb.Calibration:
    """Step time as fixed + prefill * tokens + decode * seqs + context * tokens, from a few timed steps (microseconds)."""
    longest = max(
        2, min(CALIBRATION_PROMPT, max_model_len // 2, (engine.pool.num_blocks - 2) * engine.pool.block_tokens // 2)
    )
    generate(engine, [1] * min(WARM_PROMPT, longest), 2)
    short_us = _prefill_us(engine, max(1, longest // 4))
    long_us = _prefill_us(engine, longest)
    prefill = max(0.1, (long_us - short_us) / max(1, longest - longest // 4))
    one_us = _decode_us(engine, 1, longest)
    batch = max(
        1, min(CALIBRATION_BATCH, (engine.pool.num_blocks - 1) // max(1, -(-(longest + 8) // engine.pool.block_tokens)))
    )
    many_us = _decode_us(engine, batch, longest) if batch > 1 else one_us
    decode = max(0.1, (many_us - one_us) / max(1, batch - 1))
    return pb.Calibration(
        fixed_us=max(1.0, one_us - decode), prefill_token_us=prefill, decode_seq_us=decode, context_token_us=0.0
    )


def _prefill_us(engine: Engine, length: int) -> float:
    times = []
    for _ in range(2):
        started = time.perf_counter()
        generate(engine, [1] * length, 1)
        times.append((time.perf_counter() - started) * 1e6)
    return min(times)


def _decode_us(engine: Engine, batch: int, length: int, steps: int = 4) -> float:
    per_seq = -(-(length + steps + 2) // engine.pool.block_tokens)
    for i in range(batch):
        blocks = list(range(1 + i * per_seq, 1 + (i + 1) * per_seq))
        engine.post(
            AdmitOrder(
                i + 1, i, [1] * length, length, length - 1, blocks, Sampling(temperature=0.0), 0, length + steps + 1
            )
        )
    times = []
    engine.run_once()
    while engine.busy:
        started = time.perf_counter()
        engine.run_once()
        times.append((time.perf_counter() - started) * 1e6)
    for i in range(batch):
        engine.post(StopOrder(i + 1, "finished"))
    engine.take_report(force=True)
    return statistics.median(times)
