"""The first token of one stream that runs alone: the bare engine and the way through the services, in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.figures import Figure, figure_of

from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.client_child import PROMPT_TOKENS

PAIRS = 8
PAUSE_S = 0.2
"""Before each of both: processors, caches and threads have had as long to go cold for the one as for the other."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Milliseconds of one round."""

    opening_ms: float
    """Of a new client, which connects and opens its session; no part of the pairs."""
    pairs: tuple[tuple[float, float], ...]
    """(bare engine, through the services), one after the other."""


def first_tokens(
    engine: Child, client: Child, weights: str, number: int, pause: Callable[[float], None] = time.sleep
) -> FirstTokens:
    """The pairs of round `number`, each with prompts that nobody asked before, on one session that stays open.

    Of the bare engine a run of one step: prefill and token. Raises OctavoError when one of both failed.
    """
    row = f"run/{weights}/b1/ctx{PROMPT_TOKENS}"
    first = number * (PAIRS + 1)
    opening_s = client.ask(do="open", seed=first)["seconds"]
    pairs = []
    for seed in range(first + 1, first + 1 + PAIRS):
        pause(PAUSE_S)
        alone_s = engine.ask(do="row", row=row, steps=1, seed=seed)["seconds"]
        pause(PAUSE_S)
        pairs.append((1e3 * alone_s, 1e3 * client.ask(do="ask", seed=seed)["seconds"]))
    return FirstTokens(1e3 * opening_s, tuple(pairs))


def first_token_figures(point: str, rounds: Sequence[FirstTokens]) -> list[Figure]:
    """How much later than the bare engine, pair by pair over all rounds; both sides of it; and a client's very first request."""
    pairs = [pair for found in rounds for pair in found.pairs]
    return [
        figure_of(f"{point}/ttft_over_engine", [through - alone for alone, through in pairs], "ms"),
        figure_of(f"{point}/ttft_p50", [through for _alone, through in pairs], "ms"),
        figure_of(f"{point}/ttft_p50/engine", [alone for alone, _through in pairs], "ms"),
        figure_of(f"{point}/ttft_opening", [found.opening_ms for found in rounds], "ms"),
    ]
