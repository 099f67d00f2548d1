"""Beam search as a request asks for it: what goes together with it, and how it travels to the scheduler.

It draws nothing, so that whatever shapes a draw is refused beside it. Stop strings are looked for in the text of each finished
beam, which is then cut as any text; they do not steer the search, which knows tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from octavo.packing import pack_u32
from octavo.v1 import scheduler_pb2, worker_pb2

from octavo_gateway import sampling_checks as check
from octavo_gateway.requests import RequestParams

if TYPE_CHECKING:
    from octavo_gateway.admission import Limits, Sampling

MAX_WIDTH: Final = 10
MAX_PENALTY: Final = 10.0
_DRAWS: Final[dict[str, tuple[float | None, ...]]] = {
    "temperature": (None, 0),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (0,),
}
"""Field of the request -> values that change nothing."""


@dataclass(frozen=True, slots=True)
class Beams:
    """Checked and complete. The `n` best of `width` beams come back."""

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


def check_beams(params: RequestParams, limits: Limits) -> Beams | None:
    """The search that is asked for; None: none is. Raises InvalidRequest naming the field and the fix."""
    if not params.beam_width:
        given = {"length_penalty": params.length_penalty not in (None, 1), "early_stopping": params.early_stopping}
        for name in given:
            if given[name]:
                raise check.invalid(name, "only a beam search takes it; set beam_width, or leave it out")
        return None
    width = check.integer("beam_width", params.beam_width, 1, min(MAX_WIDTH, limits.max_choices))
    if params.n is not None and params.n > width:
        raise check.invalid("n", f"{params.n} beams of {width} cannot come back; use at most beam_width ({width})")
    for name, harmless in _DRAWS.items():
        if getattr(params, name) not in harmless:
            raise check.invalid(name, "a beam search draws nothing; leave it out")
    if params.logit_bias:
        raise check.invalid("logit_bias", "a beam search goes by the model's own probabilities; leave it out")
    penalty = 1.0 if params.length_penalty is None else params.length_penalty
    return Beams(
        width,
        check.number("length_penalty", penalty, -MAX_PENALTY, MAX_PENALTY),
        bool(params.early_stopping),
    )


def without_draws(params: RequestParams) -> RequestParams:
    """The model's own sampling defaults do not hold for a beam search: what changes nothing stands in their place."""
    return replace(params, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)


def write_beams(submit: scheduler_pb2.Submit, beams: Beams, sampling: Sampling, shown: int) -> None:
    """Makes a submit of `shown` choices the search's: a choice for each beam, and rows as long as its steps need.

    Of a beam's continuations as many may end as there are end tokens; behind them there must be `width` that do not.
    """
    for _ in range(shown, beams.width):
        submit.choices.add()
    message = submit.beams
    message.shown, message.length_penalty, message.early_stopping = shown, beams.length_penalty, beams.early_stopping
    message.stop_ids, message.logprobs = pack_u32(sampling.stop_ids), sampling.logprobs
    row = max(2 * beams.width, beams.width + len(sampling.stop_ids), sampling.logprobs)
    submit.sampling.CopyFrom(worker_pb2.SamplingParams(top_p=1, repetition_penalty=1, logprobs=row, beam=True))
