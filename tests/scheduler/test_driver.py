"""The driver: what an event orders goes first, what is told of it for people comes behind."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable

from octavo_scheduler.driver import Driver
from octavo_scheduler.events import ChoiceStart, GatewayJoined, Submitted, WorkerJoined
from octavo_scheduler.observer import Observer
from octavo_scheduler.policy import Policy

LOG = logging.getLogger("test")


def test_what_is_seen_of_an_event_waits_for_what_it_orders() -> None:
    """Spans and counts come behind the writers' turn; the journal, which is asked for in between, does not."""
    later: list[Callable[[], None]] = []
    seen: list[str] = []

    async def build() -> Driver:
        observer = Observer(None, LOG, lambda fact: seen.append(fact.name))
        return Driver(Policy(), observer, LOG, clock_us=lambda: 1_000_000, later=later.append)

    driver = asyncio.run(build())
    driver.feed(GatewayJoined(1_000_000, 1, "gw"))
    driver.feed(WorkerJoined(1_000_000, 7, "w0", 601, 16, 4, 4096, block_bytes=1000))
    driver.feed(Submitted(1_000_000, 1, "r1", array("I", [9] * 40), 30, [ChoiceStart(0)], tenant="default"))
    assert not seen and driver.journal.facts("r1")
    for work in later:
        work()
    assert "queue" in seen
