"""The event log: consecutive, bounded, and honest about what it forgot."""

from __future__ import annotations

from octavo_kvstore import events
from octavo_kvstore.events import EventLog
from octavo_kvstore.testing import key_of


def test_events_are_numbered_and_read_in_parts() -> None:
    log = EventLog()
    woken: list[int] = []
    log.on_event = lambda: woken.append(log.number)
    for number in range(5):
        log.append(key_of(number), removed=number == 4, tier="dram")
    assert woken == [1, 2, 3, 4, 5]
    first = log.after(0, 3)
    assert first is not None and [event.number for event in first] == [1, 2, 3]
    rest = log.after(3, 100)
    assert rest is not None and [(event.number, event.removed) for event in rest] == [(4, False), (5, True)]
    assert log.after(5, 100) == []


def test_what_was_forgotten_is_said() -> None:
    log = EventLog()
    for number in range(events.MAX_BACKLOG + 10):
        log.append(key_of(number % 7), removed=False, tier="dram")
    assert log.after(5, 100) is None
    after = log.after(10, 1)
    assert after is not None and after[0].number == 11


def test_nothing_happened_yet() -> None:
    assert EventLog().after(0, 10) == []
