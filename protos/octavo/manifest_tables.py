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
MOST_MS = 1e12
"""As MOST_S of manifest_bounds."""
MOST_TOKENS = 2**31 - 1
MOST_RATE = 1e12
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
MOST_NAME_CHARS = 128
TENANT_LIMITS = ("rate_tokens_per_s", "burst_tokens", "concurrency", "kv_share")


def name_problem(name: str) -> str:
    """What is wrong with the name of a class or tenant, which requests and answers carry; empty when nothing is."""
    if not 1 <= len(name) <= MOST_NAME_CHARS or any(not "!" <= char <= "~" or char == "/" for char in name):
        return f"{name[:40]!r} is no name; use 1 to {MOST_NAME_CHARS} printable ASCII characters without spaces and slashes"
    return ""


def keys_problem(keys: Mapping[str, str]) -> str:
    """What is wrong with the API keys and their tenants, without the keys; empty when nothing is."""
    for key, tenant in keys.items():
        if problem := name_problem(tenant):
            return problem
        if tenant == "*":
            return "'*' stands for tenants that are not named; give this one a name"
        if not key or any(not "!" <= char <= "~" for char in key):
            return f"a key of tenant {tenant!r} cannot be sent in a header; use printable ASCII without spaces"
    return ""


def weight_problem(weight: float) -> str:
    """What is wrong with a share; empty when nothing is."""
    if not weight > 0:
        return f"{weight!r} must be above 0"
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        return f"{weight!r} is out of range; use {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
    return ""


def slo_problem(slo: Mapping[str, float | str], policies: tuple[str, ...]) -> str:
    """What is wrong with a class, from its key on; empty when nothing is. `policies`: what `policy` may be."""
    if (policy := slo.get("policy", policies[0])) not in policies:
        return f".policy: {policy!r} is unknown; choose from {', '.join(policies)}"
    if slo.get("weight") == 0:
        return ".weight: 0 must be above 0; a queue without a share is never served"
    weight, tokens = slo.get("weight", 1.0), slo.get("degrade_max_tokens", 0.0)
    if isinstance(weight, float) and weight > 0 and (problem := weight_problem(weight)):
        return f".weight: {problem}"
    if isinstance(tokens, float) and 0 <= tokens < math.inf and (tokens != int(tokens) or tokens > MOST_TOKENS):
        return f".degrade_max_tokens: {tokens:g} must be a whole number up to {MOST_TOKENS}"
    for key, value in slo.items():
        words = SLO_WORDS.get(key)
        if words is None and key not in SLO_NUMBERS:
            return f": {key!r} is unknown; use {', '.join((*SLO_NUMBERS, *SLO_WORDS))}"
        if words is None and (not isinstance(value, float) or not 0 <= value < math.inf):
            return f".{key}: {value!r} must be a number of at least 0"
        if key.endswith("_ms") and isinstance(value, float) and value > MOST_MS:
            return f".{key}: {value!r} is too large; give at most {MOST_MS:g}"
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
        if value > (MOST_TOKENS if key == "concurrency" else MOST_RATE):
            return f".{key}: {value:g} is too large; leave it out for none"
        if key == "rate_tokens_per_s" and value < LEAST_WEIGHT:
            return f".rate_tokens_per_s: {value:g} is too small; give at least {LEAST_WEIGHT:g}"
        if key == "concurrency" and value != int(value):
            return f".concurrency: {value:g} must be a whole number"
    if "burst_tokens" in limits and "rate_tokens_per_s" not in limits:
        return ".burst_tokens: needs rate_tokens_per_s, which refills it"
    return ""
