from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.policies.about import ABOUT_US, MOST_OTHERS, others_about
from octavo_scheduler.policy import Policy


def asked(*tenants: str) -> Cell:
    cell = Cell(Policy(), 0)
    for number, tenant in enumerate(tenants):
        cell.now_us = number
        cell.tenant_asked(tenant)
    return cell


def test_the_latest_first_and_not_the_tenant_itself() -> None:
    assert list(others_about(asked("a", "b", "c", "a"), "a")) == ["c", "b"]
    assert list(others_about(asked("a"), "a")) == []


def test_whoever_asked_too_long_ago_is_gone() -> None:
    cell = asked("a", "b", "c")
    cell.now_us = ABOUT_US + 1  # b asked at 1
    assert list(others_about(cell, "a")) == ["c"]


def test_as_many_others_whether_the_tenant_is_among_the_latest_or_not() -> None:
    names = [f"t{number}" for number in range(MOST_OTHERS + 4)]
    assert list(others_about(asked(*names), names[-1])) == names[-2 : -2 - MOST_OTHERS : -1]
    assert list(others_about(asked(*names), "nobody")) == names[: -1 - MOST_OTHERS : -1]
