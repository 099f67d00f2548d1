"""Beams in the chaos parts: what a model would offer behind any tokens, how a chaos worker forks, what a search must come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.packing import pack_u32
from octavo_scheduler.beams.rule import BeamRow, BeamRule
from octavo_scheduler.orders import Fork

from tests.scheduler.chains import extend_chain

if TYPE_CHECKING:
    from tests.scheduler.chaos import ChaosSequence, ChaosWorker

MARK = 2**32 - 1
VOCAB = 64


def beam_sampling(offers: int) -> bytes:
    """The chaos worker's sampling parameters of a beam: how many continuations it reports."""
    return pack_u32([MARK, offers])


def offers_of(sampling: Sequence[int]) -> int:
    """How many continuations a sequence of these parameters reports; 0: it is no beam."""
    return sampling[1] if sampling[:1] == [MARK] else 0


def offers(chain: int, count: int) -> list[tuple[int, float]]:
    """(token, logprob) best first: a pure function of all tokens before (`chain` names them), all different."""
    x = (chain * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    weights = []
    for token in range(VOCAB):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        weights.append(((x >> 33) % 10_000 / 2_000.0 + token * 1e-6, token))
    norm = math.log(sum(math.exp(weight) for weight, _token in weights))
    return [(token, weight - norm) for weight, token in sorted(weights, reverse=True)[:count]]


def sample(worker: ChaosWorker, sequence: ChaosSequence) -> None:
    """The beam's row goes into the report, and the beam waits."""
    found = offers(sequence.chain[-1], sequence.beam)
    row = BeamRow(
        sequence.seq,
        len(sequence.tokens),
        tuple(token for token, _logprob in found),
        tuple(logprob for _token, logprob in found),
    )
    worker.report.beam_rows.append(row)
    worker.must_send = sequence.parked = True


def fork(worker: ChaosWorker, order: Fork) -> None:
    """All beams of a group take their tokens; who goes on from another has its KV."""
    found = [worker.sequences.get(seq) for seq in order.seqs]
    for at, (child, place) in enumerate(zip(found, order.parents, strict=True)):
        parent = found[place]
        assert order.parents[place] == place, "a beam that another goes on from goes on from itself"
        if child is None or parent is None or place == at:
            continue
        assert child.parked and parent.parked, "a fork came before its beams had stepped"
        full = parent.computed // worker.block_tokens
        child.tokens, child.chain, child.computed = list(parent.tokens), list(parent.chain), parent.computed
        child.blocks[:full] = parent.blocks[:full]
        if parent.computed % worker.block_tokens:
            worker.content[child.blocks[full]] = list(worker.content[parent.blocks[full]])
        worker._check_reads(child, child.computed)
    for beam, token in zip(found, order.tokens, strict=True):
        if beam is not None:
            assert beam.parked, "a beam was given a token twice"
            beam.parked = False
            beam.tokens.append(token)
            extend_chain(beam.chain, beam.tokens)


def expected_beams(
    prompt: list[int], width: int, rule: BeamRule, max_tokens: int
) -> list[tuple[list[int], str, float]]:
    """The textbook's search over whole token lists: (tokens, reason, score) of the best `shown` hypotheses."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int], str]] = []
    for length in range(1, max_tokens + 1):
        grown = []
        for total, output in live:
            chain: list[int] = []
            extend_chain(chain, prompt + output)
            grown += [(total + logprob, [*output, token]) for token, logprob in offers(chain[-1], VOCAB)]
        grown.sort(key=lambda item: -item[0])
        grown = grown[: max(2, 1 + len(rule.stop_ids)) * width]
        live = []
        for place, (total, output) in enumerate(grown):
            stops = output[-1] in rule.stop_ids
            if not stops and length < max_tokens:
                live.append((total, output))
            elif place < width:
                done.append((total / length**rule.length_penalty, output, "stop" if stops else "length"))
        live = live[:width]
        done = sorted(done, key=lambda item: -item[0])[:width]
        if len(done) == width and (
            rule.early_stopping or not live or live[0][0] / length**rule.length_penalty <= done[-1][0]
        ):
            break
    return [(output, reason, score) for score, output, reason in done[: rule.shown]]
