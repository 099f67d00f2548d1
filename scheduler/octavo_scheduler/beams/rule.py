"""What a request says of its beam search, and what a worker reports of a beam."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeamRule:
    """The choices of the request are the beams; the first `shown` of them are told, at the end."""

    shown: int
    length_penalty: float = 1.0
    early_stopping: bool = False
    stop_ids: tuple[int, ...] = ()  # a continuation by one of these ends its hypothesis
    logprobs: int = -1  # alternatives that are told with each token; -1: none, nor its own


@dataclass(slots=True)
class BeamRow:
    """The best continuations of a beam of `length` tokens, best first, with the log-probabilities of its raw logits."""

    seq: int
    length: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of a hypothesis, and the best tokens at its place."""

    token: int
    logprob: float
    top_tokens: tuple[int, ...]
    top_logprobs: tuple[float, ...]
