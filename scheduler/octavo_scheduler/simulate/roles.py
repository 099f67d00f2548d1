"""What a simulated cell with worker roles did: idle time per pool, what handoffs moved, and which part is the first to be full."""

from __future__ import annotations

from octavo.figures import Figure, figure_of

from octavo_scheduler.moves.rates import link_share, link_warning
from octavo_scheduler.simulate.cell_run import CellResult
from octavo_scheduler.simulate.hardware import Hardware

SHARES = ((0.5, "p50"), (0.99, "p99"))


def role_figures(hardware: Hardware, result: CellResult, span_us: int) -> list[Figure]:
    """Idle share per pool; of handoffs: how many, time from the first token to the second, overlapped share, rate."""
    figures = [
        Figure(f"idle_{role}", 1 - pool.busy_us / (pool.workers * span_us), "share", pool.workers)
        for role, pool in sorted(result.pools.items())
    ]
    done = [fact for fact in result.handoffs if fact.attributes["cause"] == "done"]
    figures.append(Figure("handoffs", len(done), "requests", max(1, len(result.handoffs))))
    if not done:
        return figures
    times_ms = [(fact.end_us - fact.start_us) / 1000 for fact in done]
    figures += [figure_of(f"handoff_{word}", times_ms, "ms", share) for share, word in SHARES]
    blocks = sum(int(fact.attributes["blocks"]) for fact in done)
    early = sum(int(fact.attributes["early_blocks"]) for fact in done)
    figures.append(Figure("handoff_overlapped", early / max(1, blocks), "share", blocks))
    figures.append(Figure("kv_rate", result.counters["handoff_bytes"] / span_us * 1e6, "bytes/s", len(done)))
    figures += [
        Figure(f"link_share_{role}", share, "share", result.pools[role].workers)
        for role, share in link_shares(hardware, result, span_us).items()
    ]
    return figures


def link_shares(hardware: Hardware, result: CellResult, span_us: int) -> dict[str, float]:
    """Per pool: KV of a handed-over request, times handoffs per second, over what all its links can move."""
    count = result.counters["handoffs_started"]
    if not count:
        return {}
    kv_bytes = result.counters["handoff_bytes"] / count
    per_s = count / span_us * 1e6
    return {
        role: link_share(kv_bytes, per_s, pool.workers * hardware.tier_bytes_per_us * 1e6)
        for role, pool in sorted(result.pools.items())
    }


def saturates(hardware: Hardware, result: CellResult, span_us: int) -> str:
    """The part with the least to spare: a pool's workers, or its links."""
    used = {role: pool.busy_us / (pool.workers * span_us) for role, pool in result.pools.items()}
    used |= {f"links of {role}": share for role, share in link_shares(hardware, result, span_us).items()}
    return max(sorted(used), key=used.__getitem__)


def warnings_of(hardware: Hardware, result: CellResult, span_us: int) -> list[str]:
    """One line per pool whose links are too full."""
    lines = (link_warning(share, role) for role, share in link_shares(hardware, result, span_us).items())
    return [line for line in lines if line]
