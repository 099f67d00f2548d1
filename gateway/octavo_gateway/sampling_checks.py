"""Range checks of what a client may ask for: each raises InvalidRequest naming the field, what was wrong, and the fix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from octavo.errors import FieldName, InvalidRequest

MAX_STOP_CHARS: Final = 1024
MAX_STOP_IDS: Final = 256
MAX_BIASES: Final = 1024
U64: Final = 2**64
NEARLY_GREEDY: Final = 1e-4
"""A temperature below this is greedy: dividing logits by it would only overflow."""
LEAST_FLOAT32: Final = 2.0**-126
"""The least normal number of it."""


def invalid(field: str, *problem: str) -> InvalidRequest:
    """The error of one field; the problem in parts, where it names others, which are FieldNames."""
    return InvalidRequest((FieldName(field), ": ", *problem), field=field)


def number(field: str, value: float, low: float, high: float, *, open_low: bool = False, fix: str = "") -> float:
    """`value` in [low, high], or (low, high] with open_low; NaN and infinities are refused."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise invalid(field, f"{type(value).__name__} given; use a number")
    if math.isnan(value) or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise invalid(field, f"{value!r} is out of range; use {fix or f'a number in {bracket}{low:g}, {high:g}]'}")
    return float(value)


def above_zero(field: str, value: float, high: float) -> float:
    """`value` in (0, high]; one that float32, in which it travels, takes for zero becomes the least that is none: zero says 'off'."""
    return max(number(field, value, 0, high, open_low=True), LEAST_FLOAT32)


def integer(field: str, value: int, low: int, high: int, fix: str = "") -> int:
    """`value` in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(field, f"{type(value).__name__} given; use an integer")
    if not low <= value <= high:
        raise invalid(field, f"{value} is out of range; use {fix or f'an integer from {low} to {high}'}")
    return value


def text(field: str, value: str) -> str:
    """`value`, which must be encodable: a lone surrogate is not."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(field, f"a lone surrogate at character {error.start}; send valid Unicode") from error
    return value


def name(field: str, value: str, longest: int) -> str:
    """Printable ASCII without spaces and slashes, at most `longest` characters; may be empty."""
    if len(value) > longest:
        raise invalid(field, f"{len(value)} characters; use at most {longest}")
    if any(not "!" <= char <= "~" or char == "/" for char in value):
        raise invalid(field, "a character that is not allowed; use printable ASCII without spaces and slashes")
    return value


def token_ids(field: str, ids: Sequence[int], vocab_size: int) -> list[int]:
    """Ids in [0, vocab_size)."""
    for i, token_id in enumerate(ids):
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise invalid(
                f"{field}[{i}]", f"{token_id!r} is no token id; this model has ids from 0 to {vocab_size - 1}"
            )
    return list(ids)


def logit_bias(biases: Mapping[int, float], vocab_size: int) -> dict[int, float]:
    """Token id -> bias in [-100, 100]."""
    if len(biases) > MAX_BIASES:
        raise invalid("logit_bias", f"{len(biases)} entries; use at most {MAX_BIASES}")
    for token_id, bias in biases.items():
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise invalid("logit_bias", f"{token_id!r} is no token id; this model has ids from 0 to {vocab_size - 1}")
        number(f"logit_bias[{token_id}]", bias, -100, 100)
    return dict(biases)


def stop_strings(stops: Sequence[str], most: int) -> tuple[str, ...]:
    """Stop strings without duplicates, in order."""
    if len(stops) > most:
        raise invalid("stop", f"{len(stops)} stop strings; use at most {most}")
    for i, stop in enumerate(stops):
        field = f"stop[{i}]"
        if not stop:
            raise invalid(field, "an empty string would stop everything; remove it")
        if len(stop) > MAX_STOP_CHARS:
            raise invalid(field, f"{len(stop)} characters; use at most {MAX_STOP_CHARS}")
        text(field, stop)
    return tuple(dict.fromkeys(stops))


def temperature(value: float) -> float:
    """`value` in [0, 100]; what is nearly 0 becomes 0."""
    checked = number("temperature", value, 0, 100, fix="a finite number from 0 (greedy) to 100")
    return checked if checked >= NEARLY_GREEDY else 0.0
