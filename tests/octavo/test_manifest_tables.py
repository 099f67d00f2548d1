"""SLO classes and tenants' limits in the manifest: what is wrong is named by key, with the fix."""

from __future__ import annotations

import json

import pytest
from octavo.manifest import ManifestError
from octavo.rpc.settings import load_settings

CLASSES = {
    '{"a": {"ttft": 1}}': "slo_classes.a: 'ttft' is unknown; use ttft_ms",
    '{"a": {"ttft_ms": -1}}': "slo_classes.a.ttft_ms: -1.0 must be",
    '{"a": {"ttft_ms": "soon"}}': "slo_classes.a.ttft_ms: 'soon' must be",
    '{"a": {"on_overload": "panic"}}': "on_overload: 'panic' is unknown; choose from queue, reject, degrade",
    '{"a": {"on_overload": "degrade"}}': "degrade needs degrade_pool or degrade_max_tokens",
    '{"a": {"pool": 3}}': "slo_classes.a.pool: 3.0 must be the name of a pool",
}
LIMITS = {
    '{"a": {"rate": 1}}': "tenants.limits.a: 'rate' is unknown; use rate_tokens_per_s",
    '{"a": {"rate_tokens_per_s": 0}}': "rate_tokens_per_s: 0 must be above 0",
    '{"a": {"kv_share": 1.5}}': "kv_share: 1.5 must be in (0, 1]",
    '{"a": {"concurrency": 1.5}}': "concurrency: 1.5 must be a whole number",
    '{"*": {"burst_tokens": 5}}': "burst_tokens: needs rate_tokens_per_s",
    '{"a": {"concurrency": "many"}}': "tenants.limits.a.concurrency: 'many' is no float",
}


@pytest.mark.parametrize(
    ("flag", "given", "said"),
    [("scheduler.slo_classes", *item) for item in CLASSES.items()]
    + [("tenants.limits", *item) for item in LIMITS.items()],
)
def test_what_is_wrong_is_named(flag: str, given: str, said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load_settings([f"--{flag}", given], {})
    assert said in str(caught.value) and caught.value.field == flag


def test_what_is_right_is_taken() -> None:
    classes = {
        "fast": {"ttft_ms": 500, "pool": "gpu", "on_overload": "degrade", "degrade_pool": "cpu", "deadline_ms": 9000}
    }
    limits = {"*": {"rate_tokens_per_s": 10, "burst_tokens": 50, "concurrency": 2, "kv_share": 0.25}}
    words = [
        "--scheduler.slo_classes",
        json.dumps(classes),
        "--tenants.limits",
        json.dumps(limits),
        "--labels",
        "gpu,spot",
    ]
    manifest = load_settings(words, {}).manifest
    assert (
        manifest.scheduler.slo_classes["fast"]["ttft_ms"] == 500.0
        and manifest.scheduler.slo_classes["fast"]["pool"] == "gpu"
    )
    assert manifest.tenants.limits["*"]["kv_share"] == 0.25 and manifest.gpuworker.labels == ("gpu", "spot")
