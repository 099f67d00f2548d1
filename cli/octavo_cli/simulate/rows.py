"""From a workload and its arrivals to the simulator's rows (octavo_scheduler.simulate.workload.Row, as JSON objects)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from octavo_cli.bench.work import Session, Turn, Workload

LETTERS_PER_TOKEN = 4
"""The simulator has no tokenizer: a text counts as one token for this many characters."""


def rows_of(
    workload: Workload, times_s: Sequence[float], tenants: int = 1, slo_classes: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """One row per turn of the sessions that arrive at `times_s`; sessions take turns among tenants and SLO classes."""
    number = 0
    for index, (session, at_s) in enumerate(zip(workload.sessions, times_s, strict=False)):
        for position, turn in enumerate(session.turns):
            row: dict[str, Any] = {
                "at_us": round((turn.pause_s if position else at_s) * 1e6),
                "pieces": pieces_of(session, position, turn),
                "output_tokens": turn.max_tokens,
            }
            if tenants > 1:
                row["tenant"] = f"tenant{index % tenants}"
            if slo_classes:
                row["slo_class"] = slo_classes[index // tenants % len(slo_classes)]  # each tenant asks in each class
            if position:
                row["after"] = number - 1
            yield row
            number += 1


def pieces_of(session: Session, position: int, turn: Turn) -> list[list[Any]]:
    """[identity, tokens] of what the turn adds."""
    if turn.pieces:
        return [[piece.seed, piece.tokens] for piece in turn.pieces]
    return [[f"{session.name}/{position}", max(1, len(turn.text) // LETTERS_PER_TOKEN)]]
