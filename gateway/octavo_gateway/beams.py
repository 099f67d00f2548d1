"""Beam search as a request asks for it: what goes together with it.

It draws nothing, so that whatever shapes a draw is refused beside it. Stop strings are looked for in the text of each finished
beam, which is then cut as any text; they do not steer the search, which knows tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from octavo.errors import FieldName

from octavo_gateway import sampling_checks as check
from octavo_gateway.requests import RequestParams

if TYPE_CHECKING:
    from octavo_gateway.admission import Limits

WIDTH: Final = FieldName("beam_width")
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


def check_beams(params: RequestParams, limits: Limits, vocab_size: int) -> Beams | None:
    """The search that is asked for; None: none is. Raises InvalidRequest naming the field and the fix.

    The first step alone has at most `vocab_size` continuations, and the search may end with it.
    """
    if not params.beam_width:
        given = {"length_penalty": params.length_penalty not in (None, 1), "early_stopping": params.early_stopping}
        for name in given:
            if given[name]:
                raise check.invalid(name, "only a beam search takes it; set ", WIDTH, ", or leave it out")
        return None
    width = check.integer(WIDTH, params.beam_width, 1, min(MAX_WIDTH, limits.max_choices, vocab_size))
    if params.n is not None and params.n > width:
        problem = f"{params.n} beams of {width} cannot come back; use at most "
        raise check.invalid("n", problem, WIDTH, f" ({width})")
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
