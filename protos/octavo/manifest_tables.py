"""What may stand in the manifest's tables: SLO classes by name, and limits by tenant."""

from __future__ import annotations

import math
from collections.abc import Mapping

SLO_NUMBERS = ("ttft_ms", "itl_p99_ms", "weight", "deadline_ms", "degrade_max_tokens")
SLO_WORDS: Mapping[str, tuple[str, ...]] = {
    "policy": (),
    "on_overload": ("queue", "reject", "degrade"),
    "pool": (),
    "degrade_pool": (),
}
"""Keys of an SLO class whose value is a word, and the words to choose from; none: any."""
TENANT_LIMITS = ("rate_tokens_per_s", "burst_tokens", "concurrency", "kv_share")


def slo_problem(slo: Mapping[str, float | str], policies: tuple[str, ...]) -> str:
    """What is wrong with a class, from its key on; empty when nothing is. `policies`: what `policy` may be."""
    if (policy := slo.get("policy", policies[0])) not in policies:
        return f".policy: {policy!r} is unknown; choose from {', '.join(policies)}"
    if slo.get("weight") == 0:
        return ".weight: 0 must be above 0; a queue without a share is never served"
    for key, value in slo.items():
        words = SLO_WORDS.get(key)
        if words is None and key not in SLO_NUMBERS:
            return f": {key!r} is unknown; use {', '.join((*SLO_NUMBERS, *SLO_WORDS))}"
        if words is None and (not isinstance(value, float) or not 0 <= value < math.inf):
            return f".{key}: {value!r} must be a number of at least 0"
        if words and value not in words:
            return f".{key}: {value!r} is unknown; choose from {', '.join(words)}"
        if words == () and not isinstance(value, str):
            return f".{key}: {value!r} must be the name of a pool, as in gpuworker.labels"
    if slo.get("on_overload") == "degrade" and not (slo.get("degrade_pool") or slo.get("degrade_max_tokens")):
        return ".on_overload: degrade needs degrade_pool or degrade_max_tokens; say what a request becomes"
    return ""


def tenant_problem(limits: Mapping[str, float]) -> str:
    """What is wrong with the limits of a tenant, from their key on; empty when nothing is."""
    for key, value in limits.items():
        if key not in TENANT_LIMITS:
            return f": {key!r} is unknown; use {', '.join(TENANT_LIMITS)}"
        most = 1 if key == "kv_share" else math.inf
        if not 0 < value <= most or value == math.inf:
            return f".{key}: {value:g} must be {'in (0, 1]' if key == 'kv_share' else 'above 0'}; leave it out for none"
        if key == "concurrency" and value != int(value):
            return f".concurrency: {value:g} must be a whole number"
    if "burst_tokens" in limits and "rate_tokens_per_s" not in limits:
        return ".burst_tokens: needs rate_tokens_per_s, which refills it"
    return ""
