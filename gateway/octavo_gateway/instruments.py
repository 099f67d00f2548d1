"""The gateway's metrics: what docs/metrics.md lists of it."""

from __future__ import annotations

from typing import Final

from octavo.rpc.instruments import DURATION_BUCKETS, SHORT_BUCKETS, TOKEN_BUCKETS, TTFT_BUCKETS, Instrument

_LENGTHS: Final = ("prompt", "output")
_GEN_AI: Final = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")

TABLE: Final = (
    Instrument("octavo_gateway_requests", "counter", "Requests by how they ended.", ("outcome", "reason")),
    Instrument("octavo_gateway_tokens", "counter", "Tokens of ended requests: prompt, cached, completion.", ("type",)),
    Instrument(
        "octavo_gateway_time_to_first_token_seconds",
        "histogram",
        "Request received to first token, at the gateway.",
        (),
        TTFT_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_time_to_first_token_by_class_seconds",
        "histogram",
        "The same of ended requests, by class of prompt length and by whether some of the prompt was cached (hit, miss).",
        ("prompt", "cache"),
        TTFT_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_ttft_part_seconds",
        "histogram",
        "Parts of the time to first token; they add up to it, and transport is the remainder.",
        ("part",),
        SHORT_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_ttft_overlaps",
        "counter",
        "Requests whose measured parts exceed the time that contains them by over 1 ms; an audit that must stay 0.",
    ),
    Instrument(
        "octavo_gateway_inter_token_seconds",
        "histogram",
        "Time per token between two arrivals of one request.",
        (),
        TOKEN_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_time_per_output_token_seconds",
        "histogram",
        "(last token - first token) / (tokens - 1) of a finished request, by class of prompt and output length.",
        _LENGTHS,
        TOKEN_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_longest_stall_seconds",
        "histogram",
        "Longest gap between two arrivals within one request.",
        (),
        TOKEN_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_request_duration_seconds",
        "histogram",
        "Request received to its end, by class of prompt and output length.",
        _LENGTHS,
        DURATION_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_time_to_valid_tool_call_seconds",
        "histogram",
        "Request received to the last token of an answer that is a valid tool call by its text: a JSON object with name and "
        "arguments, a list of them, or each in <tool_call> tags; of a request with tools, one that calls what was offered.",
        (),
        DURATION_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_client_first_token_seconds",
        "histogram",
        "Time to first token on the client's clock, as acknowledged.",
        (),
        TTFT_BUCKETS,
    ),
    Instrument(
        "octavo_gateway_slo_requests",
        "counter",
        "Ended requests of an SLO class: met (goodput), or missed and what it was missed by: the largest part of a late "
        "first token, itl, or the outcome of a request that did not finish. Cancelled ones are not judged.",
        ("slo_class", "result", "cause"),
    ),
    Instrument("octavo_gateway_live_requests", "gauge", "Requests under way."),
    Instrument("octavo_gateway_page_viewers", "gauge", "Live views that are open: browsers and `octavo top`."),
    Instrument(
        "octavo_gateway_cost_device_seconds",
        "counter",
        "Device time that ended requests took, by phase (prefill, decode, recompute) and outcome.",
        ("phase", "outcome"),
    ),
    Instrument(
        "octavo_gateway_cost_kv_byte_seconds",
        "counter",
        "Bytes of KV that ended requests held, times seconds, by tier (pool, dram, nvme) and outcome.",
        ("tier", "outcome"),
    ),
    Instrument(
        "octavo_gateway_cost_saved_prefill_tokens",
        "counter",
        "Prompt tokens that were not computed, by what saved them: prefix, tier, sibling.",
        ("source",),
    ),
    Instrument(
        "gen_ai_server_request_duration_seconds",
        "histogram",
        "Request received to its end; OpenTelemetry's GenAI name. error_type is empty for a whole answer.",
        (*_GEN_AI, "error_type"),
        DURATION_BUCKETS,
    ),
    Instrument(
        "gen_ai_server_time_to_first_token_seconds",
        "histogram",
        "Request received to first token of whole answers; OpenTelemetry's GenAI name.",
        _GEN_AI,
        TTFT_BUCKETS,
    ),
    Instrument(
        "gen_ai_server_time_per_output_token_seconds",
        "histogram",
        "(last token - first token) / (tokens - 1) of whole answers; OpenTelemetry's GenAI name.",
        _GEN_AI,
        TOKEN_BUCKETS,
    ),
    Instrument("vllm:num_requests_waiting", "gauge", "Requests of the cell that wait; vLLM's name.", ("model_name",)),
    Instrument("vllm:num_requests_running", "gauge", "Requests of the cell that run; vLLM's name.", ("model_name",)),
    Instrument("vllm:kv_cache_usage_perc", "gauge", "KV blocks in use over all, 0 to 1; vLLM's name.", ("model_name",)),
    Instrument(
        "vllm:cache_config_info",
        "gauge",
        "Always 1; the labels say tokens per block and blocks of the cell; vLLM's name.",
        ("model_name", "block_size", "num_gpu_blocks"),
    ),
    Instrument(
        "vllm:lora_requests_info",
        "gauge",
        "Time of the last change of the adapters in use (none yet); vLLM's name.",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
)
