"""The ledger as people and Prometheus see it: what is booked, and what blocks that are still cached have cost so far."""

from __future__ import annotations

from dataclasses import replace

from octavo.v1 import scheduler_pb2 as pb

from octavo_scheduler.books.book import Book, Who, length_name
from octavo_scheduler.cell import Cell


def rows(cell: Cell) -> dict[tuple[str, Who], Book]:
    """A copy of every row, the held blocks' cost up to the last look included. Changes nothing."""
    shown = {key: replace(book) for key, book in cell.ledger.rows.items()}
    for worker in cell.fleet.workers.values():
        for (technique, who), cost_ms in worker.holding.still_open().items():
            shown.setdefault((technique, who), Book()).held_ms += cost_ms
    return shown


def seen_tenants(cell: Cell) -> list[str]:
    """Tenants that something was booked for, or that have a request or a limit of their own now."""
    booked = {who.tenant for _technique, who in rows(cell)}
    return sorted({*booked, *cell.tenants.names()} - {""})


def totals(cell: Cell) -> dict[str, Book]:
    """The same by technique."""
    total = {name: Book() for name in cell.ledger.books}
    for (technique, _who), book in rows(cell).items():
        total[technique].add(book)
    return total


def ledger_row(technique: str, book: Book, who: Who | None = None) -> pb.LedgerRow:
    """One row as it travels."""
    return pb.LedgerRow(
        technique=technique,
        entries=book.entries,
        saved_ms=book.saved_ms,
        cost_ms=book.cost_ms,
        held_ms=book.held_ms,
        saved_bytes=book.saved_bytes,
        cost_bytes=book.cost_bytes,
        hits=book.hits,
        hit_tokens=book.hit_tokens,
        asked_tokens=book.asked_tokens,
        tenant=who.tenant if who is not None else "",
        prompt=length_name(who.length) if who is not None else "",
    )


def trial_rows(cell: Cell) -> list[pb.LedgerTrial]:
    """Every class that a switch or a trial knows of."""
    found: list[pb.LedgerTrial] = []
    for (technique, length), switch in sorted(cell.switches.by_class.items()):
        row = pb.LedgerTrial(
            technique=technique,
            prompt=length_name(length),
            with_it=switch.trial.with_it.seen,
            without=switch.trial.without.seen,
            off=switch.off,
            why=switch.why,
            turns=switch.changes,
            net_ms=switch.net_ms,
        )
        if switch.trial.calibration is not None:
            row.calibration = switch.trial.calibration
        found.append(row)
    return found


def ledger_answer(cell: Cell, technique: str = "", tenant: str = "") -> pb.GetLedgerResponse:
    """The answer to GetLedger; an empty technique or tenant is all of them."""
    return pb.GetLedgerResponse(
        rows=[
            ledger_row(name, book, who)
            for (name, who), book in sorted(rows(cell).items())
            if technique in ("", name) and tenant in ("", who.tenant)
        ],
        trials=[row for row in trial_rows(cell) if technique in ("", row.technique)],
        tiers=[
            pb.TierRate(
                worker_id=worker.worker_id,
                tier=tier,
                bytes_per_us=link.bytes_per_us,
                fixed_us=link.fixed_us,
                loads=link.observed,
            )
            for worker in cell.fleet.workers.values()
            for tier, link in sorted(worker.tier_links.items())
        ],
    )


def ledger_figures(cell: Cell) -> dict[str, dict[tuple[str, ...], float]]:
    """Scraped figures by name and label values: net per tenant, switches, calibration, rates of the tiers."""
    net: dict[tuple[str, ...], float] = {}
    for (technique, who), book in rows(cell).items():
        net[technique, who.tenant] = net.get((technique, who.tenant), 0.0) + book.net_ms
    trials = trial_rows(cell)
    links = [
        ((worker.worker_id, tier), link)
        for worker in cell.fleet.workers.values()
        for tier, link in worker.tier_links.items()
    ]
    return {
        "ledger_tenant_net_ms": net,
        "ledger_off": {(row.technique, row.prompt): float(row.off) for row in trials},
        "ledger_calibration_ratio": {
            (row.technique, row.prompt): row.calibration for row in trials if row.HasField("calibration")
        },
        "tier_load_bytes_per_second": {labels: link.bytes_per_us * 1e6 for labels, link in links},
        "tier_load_lookup_seconds": {labels: link.fixed_us / 1e6 for labels, link in links},
    }
