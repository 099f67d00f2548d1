"""From words to a plan: each wrong word is named."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_cli.bench.arrivals import ClosedLoop, OpenLoop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.http_target import HttpTarget
from octavo_cli.bench.options import Options, plan_at, plan_of, target_of
from octavo_cli.bench.work import BadPlan
from octavo_cli.bench.workloads import Shape


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"arrivals": "poison", "rate": 3.0},
            "--arrivals: 'poison' is unknown; use poisson, gamma, constant, replay, closed",
        ),
        ({"arrivals": "poisson"}, "--rate: 0.0 must be above 0 and at most 1e.09"),
        ({"arrivals": "closed", "rate": 3.0}, "a closed loop has none"),
        ({"arrivals": "gamma", "rate": 1.0, "burstiness": 0.0}, "--burstiness: 0.0 must be above 0 and at most 1000"),
        ({"arrivals": "poisson", "rate": float("nan"), "duration_s": 1.0}, "--rate: nan must be above 0"),
        ({"arrivals": "poisson", "rate": float("inf"), "duration_s": 1.0}, "--rate: inf must be above 0"),
        ({"arrivals": "poisson", "rate": 1e8, "duration_s": 60.0}, "are more than 2000000 requests; lower one of them"),
        ({"arrivals": "poisson", "rate": 1.0, "duration_s": -1.0}, "--duration: -1.0 must be at least 0"),
        ({"arrivals": "poisson", "rate": 1.0, "duration_s": float("inf")}, "--duration: inf must be at least 0"),
        (
            {"arrivals": "gamma", "rate": 1.0, "burstiness": 1e300},
            "--burstiness: 1e.300 must be above 0 and at most 1000",
        ),
        ({"arrivals": "gamma", "rate": 1.0, "speed": float("nan")}, "--speed: nan must be above 0"),
        ({"shape": Shape(length_spread=float("nan"))}, "--length-spread: nan must be at least 0"),
        ({"shape": Shape(length_spread=1e200)}, "--length-spread: 1e.200 must be at least 0 and at most 1000"),
        ({"shape": Shape(pause_s=float("nan"))}, "--pause-s: nan must be at least 0"),
        ({"temperature": float("nan")}, "--temperature: nan must be at least 0"),
        ({"top_p": 1.5}, "--top-p: 1.5 must be above 0 and at most 1"),
        ({"cancel_after": 0}, "--cancel-after: 0 must be at least 1"),
        ({"cost_per_hour": float("nan")}, "--cost-per-hour: nan must be at least 0"),
        ({"slo": "ttft=1s,ttft=2s"}, "--slo: ttft is bound twice"),
        ({"slo": ",,"}, "--slo: ',,' holds no bound"),
        ({"slo": "ttft=\u0665ms"}, "is no bound"),
        ({"arrivals": "replay"}, "--arrivals: replay needs a trace"),
        ({"slo": "ttft=fast"}, "--slo: 'ttft=fast' is no bound; write ttft=500ms with one of ttft, tpot"),
        ({"slo": "ttfb=3ms"}, "--slo: 'ttfb=3ms' is no bound"),
        ({"workload": "chats"}, "--workload: 'chats' is unknown; use random, chat"),
        ({"trace": "/no/such/file"}, "--trace: /no/such/file cannot be read"),
        ({"cache": "hot"}, "--cache: 'hot' is unknown; use cold, warm, both, as-is"),
        ({"shape": Shape(prompt_tokens=0)}, "--prompt-tokens: 0 is too few"),
        ({"shape": Shape(turns=0), "workload": "rag"}, "--turns: 0 is too few"),
        ({"cancel_share": 1.5}, "--cancel-share: 1.5 must lie in"),
        ({"duplicate_share": -1.0}, "--duplicate-share: -1.0 must lie in"),
        ({"cost_per_hour": -1.0}, "--cost-per-hour: -1.0 must be at least 0"),
    ],
)
def test_what_cannot_be_sent_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadPlan, match=said.replace("(", r"\(").replace("[", r"\[")):
        plan_of(Options(**given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"arrivals": "closed"}, "--sweep: needs a rate to change"),
        ({"arrivals": "poisson", "slo": "ttft=1s"}, "--sweep: needs --duration"),
        ({"arrivals": "poisson", "duration_s": 3.0}, "--sweep: needs bounds to hold; give --slo"),
    ],
)
def test_what_cannot_be_swept_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadPlan, match=said):
        plan_at(Options(**given), 1.0)


def test_defaults_are_a_closed_loop_and_a_duration_makes_its_requests() -> None:
    plan = plan_of(Options())
    assert plan.loop == ClosedLoop(4) and plan.workload.requests == 32
    plan = plan_of(Options(arrivals="poisson", rate=10.0, duration_s=20.0))
    assert isinstance(plan.loop, OpenLoop) and plan.workload.requests >= 300
    talks = plan_of(Options(arrivals="poisson", rate=10.0, duration_s=20.0, workload="multi-turn"))
    assert len(talks.workload.sessions) >= 300


def test_the_url_says_which_protocol() -> None:
    assert isinstance(target_of("http://127.0.0.1:1/v1"), HttpTarget)
    assert isinstance(target_of("grpc://127.0.0.1:1"), GrpcTarget)
