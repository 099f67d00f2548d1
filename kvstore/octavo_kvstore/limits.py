"""What a tenant may take of a tier, and how old its blocks may grow there; tenants appear as opaque tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.keys import namespace_tag
from octavo.manifest import Cache

EVERYONE = "*"


@dataclass(frozen=True, slots=True)
class TierLimits:
    """Of one tier. The empty tag stands for every tenant that has no entry of its own."""

    quota_bytes: Mapping[bytes, int] = field(default_factory=dict)
    max_age_s: Mapping[bytes, float] = field(default_factory=dict)

    def quota(self, namespace: bytes) -> int | None:
        """Bytes that the namespace may take; None: as many as the tier has. What is nobody's has no quota."""
        if not namespace or not self.quota_bytes:
            return None
        return self.quota_bytes.get(namespace, self.quota_bytes.get(b""))

    def has_quota(self, namespace: bytes) -> bool:
        """Whether `quota` is not None."""
        return self.quota(namespace) is not None

    def max_age(self, namespace: bytes) -> float | None:
        """Seconds after its first put from which on a block is unreadable; None: no limit."""
        if not self.max_age_s:
            return None
        return self.max_age_s.get(namespace, self.max_age_s.get(b""))


NO_LIMITS = TierLimits()


def limits_of(cache: Cache, secret: bytes, tier: str) -> TierLimits:
    """The limits that the manifest sets for a tier."""

    def tag(tenant: str) -> bytes:
        return b"" if tenant == EVERYONE else namespace_tag(secret, tenant)

    return TierLimits(
        {tag(tenant): int(sizes[tier]) for tenant, sizes in cache.quota_bytes.items() if tier in sizes},
        {tag(tenant): float(ages[tier]) for tenant, ages in cache.max_age_s.items() if tier in ages},
    )
