"""The core decides as it did when the stored logs were written: a change of its cost must not be one of its judgement."""

from __future__ import annotations

import gzip
import json

import pytest
from octavo_scheduler.event_log import replay

from tests.scheduler.stored_logs import LOGS

NAMES = sorted(path.name for path in LOGS.glob("*.log.gz"))


def lines_of(name: str) -> list[str]:
    return gzip.decompress((LOGS / name).read_bytes()).decode().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_the_orders_are_those_of_the_log(name: str) -> None:
    played = replay(lines_of(name))
    assert played.difference == "", "if decisions were meant to change: python -m tests.scheduler.stored_logs"
    assert played.events > 150 and played.orders > 100


def test_another_judgement_would_show() -> None:
    header, *rest = lines_of("slo-fair.log.gz")
    policy = json.loads(header)
    for change in ({"order": "fcfs"}, {"prefix_cache": False}, {"margin_fraction": 0.3}, {"grant_ahead_us": 100_000}):
        changed = {**policy, "policy": {**policy["policy"], **change}}
        assert replay([json.dumps(changed), *rest]).difference, f"{change} makes no difference in the log"


def test_the_logs_hold_what_may_happen() -> None:
    kinds: set[str] = set()
    for name in NAMES:
        for line in lines_of(name)[1:]:
            entry = json.loads(line)
            kinds.add(entry[0])
            if entry[0] == "event":
                kinds.add(entry[1][""])
                kinds.update(order[""] for _epoch, batch in entry[2] for order in batch)
    assert kinds >= {"event", "collect", "drain", "Submitted", "Cancelled", "Reported", "WorkerJoined", "WorkerLost"}
    assert kinds >= {"StoreJoined", "StoreChanged", "Admit", "Grant", "Stop", "Offload", "Load", "Label", "StepPolicy"}
