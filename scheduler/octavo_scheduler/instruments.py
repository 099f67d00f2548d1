"""The scheduler's metrics: what docs/metrics.md lists of it."""

from __future__ import annotations

from typing import Final

from octavo.rpc.instruments import (
    DURATION_BUCKETS,
    LENGTH_BUCKETS,
    RATIO_BUCKETS,
    SHORT_BUCKETS,
    TTFT_BUCKETS,
    Instrument,
)

PREFIX: Final = "octavo_scheduler_"

CELL_COUNTERS: Final = (
    ("preemptions", "Sequences stopped to give their blocks to others."),
    ("recomputed_tokens", "Tokens prefilled again after a preemption or the loss of a worker."),
    ("swaps", "Preempted sequences whose blocks went to the kvstore instead of being computed again."),
    ("swapped_blocks", "Blocks that preemptions copied to a kvstore."),
    ("exported_blocks", "Blocks copied out because somebody is to go on with them: swaps, handoffs, pauses."),
    ("handoffs_started", "Prefills given to a worker that hands over."),
    ("handoffs_done", "Handoffs after which less than one block was recomputed."),
    ("handoffs_failed", "Handoffs that ended otherwise, those of cancelled requests apart."),
    ("handoff_blocks", "Blocks that prefill workers copied out for a decode."),
    ("handoff_early_blocks", "Of these, the ones that were away before the first token: the overlapped part."),
    ("handoff_bytes", "Bytes that prefill workers copied out for a decode."),
    ("handoff_preloaded_blocks", "Blocks that were in the pool of the decode before it was admitted."),
    (
        "handoff_recomputed_tokens",
        "Tokens that a decode computed again after a handoff: below one block each, when it went well.",
    ),
    ("handoff_credit_waits", "Times that a prefill did not copy out because the pool that will decode had no room."),
    ("pauses", "Turns after which a client paused for a tool."),
    ("pauses_keep", "Decisions to keep the KV of a paused client in the pool."),
    ("pauses_offload", "Decisions to copy it to the kvstore."),
    ("pauses_drop", "Decisions to let it go."),
    ("pauses_demoted", "Kept pauses that gave way to others: offloaded or dropped after all."),
    ("pauses_resumed", "Pauses that ended in a resume."),
    ("pauses_without_return", "Pauses after which nobody came."),
    ("pause_spared_tokens", "Tokens of paused turns that their resumes did not compute again: waste avoided."),
    ("evicted_blocks", "Cached blocks taken for others because the pool was full."),
    ("yielded_pin_blocks", "Pinned blocks given up because a request could not run beside them."),
    ("offloaded_blocks", "Blocks copied to a kvstore."),
    ("prefetch_hints", "Hints to a kvstore about what a waiting request will load."),
    ("loads_started", "Loads ordered from a kvstore."),
    ("loaded_blocks", "Blocks that loads brought."),
    ("wasted_load_blocks", "Blocks that loads brought for a sequence that had left meanwhile."),
    (
        "abandoned_copies",
        "Copies that were ended before their time, because what they were for had ended or given way.",
    ),
    ("prefix_hit_tokens", "Prompt tokens whose KV was in the pool at an admission."),
    ("prefix_spreads", "Admissions to a worker that held less of the prompt than a busier one: the prefix spreads."),
    ("passing_starts", "Admissions past a request that waits, on workers that it could not run on."),
    ("tier_hit_tokens", "Prompt tokens whose KV came from a kvstore."),
    ("prefill_tokens", "Prompt tokens computed."),
    ("beam_steps", "Steps of beam searches, each of all its beams."),
    ("beam_forks", "Beams that went on from another one, with its full blocks and a copy of its partial one."),
    ("decode_tokens", "Decode positions computed."),
    (
        "untold_device_us",
        "Device time in no told cost: of steps that ended after their request's end was told, or whose gateway was gone, microseconds.",
    ),
    ("steps", "Forward passes of all workers."),
    ("mixed_steps", "Forward passes with both prefill and decode."),
    ("budget_changes", "Step budgets ordered because the ITL targets of what runs asked for another one."),
    (
        "bring_back_predicted_us",
        "Device time that bringing preempted sequences back was predicted to take, microseconds.",
    ),
    ("priority_preemptions", "Sequences stopped so that a request of higher priority could start."),
    ("starved_steps", "Reports in which a sequence lacked a block."),
    ("reports", "Reports of workers."),
    ("requests_submitted", "Submits received, resubmits included."),
    ("requests_attached", "Submits and attaches that found a live or stored request."),
    ("requests_finished", "Requests that finished."),
    ("requests_cancelled", "Requests that were cancelled."),
    ("requests_failed", "Requests that failed."),
    ("requests_rejected", "Requests that were refused before any work."),
    ("requests_deadline", "Requests whose deadline passed, or could not be met any more."),
    ("requests_degraded", "Requests that were taken on for less than they asked for, because of overload."),
    ("admissions", "Requests that got a sequence on a worker for the first time."),
    ("failed_allocations", "Steps that a worker could not run for lack of memory."),
    ("promised_blocks", "Blocks that preemptions were chosen to give back."),
    ("unkept_blocks", "Blocks of these that did not come back with the preempted sequence; must stay 0."),
    ("worker_losses", "Workers lost while they had work, or without a drain."),
    ("workers_drained", "Workers that left after a drain."),
    ("handed_over", "Sequences that a drained worker gave to others at its deadline."),
    ("blended_tokens", "Prompt tokens whose KV was taken from another context (cache.blending)."),
    ("chunks_loaded", "Blocks of chunks that were loaded from a store to be blended."),
    ("preloads_built", "Preloads that were computed, or found again, and pinned."),
    ("preloads_swapped", "Preloads whose content was replaced."),
    ("preloads_restored", "Preloads of an earlier scheduler that serve again."),
    ("thrown_out_blocks", "Cached blocks that somebody had thrown out, or that outlived their time."),
    ("expired_blocks", "Of these, the ones that outlived their time."),
    ("pinned_requests", "Requests whose blocks were pinned for a time."),
    ("protocol_errors", "Reports that contradict the orders; each costs a worker's epoch."),
)
"""Counters of the core: name in GetStatus and, with the prefix, in Prometheus."""

CELL_GAUGES: Final = (
    ("requests_waiting", "Requests in the queue."),
    ("queue_prompt_tokens", "Prompt tokens of the requests in the queue."),
    ("queue_blocks", "KV blocks that the queue's prompts would take, nothing shared."),
    ("queue_kv_tokens", "KV tokens that the queue is expected to hold: prompts and predicted output."),
    ("queue_gpu_seconds", "Worker time that the queue is predicted to take, prefill and decode."),
    ("preemption_rate", "Preemptions per admission since the start."),
    (
        "overcommit_ratio",
        "Largest over the workers: blocks held and still to be asked for at most, in sizes of the pool.",
    ),
    ("blocks_retired", "Blocks out of use, after failed allocations or for want of memory behind them."),
    (
        "ttft_prediction_error_p50",
        "Median relative error of the TTFT predicted at the door, of the latest 512 that were.",
    ),
    ("ttft_prediction_error_p90", "Its 0.9 quantile."),
    ("start_prediction_error_p50", "The same from an admission to the first token, predicted at the admission."),
    ("start_prediction_error_p90", "Its 0.9 quantile."),
    ("e2e_prediction_error_p50", "The same of the whole time of a finished request, predicted at the door."),
    ("e2e_prediction_error_p90", "Its 0.9 quantile."),
    ("queue_work_seconds", "Predicted prefill time of the queue, on one worker, nothing cached."),
    ("queue_age_p50_seconds", "Median age of the requests in the queue."),
    ("queue_age_max_seconds", "Age of the oldest request in the queue."),
    ("requests_running", "Requests with a sequence on a worker."),
    ("workers", "Workers that are connected."),
    ("blocks", "KV blocks of all pools, null blocks not counted."),
    ("blocks_free", "Blocks that no sequence and no transfer holds; cached ones count."),
    ("blocks_cached", "Blocks that only the prefix index holds."),
    ("blocks_used", "Blocks held by sequences or transfers."),
    ("blocks_shared", "Holds of sequences beyond the first on a block: what sharing saves now."),
    ("blocks_pinned", "Blocks that a pin keeps in the prefix index, in use or not."),
    ("blocks_leaked", "Blocks whose holders are unknown; an audit that must stay 0."),
    ("unused_positions", "Positions in granted blocks that hold no token (fragmentation and grants ahead)."),
    ("reserved_unused_tokens", "The same, and what is reserved for growth."),
    ("cancel_latency_us_last", "Latest cancel: microseconds to its last block back."),
    ("registry_bytes", "Memory of the finished requests kept for replay."),
    ("registry_names", "Names under which requests can be found."),
)

EVICTIONS: Final = Instrument(
    PREFIX + "evictions",
    "counter",
    "Blocks that left a worker's prefix index, by reason: taken for a newcomer (admission) or a running "
    "sequence (growth), gone as the pool shrank (shrink), or in use below one that was (cut).",
    ("reason",),
)

WORKER_GAUGES: Final = (
    ("worker_running", "Sequences on the worker: its load."),
    ("worker_blocks_free", "Free blocks of the worker's pool; cached ones count."),
    ("worker_backlog_tokens", "Tokens that its sequences have still to prefill."),
    ("worker_step_seconds", "Running mean of the time of a step."),
    ("worker_step_prediction_error_ratio", "Running mean of |observed - predicted| / predicted step time."),
)

POOL_GAUGES: Final = (
    ("pool_idle_ratio", "Part of the last seconds in which the workers of this role did not step."),
    ("pool_queue_seconds", "Waits of requests before a worker of this role took them, in all."),
    (
        "handoff_link_ratio",
        "Bytes of handoffs per second over what the links of this role's workers can move, as measured.",
    ),
)

HANDOFF_GAUGES: Final = (
    (
        "handoff_bytes_per_second",
        "KV that prefill workers copy out: KV of a request times prefills per second, lately.",
    ),
    ("handoff_transfer_p50_seconds", "Median time of the latest copies out."),
    ("handoff_transfer_p99_seconds", "99th percentile of the same."),
)

LEDGER: Final = (
    ("ledger_entries", "Entries of the ledger."),
    ("ledger_saved_ms", "Milliseconds saved, as the cost model estimates."),
    ("ledger_cost_ms", "Milliseconds spent: lookup, routing, transfers, what was computed for it."),
    (
        "ledger_held_ms",
        "Milliseconds of workers that cached blocks stood for while they were held: block-seconds at their price.",
    ),
    ("ledger_hits", "Requests that the technique gave something."),
    ("ledger_hit_tokens", "Prompt tokens that it gave them."),
    ("ledger_saved_bytes", "Bytes not computed or moved."),
    ("ledger_cost_bytes", "Bytes moved."),
)

LEDGER_TENANT_NET: Final = Instrument(
    PREFIX + "ledger_tenant_net_ms", "gauge", "Saved less spent and held so far.", ("technique", "tenant")
)
LEDGER_SWITCHES: Final = (
    Instrument(PREFIX + "ledger_off", "gauge", "1: switched off for prompts of this length.", ("technique", "prompt")),
    Instrument(
        PREFIX + "ledger_calibration_ratio",
        "gauge",
        "Saved as requests without the technique show it, over saved as estimated.",
        ("technique", "prompt"),
    ),
)
TIER_RATES: Final = (
    Instrument(PREFIX + "tier_load_bytes_per_second", "gauge", "Loads from a tier, as measured.", ("worker", "tier")),
    Instrument(PREFIX + "tier_load_lookup_seconds", "gauge", "Their lookup, as measured.", ("worker", "tier")),
)

TENANT_GAUGES: Final = (
    ("tenant_requests", "Requests of the tenant, waiting or running."),
    ("tenant_held_blocks", "KV blocks in the tables of its sequences."),
    ("tenant_tokens_left", "Tokens left of its budget; below 0: in debt."),
    ("tenant_rejected", "Requests refused for a limit of the tenant."),
)
"""Of tenants with limits of their own in the manifest."""

SCRAPED: Final = (
    *(Instrument(PREFIX + name, "gauge", text, ("tenant",)) for name, text in TENANT_GAUGES),
    *(Instrument(PREFIX + name, "counter", text) for name, text in CELL_COUNTERS),
    Instrument(PREFIX + "busy_seconds", "counter", "Step time of all workers by phase, as predicted.", ("phase",)),
    EVICTIONS,
    *(Instrument(PREFIX + name, "gauge", text) for name, text in CELL_GAUGES),
    *(Instrument(PREFIX + name, "gauge", text, ("worker",)) for name, text in WORKER_GAUGES),
    *(Instrument(PREFIX + name, "gauge", text, ("role",)) for name, text in POOL_GAUGES),
    *(Instrument(PREFIX + name, "gauge", text) for name, text in HANDOFF_GAUGES),
    *(Instrument(PREFIX + name, "counter", text, ("technique",)) for name, text in LEDGER),
    LEDGER_TENANT_NET,
    *LEDGER_SWITCHES,
    *TIER_RATES,
)
"""Read from the core when they are scraped."""

OBSERVED: Final = (
    Instrument(
        PREFIX + "requests_ended",
        "counter",
        "Requests by outcome, reason and SLO class.",
        ("outcome", "reason", "slo_class"),
    ),
    Instrument(
        PREFIX + "queue_seconds",
        "histogram",
        "Submit to the first admission, or to the end of a request that was never admitted.",
        ("prompt", "outcome"),
        DURATION_BUCKETS,
    ),
    Instrument(
        PREFIX + "preempted_seconds", "histogram", "Waits after a residency ended early.", ("reason",), DURATION_BUCKETS
    ),
    Instrument(PREFIX + "kv_load_seconds", "histogram", "Loads from a kvstore, by tier.", ("tier",), SHORT_BUCKETS),
    Instrument(PREFIX + "kv_load_bytes", "counter", "Bytes that loads brought, by tier.", ("tier",)),
    Instrument(
        PREFIX + "kv_load_decisions",
        "counter",
        "Loads that ended, by the way that was taken: load, or overlap (the head computed meanwhile).",
        ("decision",),
    ),
    Instrument(
        PREFIX + "kv_load_part_seconds",
        "histogram",
        "Parts of a load: lookup, queue, transfer, deserialize, and the prefill of what follows it (suffix_prefill).",
        ("part",),
        SHORT_BUCKETS,
    ),
    Instrument(
        PREFIX + "kv_load_prediction_error_ratio",
        "histogram",
        "|predicted - actual| / actual time to the first token of requests that load.",
        (),
        RATIO_BUCKETS,
    ),
    Instrument(
        PREFIX + "cancel_seconds", "histogram", "Cancel or deadline to the last block back.", ("reason",), SHORT_BUCKETS
    ),
    Instrument(
        PREFIX + "hit_length_tokens",
        "histogram",
        "Cached prompt tokens of a request that had any, by the tier they came from.",
        ("tier",),
        LENGTH_BUCKETS,
    ),
    Instrument(
        PREFIX + "prompt_tokens", "counter", "Prompt tokens of ended requests: all, and reused by tier.", ("source",)
    ),
    Instrument(
        PREFIX + "first_token_seconds",
        "histogram",
        "Submit to first token, of prompts with a cached part (hit) and without (miss).",
        ("cache",),
        TTFT_BUCKETS,
    ),
    Instrument(
        PREFIX + "output_prediction_error_ratio",
        "histogram",
        "|predicted - actual| / actual output tokens of finished requests.",
        (),
        RATIO_BUCKETS,
    ),
    Instrument(
        PREFIX + "first_token_prediction_error_ratio",
        "histogram",
        "|predicted - actual| / actual TTFT of requests that were forecast at the door.",
        (),
        RATIO_BUCKETS,
    ),
    Instrument(
        PREFIX + "total_prediction_error_ratio",
        "histogram",
        "The same of the whole time of finished requests.",
        (),
        RATIO_BUCKETS,
    ),
    Instrument(
        PREFIX + "handoff_seconds",
        "histogram",
        "First token on the prefill worker to the first token of the decode.",
        (),
        SHORT_BUCKETS,
    ),
    Instrument(PREFIX + "handoffs_ended", "counter", "Handoffs by how they ended; done is the good end.", ("cause",)),
    Instrument(
        PREFIX + "pause_seconds", "histogram", "Pauses of clients that came back.", ("decision",), DURATION_BUCKETS
    ),
    Instrument(PREFIX + "attempts", "counter", "Residencies that ended before their request did.", ("reason",)),
)
"""Fed by the facts of the core."""

TABLE: Final = SCRAPED + OBSERVED
