"""Fair sharing between groups of requests: the group with the least virtual counter is served next.

The virtual token counter of Sheng et al. (Fairness in Serving Large Language Models, OSDI 2024, arXiv 2401.00588) with
predicted device time in place of tokens. A group that begins to wait is lifted to the least counter of those that
wait, or to that of the last one which stopped waiting: nobody saves up service by being idle.

With a window, all groups whose counter is within it of the least compete by their heads' keys: urgency decides as long as
nobody gets ahead by more than the window.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from octavo_scheduler.policies.account import Account
from octavo_scheduler.policies.line import Head, Line
from octavo_scheduler.request import Request

MAX_COMPETING = 8
"""Groups within the window that are compared at most, so that a choice costs O(log groups)."""
MAX_GROUPS = 4096
"""Groups remembered; of more, those that do not wait are forgotten, and lifted when they come back."""


class FairLine:
    """One line per group, and the groups in the order of their counters."""

    __slots__ = (
        "_accounts",
        "_by_tenant",
        "_floor_us",
        "_group_of",
        "_heap",
        "_lines",
        "_make_line",
        "_number",
        "_weights",
        "_window_us",
    )

    def __init__(
        self,
        group_of: Callable[[Request], str],
        weights: Mapping[str, float],
        make_line: Callable[[str], Line],
        window_us: float = 0.0,
        by_tenant: bool = True,
    ) -> None:
        self._group_of = group_of
        self._weights = weights
        self._make_line = make_line
        self._window_us = window_us
        self._by_tenant = by_tenant
        self._accounts: dict[str, Account] = {}
        self._lines: dict[str, Line] = {}
        self._heap: list[tuple[float, int, Account]] = []  # may hold an older, smaller counter than the account's own
        self._number = 0
        self._floor_us = 0.0

    def push(self, request: Request) -> tuple[Account, ...]:
        account = self._account(self._group_of(request))
        if not account.waiting:
            self._settle_top()
            least_us = self._heap[0][0] if self._heap else self._floor_us
            account.virtual_us = max(account.virtual_us, least_us)
        account.waiting += 1
        inner = self._lines[account.name].push(request)
        self._show(account)
        return (account, *inner) if inner else account.alone

    def enter(self, request: Request, now_us: int) -> tuple[Account, ...]:
        account = self._account(self._group_of(request))
        if self._heap:
            self._settle_top()
        if account.virtual_us < self._floor_us:  # nobody waits
            account.virtual_us = self._floor_us
        inner = self._lines[account.name].enter(request, now_us)
        return (account, *inner) if inner else account.alone

    def left(self, request: Request) -> None:
        account = self._accounts[self._group_of(request)]
        self._lines[account.name].left(request)
        self._floor_us = account.virtual_us

    def peek(self, now_us: int) -> Head | None:
        found = self._compete(now_us)
        return found[1] if found is not None else None

    def park(self, request: Request) -> None:
        self._lines[self._group_of(request)].park(request)

    def unpark(self, request: Request) -> None:
        account = self._accounts[self._group_of(request)]
        self._lines[account.name].unpark(request)
        self._show(account)

    def park_tenant(self, request: Request) -> bool:
        account = self._accounts[self._group_of(request)]
        if self._by_tenant:
            account.hidden = True
            return True
        return self._lines[account.name].park_tenant(request)

    def unpark_tenant(self, request: Request) -> None:
        account = self._accounts[self._group_of(request)]
        account.hidden = False
        if not self._by_tenant:
            self._lines[account.name].unpark_tenant(request)
        if account.waiting:
            self._show(account)

    def remove(self, request: Request) -> None:
        account = self._accounts[self._group_of(request)]
        self._lines[account.name].remove(request)
        account.waiting -= 1
        if not account.waiting:
            self._floor_us = account.virtual_us

    def accounts(self) -> list[Account]:
        """All that are remembered, for who only looks."""
        return list(self._accounts.values())

    def _account(self, name: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= MAX_GROUPS:
                self._forget_idle()
            account = self._accounts[name] = Account(name, self._weights.get(name, 1.0))
            self._lines[name] = self._make_line(name)
        return account

    def _forget_idle(self) -> None:
        for account in list(self._accounts.values()):
            if not account.waiting and not account.in_sight:
                del self._accounts[account.name], self._lines[account.name]

    def _show(self, account: Account) -> None:
        if not account.in_sight:
            account.in_sight = True
            self._number += 1
            heapq.heappush(self._heap, (account.virtual_us, self._number, account))

    def _settle_top(self) -> None:
        """Afterwards the first entry is a waiting group with its counter of now."""
        heap = self._heap
        while heap:
            virtual_us, number, account = heap[0]
            if not account.waiting or account.hidden:
                heapq.heappop(heap)
                account.in_sight = False
            elif virtual_us != account.virtual_us:
                heapq.heapreplace(heap, (account.virtual_us, number, account))
            else:
                return

    def _compete(self, now_us: int) -> tuple[Account, Head] | None:
        heap = self._heap
        if len(heap) == 1:  # nobody to compete with
            account = heap[0][2]
            head = None if account.hidden or not account.waiting else self._lines[account.name].peek(now_us)
            return (account, head) if head is not None else None
        best: tuple[Account, Head] | None = None
        looked_at: list[tuple[float, int, Account]] = []
        least_us = 0.0
        while len(looked_at) < MAX_COMPETING:
            self._settle_top()
            if not heap or (looked_at and heap[0][0] > least_us + self._window_us):
                break
            entry = heapq.heappop(heap)
            account = entry[2]
            head = self._lines[account.name].peek(now_us)
            if head is None:  # all that wait are parked
                account.in_sight = False
                continue
            least_us = least_us if looked_at else entry[0]
            looked_at.append(entry)
            if best is None or head[0] < best[1][0]:
                best = account, head
        for entry in looked_at:
            heapq.heappush(heap, entry)
        return best
