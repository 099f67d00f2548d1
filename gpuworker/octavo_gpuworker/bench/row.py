"""Row: one measurement of the bare engine, and the name it goes by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from octavo.errors import OctavoError

DEFAULT_CONTEXT = 256
"""Tokens that a decode row attends to at its start."""
_DECODE = re.compile(r"b(\d+)")
_CONTEXT = re.compile(r"ctx(\d+)")
WEIGHTS = ("bf16", "int8", "int4", "f32")


class BadRow(OctavoError, ValueError):
    """A row's name that does not have the form; the message names the part."""


@dataclass(frozen=True, slots=True)
class Row:
    """`prefill/WEIGHTS/TOKENS`, `decode/WEIGHTS/bSEQUENCES` or `run/WEIGHTS/bSEQUENCES`; then any of `sampled`, `ctxN`, `kv-int8`.

    prefill: one prompt; decode: steps of so many sequences; run: prompts of the context's length and their output, from start to end.
    """

    kind: Literal["prefill", "decode", "run"]
    weights: str
    size: int
    """Prompt tokens of a prefill, else sequences."""
    context: int = DEFAULT_CONTEXT
    sampled: bool = False
    """Temperature 0.8, top-p 0.95; else greedy."""
    kv_int8: bool = False

    @property
    def name(self) -> str:
        size = str(self.size) if self.kind == "prefill" else f"b{self.size}"
        parts = [self.kind, self.weights, size]
        parts += ["sampled"] * self.sampled + [f"ctx{self.context}"] * (self.context != DEFAULT_CONTEXT)
        return "/".join(parts + ["kv-int8"] * self.kv_int8)


def parse_row(name: str) -> Row:
    """The row of a name. Raises BadRow naming the part that is wrong and what may stand there."""
    kind, _, rest = name.partition("/")
    weights, _, rest = rest.partition("/")
    size_text, *extras = rest.split("/")
    if kind not in ("prefill", "decode", "run"):
        raise BadRow(f"row {name}: {kind!r} is no kind; prefill, decode and run are", field="row")
    if weights not in WEIGHTS:
        raise BadRow(f"row {name}: weights {weights!r} are not one of {', '.join(WEIGHTS)}", field="row")
    size = re.fullmatch(r"\d+", size_text) if kind == "prefill" else _DECODE.fullmatch(size_text)
    if size is None or int(size[size.lastindex or 0]) < 1:
        form = "a number of tokens, like 512" if kind == "prefill" else "a batch, like b16"
        raise BadRow(f"row {name}: {size_text!r} is not {form}", field="row")
    sampled = kv_int8 = False
    context = DEFAULT_CONTEXT
    for extra in extras:
        if extra == "sampled":
            sampled = True
        elif extra == "kv-int8":
            kv_int8 = True
        elif kind != "prefill" and (match := _CONTEXT.fullmatch(extra)) and int(match[1]) > 0:
            context = int(match[1])
        else:
            raise BadRow(f"row {name}: {extra!r} is not one of sampled, ctxN (of a batch), kv-int8", field="row")
    return Row(kind, weights, int(size[size.lastindex or 0]), context, sampled, kv_int8)  # type: ignore[arg-type]


def name_fault(name: str) -> str:
    """What is wrong with a row's name, or an empty string."""
    try:
        parse_row(name)
    except BadRow as error:
        return str(error)
    return ""
