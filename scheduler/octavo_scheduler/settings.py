"""From the manifest to the core's policy."""

from __future__ import annotations

from octavo.manifest import Manifest

from octavo_scheduler.policy import SECOND_US, Policy


def policy_from(manifest: Manifest) -> Policy:
    """The scheduler section, durations in microseconds."""
    given = manifest.scheduler
    return Policy(
        order=given.policy,
        batching=given.batching,
        batching_max_wait_us=int(given.batching_max_wait_ms * 1000),
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_num_batched_tokens_alone=given.max_num_batched_tokens_alone,
        max_waiting_requests=given.max_waiting_requests,
        max_waiting_prompt_tokens=given.max_waiting_prompt_tokens,
        max_waiting_kv_tokens=given.max_waiting_kv_tokens,
        max_waiting_gpu_us=int(given.max_waiting_gpu_s * SECOND_US),
        max_overcommit=given.max_overcommit,
        counterfactual_share=given.counterfactual_share,
        load_path=manifest.cache.load_path,
        tenant_limits=manifest.tenants.limits,
        recovery_grace_us=int(given.recovery_grace_s * SECOND_US),
        orphan_grace_us=int(given.orphan_grace_s * SECOND_US),
        worker_silence_us=int(given.worker_silence_s * SECOND_US),
        progress_timeout_us=int(given.progress_timeout_s * SECOND_US),
        registry_ttl_us=int(given.registry_ttl_s * SECOND_US),
        registry_bytes=given.registry_bytes,
        prefix_cache=manifest.cache.prefix,
        pause=given.pause,
        pin_share=manifest.cache.pin_share,
        pin_quota_bytes=manifest.cache.pin_quota_bytes,
        blending=manifest.cache.blending,
        blending_share=manifest.cache.blending_share,
        preload_reserve_tokens=manifest.cache.preload_reserve_tokens,
        default_slo_class=given.default_slo_class,
        slo_classes=given.slo_classes,
        tenant_weights=manifest.tenants.weights,
    )
