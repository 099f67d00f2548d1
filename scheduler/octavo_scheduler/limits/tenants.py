"""What each tenant may use: a token bucket, requests at once, a share of every pool; and what it uses now.

The bucket is charged at the door with the prompt and the predicted output, and corrected when the request has ended. It
may run into debt by what was predicted too low, which the next requests wait for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Outcome, Request

OTHERS = "*"
DEFAULT_BURST_S = 10.0
"""Without burst_tokens a bucket holds so many seconds of its rate."""
SWEEP_FIRST = 4096
"""Accounts from which on idle ones are looked for, whenever they have doubled."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """0: none."""

    rate_tokens_per_s: float = 0.0
    burst_tokens: float = 0.0
    concurrency: int = 0
    kv_share: float = 1.0

    @property
    def burst(self) -> float:
        """What a full bucket holds."""
        return self.burst_tokens or self.rate_tokens_per_s * DEFAULT_BURST_S


@dataclass(slots=True)
class Account:
    """One tenant's use. `level` is the bucket's content in tokens at `at_us`."""

    level: float
    at_us: int
    live: int = 0
    rejected: int = 0


class Tenants:
    """Limits and accounts by tenant. Accounts of tenants without a limit are dropped with their last request; of those with the limits
    of `*`, once there are many, whoever has nothing under way and a full bucket: a new account is the same."""

    __slots__ = ("_limits", "_sweep_at", "accounts", "limited")

    def __init__(self, limits: Mapping[str, Mapping[str, float]]) -> None:
        self._limits = {
            name: TenantLimits(
                given.get("rate_tokens_per_s", 0.0),
                given.get("burst_tokens", 0.0),
                int(given.get("concurrency", 0)),
                given.get("kv_share", 1.0),
            )
            for name, given in limits.items()
        }
        self.limited = bool(self._limits)
        """Somebody has a limit."""
        self.accounts: dict[str, Account] = {}
        self._sweep_at = SWEEP_FIRST

    def limits_of(self, tenant: str) -> TenantLimits:
        """Its own, or those of `*`."""
        return self._limits.get(tenant) or self._limits.get(OTHERS) or _NONE

    def is_limited(self, tenant: str) -> bool:
        """Whether the manifest names the tenant."""
        return tenant in self._limits

    def names(self) -> list[str]:
        """Every tenant with a limit of its own or an account."""
        return sorted({*self.accounts, *self._limits} - {OTHERS})

    def level(self, tenant: str, now_us: int) -> float:
        """What the bucket holds now; below 0: in debt."""
        limits, account = self.limits_of(tenant), self.accounts.get(tenant)
        if account is None:
            return limits.burst
        refilled = account.level + limits.rate_tokens_per_s * max(0, now_us - account.at_us) / SECOND_US
        return min(limits.burst, refilled)

    def refusal(self, tenant: str, tokens: int, now_us: int) -> Outcome | None:
        """Why the tenant may not begin a request that is expected to take `tokens`."""
        if not self._limits:
            return None
        limits = self.limits_of(tenant)
        account = self.accounts.get(tenant)
        live = account.live if account is not None else 0
        if limits.concurrency and live >= limits.concurrency:
            message = f"tenant {tenant} has {live} requests under way (tenants.limits concurrency {limits.concurrency})"
            return Outcome("rejected", "rejected-tenant-concurrency", message, SECOND_US)
        if limits.rate_tokens_per_s:
            level, need = self.level(tenant, now_us), min(float(tokens), limits.burst)
            if level < need:
                wait_us = math.ceil((need - level) / limits.rate_tokens_per_s * SECOND_US)
                message = (
                    f"tenant {tenant} has {level:.0f} tokens left of its budget and the request needs {need:.0f} "
                    f"(tenants.limits rate_tokens_per_s {limits.rate_tokens_per_s:g}); retry in {wait_us / SECOND_US:.1f} s"
                )
                return Outcome("rejected", "rejected-tenant-tokens", message, wait_us)
        return None

    def refused(self, tenant: str, now_us: int) -> None:
        """Counts a request that a limit of the tenant kept out."""
        self._account(tenant, now_us).rejected += 1

    def open(self, request: Request, tokens: int, now_us: int) -> None:
        """The request is taken on: charged with what it is expected to take."""
        account = self._account(request.tenant, now_us)
        account.live += 1
        request.charged_tokens = tokens
        if self._limits:
            account.level = self.level(request.tenant, now_us) - tokens
            account.at_us = now_us

    def spend(self, tenant: str, tokens: int, now_us: int) -> None:
        """Charges work that is no request of the tenant's: a preload that it put or pinned."""
        if self.limits_of(tenant).rate_tokens_per_s:
            account = self._account(tenant, now_us)
            account.level = self.level(tenant, now_us) - tokens
            account.at_us = now_us

    def close(self, request: Request, now_us: int) -> None:
        """The request has ended: the charge becomes what it took; without any work, nothing."""
        account = self.accounts.get(request.tenant)
        if account is None or request.charged_tokens < 0:
            return
        limits = self.limits_of(request.tenant)
        if self._limits:
            taken = len(request.prompt) + _said(request) if request.work_done else 0
            account.level = min(limits.burst, self.level(request.tenant, now_us) + request.charged_tokens - taken)
            account.at_us = now_us
        account.live -= 1
        request.charged_tokens = -1
        if not account.live and limits is _NONE:
            del self.accounts[request.tenant]

    def over_share(self, worker: Worker, tenant: str, more_blocks: int) -> bool:
        """Whether `more_blocks` would give the tenant more than its share of the worker's pool.

        One that holds nothing there may have one request, so that a small share of a small pool is no dead end.
        """
        if not self._limits:
            return False
        share = self.limits_of(tenant).kv_share
        if share >= 1.0:
            return False
        held = held_blocks(worker, tenant)
        return held > 0 and held + more_blocks > share * worker.pool.usable_blocks

    def _account(self, tenant: str, now_us: int) -> Account:
        account = self.accounts.get(tenant)
        if account is None:
            if len(self.accounts) >= self._sweep_at:
                self._forget_idle(now_us)
            account = self.accounts[tenant] = Account(self.limits_of(tenant).burst, now_us)
        return account

    def _forget_idle(self, now_us: int) -> None:
        for tenant, account in list(self.accounts.items()):
            limits = self.limits_of(tenant)
            full = not limits.rate_tokens_per_s or self.level(tenant, now_us) >= limits.burst
            if full and not account.live and not self.is_limited(tenant):
                del self.accounts[tenant]
        self._sweep_at = max(SWEEP_FIRST, 2 * len(self.accounts))


_NONE = TenantLimits()


def _said(request: Request) -> int:
    """Output tokens that were computed; of a beam search those of all its beams, though the best alone are told."""
    if request.beams is not None:
        return request.beams.width * request.beams.steps
    return sum(len(choice.output) for choice in request.choices)


def held_blocks(worker: Worker, tenant: str) -> int:
    """Blocks in the tables of the tenant's sequences, and of those kept for its pauses; a shared one counts for each."""
    running = sum(
        len(sequence.blocks) for sequence in worker.sequences.values() if sequence.choice.request.tenant == tenant
    )
    return running + sum(len(blocks) for keeper, blocks in worker.kept.items() if keeper.tenant == tenant)
