"""What arrives: one row per request, and how it becomes the Submitted that a gateway would send.

A prompt is written down as pieces, each an identity and a length: equal pieces are equal tokens. A row may follow
another (the next turn of a conversation): it then arrives a pause after that one's end, with all that was said before
its own pieces.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any
from zlib import crc32

from octavo.keys import extend_keys
from octavo.packing import pack_u32

from octavo_scheduler.events import ChoiceStart, Submitted
from octavo_scheduler.simulate.hardware import BadPlan

NAMESPACE = bytes(32)
"""All simulated tenants share one: what may be shared is said by the pieces."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `output_tokens` is what the model will say, `max_tokens` what the client allows (0: just that)."""

    at_us: int
    pieces: tuple[tuple[str, int], ...]
    """(identity, tokens), in order."""
    output_tokens: int
    max_tokens: int = 0
    tenant: str = "default"
    slo_class: str = ""
    priority: int = 0
    deadline_us: int = 0
    tool: str = ""
    """The turn ends in a call of this tool: a pause is announced with it, and who follows it resumes it."""
    expected_us: int = 0
    """The pause that the client expects then; 0: it says nothing."""
    after: int = -1
    """Number of the row whose end it follows; its `at_us` is then the pause. -1: none."""


_WHOLE = {
    "at_us": 0,
    "output_tokens": 1,
    "max_tokens": 0,
    "deadline_us": 0,
    "expected_us": 0,
    "after": -1,
    "priority": None,
}


def row_from(number: int, content: Any) -> Row:
    """Row `number` (from 0) of the workload. Raises BadPlan naming the field."""
    where = f"requests[{number}]"
    if not isinstance(content, Mapping):
        raise BadPlan(where, f"{type(content).__name__} must be an object")
    known = {item.name: item for item in fields(Row)}
    for name in content:
        if name not in known:
            raise BadPlan(f"{where}.{name}", f"is no field; the fields are {', '.join(known)}")
    for name in ("at_us", "pieces", "output_tokens"):
        if name not in content:
            raise BadPlan(f"{where}.{name}", "is missing")
    for name, least in _WHOLE.items():
        value = content.get(name, least or 0)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadPlan(f"{where}.{name}", f"{value!r} must be a whole number")
        if least is not None and value < least:
            raise BadPlan(f"{where}.{name}", f"{value} is too small; give at least {least}")
    if content.get("after", -1) >= number:
        raise BadPlan(f"{where}.after", f"{content['after']} must be the number of an earlier row")
    for name in ("tenant", "slo_class", "tool"):
        if not isinstance(content.get(name, ""), str):
            raise BadPlan(f"{where}.{name}", f"{content[name]!r} must be a string")
    return Row(**{**content, "pieces": _pieces(where, content["pieces"])})


def _pieces(where: str, given: Any) -> tuple[tuple[str, int], ...]:
    pieces = given if isinstance(given, list) else []
    if not pieces or not all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and type(item[1]) is int and item[1] > 0
        for item in pieces
    ):
        raise BadPlan(f"{where}.pieces", "must be a list of [identity, tokens], at least one, each of 1 token or more")
    return tuple((identity, tokens) for identity, tokens in pieces)


def spread_key(row: Row) -> int:
    """A number that rows with the same beginning share."""
    return crc32(row.pieces[0][0].encode())


def prompt_of(pieces: Sequence[tuple[str, int]]) -> array[int]:
    """Token ids of the pieces: two words per identity, in turn, so that two pieces differ from their first block on."""
    prompt = array("I")
    for identity, tokens in pieces:
        words = array("I", blake2b(identity.encode(), digest_size=8).digest())
        prompt += (words * (tokens // 2 + 1))[:tokens]
    return prompt


def submitted(
    number: int, row: Row, said_before: array[int], gateway: int, now_us: int, block_tokens: int, resumes: str = ""
) -> Submitted:
    """The event as the gateway gives it; `said_before` goes in front of the row's own pieces.

    What the model will say travels where the sampling parameters do, which only workers read.
    """
    prompt = said_before + prompt_of(row.pieces)
    return Submitted(
        now_us,
        gateway,
        f"r{number}",
        prompt,
        max(row.max_tokens, row.output_tokens),
        [ChoiceStart(number)],
        tenant=row.tenant,
        prompt_keys=extend_keys(NAMESPACE, prompt, block_tokens),
        sampling=pack_u32([row.output_tokens]),
        remaining_deadline_us=row.deadline_us,
        priority=row.priority,
        slo_class=row.slo_class,
        namespace_root=NAMESPACE,
        pause_tool=row.tool,
        pause_expected_us=row.expected_us,
        resumes=resumes,
    )
