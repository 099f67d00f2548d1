"""What isolation costs: one trace replayed by the simulator with its sessions dealt out to 1, 4, 16 namespaces.

Namespaces share nothing, so what several of them ask for alike is computed once in each. The core, its index and its
eviction are the live ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from octavo.figures import Figure, Figures, from_json

from octavo_cli.bench.arrivals import OpenLoop, arrival_times
from octavo_cli.bench.work import BadPlan, Workload
from octavo_cli.simulate.rows import rows_of
from octavo_cli.simulate.simulator import ask

HARDWARE = "this-cpu"


def namespace_counts(text: str) -> list[int]:
    """The numbers of `1,4,16`, the least first; 1 is always among them. Raises BadPlan."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and 0 < int(word) <= 10_000 for word in words):
        raise BadPlan(f"--namespaces: {text!r} must be numbers from 1 to 10000, as 1,4,16", field="namespaces")
    return sorted({1, *map(int, words)})


def isolated_rows(rows: Iterable[dict[str, Any]], namespaces: int) -> Iterator[dict[str, Any]]:
    """The same requests, each session's text its namespace's own: what two namespaces say alike shares no block."""
    sessions, namespace = 0, ""
    for row in rows:
        if "after" not in row:  # the first turn of a session
            namespace = f"namespace{sessions % namespaces}"
            sessions += 1
        pieces = [[f"{namespace}/{identity}", tokens] for identity, tokens in row["pieces"]]
        yield {**row, "tenant": namespace, "pieces": pieces}


def measure_namespaces(
    load: Workload, counts: Sequence[int], rate_per_s: float, flags: Sequence[str] = (), hardware: Any = HARDWARE
) -> Figures:
    """Hit tokens, what is lost to isolation, and time to first token for each number of namespaces. Raises BadPlan."""
    kind = "poisson" if rate_per_s else "replay"
    loop = OpenLoop(kind, rate_per_s, 0.0, 1.0, 1.0)
    times_s = arrival_times(loop, len(load.sessions), [session.at_s for session in load.sessions], 0)
    task = {"hardware": hardware, "workers": 1, "cell_workers": 1, "cost_per_hour": 0.0}
    results: list[Figure] = []
    whole = 0.0
    for count in counts:
        answer = ask(task, (json.dumps(row) for row in isolated_rows(rows_of(load, times_s), count)), flags)
        found = {item.name: item for item in from_json(answer["figures"]).results}
        hits = found["cached_tokens"].value if "cached_tokens" in found else 0.0
        whole = hits if count == 1 else whole
        lost = whole - hits
        results += [
            Figure(f"hit_tokens/ns{count}", hits, "tokens", load.requests),
            Figure(f"hit_tokens_lost/ns{count}", lost, "tokens", load.requests),
            Figure(f"hit_share_lost/ns{count}", lost / whole if whole else 0.0, "share", load.requests),
        ]
        if "ttft_p50" in found:
            ttft = found["ttft_p50"]
            results.append(Figure(f"ttft_p50/ns{count}", ttft.value, ttft.unit, ttft.n, ttft.spread))
    config = {"workload": load.name, "digest": load.digest(), "namespaces": list(counts), "rate_per_s": rate_per_s}
    return Figures("cache namespaces", tuple(results), config)
