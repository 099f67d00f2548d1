"""What arrives: one row per request, and how it becomes the Submitted that a gateway would send."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from octavo.packing import pack_u32

from octavo_scheduler.events import ChoiceStart, Submitted
from octavo_scheduler.simulate.hardware import BadPlan

NAMESPACE = bytes(32)
_OWN = 1 << 63
"""Marks the keys of a prompt that shares no block with any other."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `output_tokens` is what the model will say, `max_tokens` what the client allows (0: just that)."""

    at_us: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int = 0
    tenant: str = "default"
    slo_class: str = ""
    priority: int = 0
    deadline_us: int = 0
    hash_ids: tuple[int, ...] = ()
    """Identity of the prompt's leading runs of `hash_tokens` tokens; an id stands for its whole beginning."""
    hash_tokens: int = 0


def row_from(number: int, content: Any) -> Row:
    """Row `number` (from 0) of the workload. Raises BadPlan naming the field."""
    where = f"requests[{number}]"
    if not isinstance(content, Mapping):
        raise BadPlan(where, f"{type(content).__name__} must be an object")
    known = {item.name: item for item in fields(Row)}
    for name in content:
        if name not in known:
            raise BadPlan(f"{where}.{name}", f"is no field; the fields are {', '.join(known)}")
    for name in ("at_us", "prompt_tokens", "output_tokens"):
        if name not in content:
            raise BadPlan(f"{where}.{name}", "is missing; give a whole number")
    for name, value in content.items():
        if name in ("tenant", "slo_class"):
            if not isinstance(value, str):
                raise BadPlan(f"{where}.{name}", f"{value!r} must be a string")
        elif name == "hash_ids":
            if not isinstance(value, list) or not all(isinstance(item, int) and item >= 0 for item in value):
                raise BadPlan(f"{where}.hash_ids", "must be a list of whole numbers of at least 0")
        elif not isinstance(value, int) or isinstance(value, bool):
            raise BadPlan(f"{where}.{name}", f"{value!r} must be a whole number")
        elif value < (1 if name in ("prompt_tokens", "output_tokens") else 0) and name != "priority":
            least = 1 if name in ("prompt_tokens", "output_tokens") else 0
            raise BadPlan(f"{where}.{name}", f"{value} is too small; give at least {least}")
    if content.get("hash_ids") and content.get("hash_tokens", 0) < 1:
        raise BadPlan(f"{where}.hash_tokens", "must say how many tokens each of hash_ids stands for")
    return Row(**{**content, "hash_ids": tuple(content.get("hash_ids", ()))})


def prompt_keys(number: int, row: Row, block_tokens: int) -> list[bytes]:
    """One key per full block of the prompt. Blocks inside a hashed run carry its id, the rest the request's own number.

    As chained keys do, equal keys stand for equal beginnings: a trace's id names its block together with all before it.
    """
    full = row.prompt_tokens // block_tokens
    shared = min(full, len(row.hash_ids) * row.hash_tokens // block_tokens)
    keys = [
        (row.hash_ids[end // row.hash_tokens] << 64 | end).to_bytes(32, "little")
        for end in range(block_tokens - 1, shared * block_tokens, block_tokens)
    ]
    own = ((_OWN | number) << 64).to_bytes(32, "little")[8:]
    keys += [at.to_bytes(8, "little") + own for at in range(shared, full)]
    return keys


def submitted(number: int, row: Row, gateway: int, now_us: int, block_tokens: int) -> Submitted:
    """The event as the gateway gives it. What the model will say travels where sampling does: only workers read it."""
    return Submitted(
        now_us,
        gateway,
        f"r{number}",
        array("I", bytes(4 * row.prompt_tokens)),
        max(row.max_tokens, row.output_tokens),
        [ChoiceStart(number)],
        tenant=row.tenant,
        prompt_keys=prompt_keys(number, row, block_tokens),
        sampling=pack_u32([row.output_tokens]),
        remaining_deadline_us=row.deadline_us,
        priority=row.priority,
        slo_class=row.slo_class,
        namespace_root=NAMESPACE,
    )
