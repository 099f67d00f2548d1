"""Goodput by class and cause, vLLM's names, and a table that is wholly there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from octavo.errors import Cancelled, DeadlineExceeded
from octavo_gateway.instruments import TABLE
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.requests import Cost
from octavo_gateway.ttft import TtftParts

CLASSES = {"default": {"ttft_ms": 100.0, "itl_p99_ms": 50.0}, "batch": {}}


def ended(**given: Any) -> Any:
    """An ended request as the metrics see it."""
    values = {
        "finished": True, "error": None, "outcome": "finished", "cached_tokens": 0, "completion_tokens": 100,
        "received": 10.0, "first_token": 10.05, "last_token": 11.0, "completed": 11.1, "gap_tokens": 99, "late_tokens": 0,
        "longest_gap_s": 0.02, "admitted": SimpleNamespace(prompt_ids=[1] * 200, slo_class="", kind="chat"), "parts": TtftParts(queue_us=50_000), "cost": Cost(),
        "choices": [SimpleNamespace(pieces=["so"], tail="", tool_calls=[])],
    }  # fmt: skip
    values |= given
    parts = values.pop("parts")
    return SimpleNamespace(**values, ttft_parts=lambda: (parts, 0) if parts else None)


@pytest.fixture
def metrics() -> tuple[GatewayMetrics, prometheus_client.CollectorRegistry]:
    registry = prometheus_client.CollectorRegistry()
    return GatewayMetrics(registry, lambda: 0, CLASSES, "default", "smollm2"), registry


@pytest.mark.parametrize(
    ("given", "result", "cause"),
    [
        ({}, "met", ""),
        ({"first_token": 10.2}, "missed", "queue"),
        ({"first_token": 10.2, "parts": TtftParts(prefill_us=150_000, queue_us=1)}, "missed", "prefill"),
        ({"first_token": 10.2, "parts": None}, "missed", "ttft"),
        ({"late_tokens": 1, "gap_tokens": 100}, "met", ""),
        ({"late_tokens": 2, "gap_tokens": 100}, "missed", "itl"),
        (
            {"finished": False, "outcome": "deadline", "error": DeadlineExceeded("x", reason="evicted-deadline")},
            "missed",
            "deadline",
        ),
    ],
)
def test_goodput_says_what_a_miss_was_missed_by(metrics: Any, given: dict[str, Any], result: str, cause: str) -> None:
    counted, registry = metrics
    counted.ended(ended(**given))
    labels = {"slo_class": "default", "result": result, "cause": cause}
    assert registry.get_sample_value("octavo_gateway_slo_requests_total", labels) == 1


def test_a_cancelled_request_is_not_judged_and_a_class_without_targets_is_met(metrics: Any) -> None:
    counted, registry = metrics
    counted.ended(ended(finished=False, outcome="cancelled", error=Cancelled("x", reason="client_cancel")))
    batch = SimpleNamespace(prompt_ids=[1], slo_class="batch", kind="chat")
    counted.ended(ended(first_token=99.0, admitted=batch))
    text = prometheus_client.generate_latest(registry).decode()
    judged = [line for line in text.splitlines() if line.startswith("octavo_gateway_slo_requests_total{")]
    assert judged == ['octavo_gateway_slo_requests_total{cause="",result="met",slo_class="batch"} 1.0']


def test_an_answer_that_is_a_tool_call_is_timed_to_its_last_token(metrics: Any) -> None:
    counted, registry = metrics
    call = SimpleNamespace(pieces=['{"name": "now", ', '"arguments": {}'], tail="}", tool_calls=[])
    counted.ended(ended())
    counted.ended(ended(choices=[call, SimpleNamespace(pieces=["no"], tail="", tool_calls=[])]))
    counted.ended(ended(finished=False, outcome="cancelled", error=Cancelled("x", reason="gone"), choices=[call]))
    name = "octavo_gateway_time_to_valid_tool_call_seconds"
    assert registry.get_sample_value(f"{name}_count") == 1
    assert registry.get_sample_value(f"{name}_sum") == pytest.approx(1.0)


def test_lengths_are_classes(metrics: Any) -> None:
    counted, registry = metrics
    counted.ended(ended())
    name = "octavo_gateway_time_per_output_token_seconds"
    assert registry.get_sample_value(f"{name}_count", {"prompt": "1k", "output": "128"}) == 1
    assert registry.get_sample_value(f"{name}_sum", {"prompt": "1k", "output": "128"}) == pytest.approx(0.95 / 99)


def test_routers_find_the_names_they_read(metrics: Any) -> None:
    counted, registry = metrics
    for blocks in (100, 200):  # a fleet that grows leaves no second cache_config_info behind
        counted.cell_load(
            SimpleNamespace(
                requests_waiting=3, requests_running=4, blocks_total=blocks, blocks_free=blocks // 4, block_tokens=16
            )
        )
    text = prometheus_client.generate_latest(registry).decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:")]
    assert 'vllm:num_requests_waiting{model_name="smollm2"} 3.0' in lines
    assert 'vllm:num_requests_running{model_name="smollm2"} 4.0' in lines
    assert 'vllm:kv_cache_usage_perc{model_name="smollm2"} 0.75' in lines
    configs = [line for line in lines if line.startswith("vllm:cache_config_info")]
    assert configs == ['vllm:cache_config_info{block_size="16",model_name="smollm2",num_gpu_blocks="200"} 1.0']
    assert any(line.startswith("vllm:lora_requests_info{") for line in lines)


def test_every_instrument_of_the_table_is_registered(metrics: Any) -> None:
    _counted, registry = metrics
    names = {family.name for family in registry.collect()}
    assert {item.name for item in TABLE} <= names


def test_a_class_that_no_setting_names_is_no_label_of_its_own(metrics: Any) -> None:
    counted, registry = metrics
    for number in range(50):
        refused = SimpleNamespace(prompt_ids=[1], slo_class=f"invented{number}", kind="chat")
        counted.ended(ended(finished=False, outcome="rejected-invalid", admitted=refused))
    text = prometheus_client.generate_latest(registry).decode()
    judged = [line for line in text.splitlines() if line.startswith("octavo_gateway_slo_requests_total{")]
    assert judged == [
        'octavo_gateway_slo_requests_total{cause="rejected-invalid",result="missed",slo_class="unknown"} 50.0'
    ]


def test_opentelemetrys_names_tell_whole_answers_from_errors(metrics: Any) -> None:
    counted, registry = metrics
    counted.ended(ended())
    failed = DeadlineExceeded("x", reason="evicted-deadline")
    counted.ended(ended(finished=False, outcome="deadline", error=failed))
    labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "octavo", "gen_ai_request_model": "smollm2"}

    def count(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"gen_ai_server_{name}_seconds_count", labels | more)

    assert count("request_duration", error_type="") == count("request_duration", error_type="evicted-deadline") == 1
    assert count("time_to_first_token") == count("time_per_output_token") == 1
    per_token_s = registry.get_sample_value("gen_ai_server_time_per_output_token_seconds_sum", labels)
    assert per_token_s == pytest.approx(0.95 / 99)
    below = registry.get_sample_value("gen_ai_server_time_per_output_token_seconds_bucket", labels | {"le": "0.01"})
    assert below == 1, "ten milliseconds are not the finest"
