"""Predicted output length: one running quantile per tenant (Frugal streaming, Ma et al. 2014, with a relative step)."""

from __future__ import annotations

from collections import OrderedDict

_QUANTILE = 0.8
_MAX_TENANTS = 4096


class OutputHistory:
    """An estimate of each tenant's 0.8 quantile of output tokens, bounded in tenants."""

    __slots__ = ("_default", "_estimates")

    def __init__(self, default_tokens: int) -> None:
        self._default = default_tokens
        self._estimates: OrderedDict[str, float] = OrderedDict()

    def predict(self, tenant: str, max_tokens: int) -> int:
        """Output tokens that admission reserves room for; never above max_tokens."""
        return max(1, min(max_tokens, round(self._estimates.get(tenant, self._default))))

    def observe(self, tenant: str, output_tokens: int) -> None:
        """One finished choice."""
        estimate = self._estimates.pop(tenant, float(self._default))
        step = max(1.0, 0.05 * estimate)
        estimate += step * _QUANTILE if output_tokens > estimate else -step * (1 - _QUANTILE)
        self._estimates[tenant] = max(1.0, estimate)
        if len(self._estimates) > _MAX_TENANTS:
            self._estimates.popitem(last=False)
