"""`octavo bench serve` as a function: a plan in, figures out, for open loops, closed loops and sweeps."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from octavo.errors import InternalError
from octavo.figures import Figure, Figures

from octavo_cli.bench.arrivals import ClosedLoop, OpenLoop, arrival_times
from octavo_cli.bench.pairs import samples_of
from octavo_cli.bench.runner import Asking, Runner
from octavo_cli.bench.sample import Run
from octavo_cli.bench.slo import Slo
from octavo_cli.bench.summary import summarize
from octavo_cli.bench.target import Described, Target
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload

CACHE_STATES = ("cold", "warm", "both", "as-is")
WARMUP_TOKENS = 16
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement. A figure holds an open loop or a closed one, a cold cache or a warm one, never both."""

    workload: Workload
    loop: OpenLoop | ClosedLoop
    slo: Slo = field(default_factory=Slo)
    asking: Asking = field(default_factory=Asking)
    cache: str = "cold"
    """cold: prompts that no earlier run has sent (a cache salt of their own). warm: after the same prompts were sent once,
    unmeasured. both: one after the other. as-is: without a salt."""
    warmup_requests: int = 4
    cost_per_hour: float = 0.0
    fit: bool = False
    """Leave out sessions that the context cannot hold, instead of refusing the workload."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a plan gave: the figures, and the runs behind them by cache state."""

    figures: Figures
    runs: dict[str, Run] = field(default_factory=dict)

    def complaints(self) -> list[str]:
        """Why requests failed or were refused, each reason once."""
        samples = [sample for run in self.runs.values() for sample in run.samples]
        return sorted({sample.reason for sample in samples if sample.outcome in ("failed", "rejected")})


async def measure(target: Target, plan: Plan, say: Say = lambda line: None) -> Measured:
    """Warms up, then measures. Raises BadPlan, or OctavoError when nothing answers or every request failed."""
    described = await target.describe()
    sessions, left_out = fitting(plan.workload.sessions, described, plan.fit)
    results: list[Figure] = []
    await warm_up(target, described, plan, say)
    runs: dict[str, Run] = {}
    states = ("cold", "warm") if plan.cache == "both" else (plan.cache,)
    salt = "" if plan.cache == "as-is" else f"bench-{uuid.uuid4().hex[:12]}"
    runner = Runner(target, described, replace(plan.asking, cache_salt=salt))
    for state in states:
        if state == "warm" and plan.cache == "warm":
            say(f"priming the cache with {len(sessions)} sessions, unmeasured")
            await runner.closed_loop(sessions, 4)
        say(f"cache {state}")
        runs[state] = await run_once(runner, sessions, plan, lambda count: say(f"measuring {count} sessions"))
        refuse_all_failed(runs[state])
        suffix = f"/{state}" if plan.cache == "both" else ""
        results += [
            replace(item, name=item.name + suffix) for item in summarize(runs[state], plan.slo, plan.cost_per_hour)
        ]
    config = config_of(plan, described, left_out)
    samples = samples_of(next(reversed(runs.values())), plan.workload)
    return Measured(Figures("serve", tuple(results), config, samples=samples), runs)


def refuse_all_failed(run: Run) -> None:
    """A run in which nothing was answered measures nothing. Raises InternalError with one of the reasons."""
    if not run.with_outcome("ok") and not run.with_outcome("cancelled"):
        reasons = {sample.reason for sample in run.samples}
        raise InternalError(f"all {len(run.samples)} requests failed, one with {sorted(reasons)[0]}")


async def run_once(
    runner: Runner, sessions: Sequence[Session], plan: Plan, begins: Callable[[int], None] = lambda count: None
) -> Run:
    """The plan's loop over these sessions, or over those of them that arrive within its duration; `begins` is told how many."""
    if isinstance(plan.loop, ClosedLoop):
        begins(len(sessions))
        return await runner.closed_loop(sessions, plan.loop.concurrency)
    times_s = arrival_times(plan.loop, len(sessions), [session.at_s for session in sessions], plan.seed)
    if not times_s:
        raise BadPlan("--duration: no request arrives in this time; give a longer one or a higher --rate")
    begins(len(times_s))
    return await runner.open_loop(sessions, times_s)


async def warm_up(target: Target, described: Described, plan: Plan, say: Say) -> None:
    """Short requests that no figure counts: connections are open and the server's first steps are over."""
    if plan.warmup_requests < 1:
        return
    say(f"warming up with {plan.warmup_requests} requests")
    salt = f"warmup {time.time_ns()}"
    sessions = [
        Session(f"w{i}", (Turn(4, (Piece(f"{salt} {i}", WARMUP_TOKENS),)),)) for i in range(plan.warmup_requests)
    ]
    run = await Runner(target, described, plan.asking).closed_loop(sessions, min(4, plan.warmup_requests))
    if not run.with_outcome("ok"):
        raise InternalError(f"the warm-up failed: {run.samples[0].reason}")


def fitting(sessions: Sequence[Session], described: Described, fit: bool) -> tuple[list[Session], int]:
    """The sessions that the context holds, and how many were left out; all of them without `fit`. Raises BadPlan."""
    if not fit:
        return list(sessions), 0
    room = described.max_model_len
    kept = [item for item in sessions if sum(turn.new_tokens + turn.max_tokens for turn in item.turns) <= room]
    if not kept:
        raise BadPlan(f"--fit: no session fits the context of {room} tokens", field="fit")
    return kept, len(sessions) - len(kept)


def config_of(plan: Plan, described: Described, left_out: int = 0) -> dict[str, Any]:
    """What a reader must know to repeat the run, and a comparison to refuse an unlike one."""
    loop: dict[str, Any] = asdict(plan.loop)
    kind = "closed" if isinstance(plan.loop, ClosedLoop) else "open"
    asking = {name: value for name, value in asdict(plan.asking).items() if name not in ("cache_salt", "give_up_s")}
    return {
        "workload": {
            "name": plan.workload.name,
            "digest": plan.workload.digest(),
            "requests": plan.workload.requests,
            "left_out": left_out,
            **dict(plan.workload.parameters),
        },
        "loop": {"loop": kind, **loop, "seed": plan.seed},
        "asking": asking,
        "cache": plan.cache,
        "slo": str(plan.slo),
        "warmup_requests": plan.warmup_requests,
        "served": {"max_model_len": described.max_model_len, **dict(described.facts)},
    }
