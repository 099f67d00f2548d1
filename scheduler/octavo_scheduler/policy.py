"""The knobs of the core, read once from the manifest by the shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECOND_US = 1_000_000
FAIR = ("fair", "slo-fair")
"""Orders that share between tenants."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All limits that the core obeys. Durations are microseconds, sizes are tokens, blocks or bytes as named."""

    order: str = "slo-fair"
    """Name of the waiting queue's policy (policies/orders.py)."""
    fair_window_us: float = 0.5 * SECOND_US
    """Under `slo-fair`: by how much predicted device time urgency may put one tenant ahead of another."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Share of each tenant under fair policies; others have 1."""
    batching: str = "continuous"
    """`continuous`, `static` or `dynamic` (policies/joining.py)."""
    batching_max_wait_us: int = 10_000
    max_num_seqs: int = 32
    """Sequences that run at once on one worker."""
    max_num_batched_tokens: int = 512
    """Tokens per step while decodes run, at most; their ITL targets may ask for fewer (policies/pace.py)."""
    max_num_batched_tokens_alone: int = 0
    """Tokens per step while none do; 0: four times the above, 2048 at most (and never less than the above)."""
    max_waiting_requests: int = 4096
    max_waiting_prompt_tokens: int = 2_000_000
    max_waiting_kv_tokens: int = 0
    """Expected KV tokens of what waits; 0: no limit."""
    max_waiting_gpu_us: int = 0
    """Predicted worker time of what waits, per worker; 0: no limit."""
    max_overcommit: float = 4.0
    """Bound of what running sequences hold and may still ask for, in sizes of the pool."""
    tenant_limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tenant, or `*`, -> {rate_tokens_per_s, burst_tokens, concurrency, kv_share}."""
    recovery_grace_us: int = 10 * SECOND_US
    orphan_grace_us: int = 15 * SECOND_US
    worker_silence_us: int = 5 * SECOND_US
    progress_timeout_us: int = 30 * SECOND_US
    no_worker_timeout_us: int = 30 * SECOND_US
    """How long a queued request waits for any worker at all before it fails."""
    registry_ttl_us: int = 600 * SECOND_US
    registry_bytes: int = 64 * 2**20
    prefix_cache: bool = True
    grant_ahead_us: int = 200_000
    """Blocks are granted for about this long ahead."""
    spare_blocks: int = 4
    """So many more with them, to every sequence that runs there, while a worker has room for all that its sequences may ask for."""
    margin_fraction: float = 0.02
    """Share of the pool that admission leaves free, one block at least."""
    default_output_tokens: int = 256
    """Predicted output of a tenant without history."""
    load_limit_us: int = SECOND_US
    max_offload_blocks: int = 16
    """Blocks per offload transfer."""
    max_offloads_in_flight: int = 2
    pause: str = "auto"
    """What becomes of the KV of a client that pauses: keep, offload, drop, or auto, by cost."""
    load_path: str = "auto"
    """How a prompt gets what a kvstore holds of it: load, recompute, overlap, or auto, by predicted time."""
    counterfactual_share: float = 0.0
    """Share of the requests that go without a technique, each technique for itself, to check what it is said to save."""
    swap: bool = True
    """A preempted sequence's blocks may go to the kvstore instead of being computed again."""
    max_losses: int = 5
    """Worker losses without a new token after which a request fails."""
    pin_share: float = 0.5
    """Most of a worker's pool that may be pinned."""
    pin_quota_bytes: Mapping[str, float] = field(default_factory=dict)
    """Tenant, or `*`, -> bytes that it may pin."""
    blending: bool = False
    """Chunks that a request names are reused at other positions."""
    blending_share: float = 0.15
    """Of the tokens moved, computed again."""
    preload_reserve_tokens: int = 256
    join_prefill: bool = True
    """A request waits for a running prefill of the same prefix instead of computing it twice."""
    default_slo_class: str = "default"
    slo_classes: Mapping[str, Mapping[str, float | str]] = field(default_factory=lambda: {"default": {}})

    def order_of(self, slo_class: str) -> str:
        """The policy of the queue that requests of a class wait in."""
        return str(self.slo_classes.get(slo_class, {}).get("policy", "")) or self.order

    @property
    def budget_alone(self) -> int:
        """Tokens per step with no decode running."""
        if self.max_num_batched_tokens_alone:
            return self.max_num_batched_tokens_alone
        return max(self.max_num_batched_tokens, min(4 * self.max_num_batched_tokens, 2048))
