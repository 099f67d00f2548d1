"""Which phase makes requests slow, what bounds it, what to compare first and what that costs. Pure: facts in, rows out.

A symptom's score is how far it is beyond its target: the first token's 90th percentile over the TTFT target goes to the largest
part of the first token, tokens and stalls go to decode and preemption over the target of the inter-token latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo.errors import OctavoError
from octavo.figures import Figures, quantile

from octavo_cli.exits import FAILED
from octavo_cli.search_time import WIDTH_KEY, without_search
from octavo_cli.spans import REQUEST_SPAN, Span
from octavo_cli.ttft import ttft_of

SHARE = 0.9
STALL_FACTOR = 5.0
"""A stall is a gap of so many usual gaps, and beyond the target of a gap."""
LEAST_SCORE = 0.05
"""Symptoms below this share of their target are not listed, the worst apart."""


class NothingToDiagnose(OctavoError):
    """No request with a first token in what was looked at."""

    exit_code = FAILED
    default_reason = "nothing-to-diagnose"


@dataclass(frozen=True, slots=True)
class Targets:
    """Milliseconds."""

    ttft_ms: float = 1000.0
    itl_ms: float = 200.0


@dataclass(frozen=True, slots=True)
class Advice:
    """What belongs to a symptom whatever the numbers are. `bound` may be replaced by what the steps achieved."""

    phase: str
    bound: str
    compare: str
    cost: str


SYMPTOMS: Mapping[str, Advice] = {
    "queue": Advice(
        "queue",
        "queue",
        "the same load with one worker more (or half the rate): if the queue part falls with it, capacity is missing; "
        "if not, look at preemptions and at kv blocks used",
        "idle workers outside the peak; device seconds per good request",
    ),
    "prefill": Advice(
        "prefill",
        "compute",
        "the same prompts sent twice: a hit shows what a shared prefix would save; then scheduler.max_num_batched_tokens doubled",
        "inter-token latency of the requests that decode beside larger chunks",
    ),
    "kv_load": Advice(
        "kv.load",
        "transfer",
        "the same prompt with the cache off: if its prefill is shorter than this load, the tier is too slow to be asked",
        "prefill recomputed where a load is given up",
    ),
    "transport": Advice(
        "transport",
        "transfer",
        "the same request from a client on the gateway's host, and gateway, scheduler and worker on one host",
        "CPU of the gateway per message; a second gateway",
    ),
    "decode": Advice(
        "decode",
        "memory",
        "half the sequences at once (scheduler.max_num_seqs): if tokens come twice as fast, the batch is what is read and computed; "
        "if not, the weights are: a smaller weight format",
        "throughput: fewer sequences share one reading of the weights",
    ),
    "preemption": Advice(
        "preempted",
        "memory",
        "the same load with twice the pool (engine.kv_pool_bytes), or half of scheduler.max_num_seqs: preemptions must go to 0",
        "recomputed tokens (octavo_scheduler_recomputed_tokens_total)",
    ),
}
"""The six symptoms. Parts of the first token that are none of them count to the one they are fixed with (see _GROUPS)."""

_GROUPS: Mapping[str, str] = {
    "gateway": "transport",
    "tokenize": "transport",
    "detokenize": "transport",
    "dispatch": "transport",
    "report": "transport",
    "relay": "transport",
    "transport": "transport",
    "queue": "queue",
    "worker_wait": "queue",
    "retry": "preemption",
    "kv_load": "kv_load",
    "prefill": "prefill",
    "sample": "prefill",
}


@dataclass(slots=True)
class Facts:
    """What the requests looked at took, milliseconds; one entry per request in each list."""

    requests: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    parts_ms: dict[str, float] = field(default_factory=dict)  # sums over requests
    itl_ms: list[float] = field(default_factory=list)  # mean gap of each request
    stall_ms: list[float] = field(default_factory=list)  # longest gap of each request
    interrupted: int = 0  # requests that were preempted or lost a worker
    bounds_s: dict[str, dict[str, float]] = field(default_factory=dict)  # span name -> what bound its steps -> seconds
    shares: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # span name -> (memory, compute) shares
    load_bytes: float = 0.0
    load_s: float = 0.0
    middle: str = "mean"  # what parts_ms over requests is


@dataclass(frozen=True, slots=True)
class Finding:
    """One row, worst first. `score` is the value over its target."""

    symptom: str
    phase: str
    bound: str
    score: float
    evidence: str
    compare: str
    cost: str

    @property
    def over(self) -> bool:
        """The target is missed."""
        return self.score > 1.0


def facts_of(spans: Iterable[Span], since_ns: int = 0) -> Facts:
    """The facts of the requests that ended at or after `since_ns`."""
    listed = list(spans)
    facts = Facts()
    requests = {
        span.trace_id: span
        for span in listed
        if span.name == REQUEST_SPAN and span.end_ns >= since_ns and ttft_of(span)
    }
    searches = _searches(listed, requests)
    for span in requests.values():
        _add_request(facts, span, searches.get(span.trace_id))
    for span in listed:
        if span.trace_id in requests and span.name in ("prefill", "decode"):
            _add_steps(facts, span)
        elif span.trace_id in requests and span.name == "kv.load":
            facts.load_bytes += float(span.attributes.get("octavo.bytes", 0))
            facts.load_s += (span.end_ns - span.start_ns) / 1e9
    return facts


def _searches(spans: Iterable[Span], requests: Mapping[str, Span]) -> dict[str, list[Span]]:
    """The decode spans of each beam search by its trace: one per beam and residency."""
    searches: dict[str, list[Span]] = {trace: [] for trace, item in requests.items() if WIDTH_KEY in item.attributes}
    for span in spans:
        if span.name == "decode" and span.trace_id in searches:
            searches[span.trace_id].append(span)
    return searches


def _add_request(facts: Facts, span: Span, search: Sequence[Span] | None) -> None:
    """`search`: decode spans of a beam search, whose steps stand before its first token and in no gap; None: it is none."""
    ttft = ttft_of(span)
    if ttft is None:
        return
    if search is not None:
        ttft, gap_ms = without_search(ttft, search)
    said = span.attributes
    facts.requests += 1
    facts.ttft_ms.append(ttft.total_ms)
    for name, value in ttft.parts.items():
        facts.parts_ms[name] = facts.parts_ms.get(name, 0.0) + value
    tokens = int(said.get("gen_ai.usage.output_tokens", 0))
    if search is not None:
        facts.itl_ms += [gap_ms] if gap_ms else []
    elif tokens > 1:
        total_ms = float(said.get("gen_ai.latency.e2e", 0.0)) * 1e3
        facts.itl_ms.append(max(0.0, total_ms - ttft.total_ms) / (tokens - 1))
        facts.stall_ms.append(float(said.get("octavo.longest_stall_us", 0)) / 1e3)
    facts.interrupted += bool(said.get("octavo.preemptions", 0)) or int(said.get("octavo.attempts", 1)) > 1


def _add_steps(facts: Facts, span: Span) -> None:
    said = span.attributes
    bound = said.get("octavo.step.bound")
    if not isinstance(bound, str):
        return
    seconds = facts.bounds_s.setdefault(span.name, {})
    seconds[bound] = seconds.get(bound, 0.0) + (span.end_ns - span.start_ns) / 1e9
    pair = (float(said.get("octavo.step.memory_share", 0.0)), float(said.get("octavo.step.compute_share", 0.0)))
    facts.shares.setdefault(span.name, []).append(pair)


def facts_of_figures(figures: Figures) -> Facts:
    """The facts in a JSON of `octavo bench serve`: quantiles stand for the requests, and what the server said for the parts.

    Raises NothingToDiagnose when it holds no time to first token.
    """
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    for suffix in (
        "",
        "/cold",
        "/warm",
    ):  # a run of both states names its figures; /hit, /short and the like are parts of a run
        for item in figures.results:
            name = item.name.removesuffix(suffix)
            if "/" not in name and item.name == name + suffix:
                values.setdefault(name, item.value)
                counts.setdefault(name, item.n)
    ttft_ms = [values[name] for name in ("ttft_p50", "ttft_p95") if name in values]
    if not ttft_ms:
        raise NothingToDiagnose(
            f"{figures.benchmark}: no ttft_p50 in it; give the JSON of `octavo bench serve` without --sweep"
        )
    facts = Facts(requests=counts.get("ttft_p50", counts.get("ttft_p95", 1)), ttft_ms=ttft_ms, middle="median")
    outside = values.get("ttft_outside_server_p50", 0.0)
    queue, prefill = values.get("server_queue_p50", 0.0), values.get("server_prefill_p50", 0.0)
    waited = values.get("server_worker_wait_p50", 0.0)  # behind the step that ran, or the batch's other prompts
    rest = max(0.0, values.get("server_ttft_p50", ttft_ms[0] - outside) - queue - waited - prefill)
    parts_ms = {"queue": queue, "worker_wait": waited, "prefill": prefill, "transport": max(0.0, outside) + rest}
    facts.parts_ms = {name: value * facts.requests for name, value in parts_ms.items()}
    known = "tpot" if "tpot_p50" in values else "itl"
    facts.itl_ms = [values[name] for name in (f"{known}_p50", f"{known}_p95") if name in values]
    facts.stall_ms = [values["itl_max"]] if "itl_max" in values else []
    return facts


def diagnose(facts: Facts, targets: Targets) -> list[Finding]:
    """The symptoms, worst first. Raises NothingToDiagnose without a request."""
    if not facts.ttft_ms:
        raise NothingToDiagnose("no request with a first token in this time; widen --last, or ask something first")
    found = [*_first_token(facts, targets), *_decode(facts, targets), *_stalls(facts, targets)]
    worst_first = sorted(found, key=lambda item: -item.score)
    return worst_first[:1] + [item for item in worst_first[1:] if item.score >= LEAST_SCORE]


def _first_token(facts: Facts, targets: Targets) -> Iterable[Finding]:
    groups: dict[str, float] = {}
    for part, total_ms in facts.parts_ms.items():
        groups[_GROUPS[part]] = groups.get(_GROUPS[part], 0.0) + total_ms
    whole_ms = sum(groups.values())
    worst_ms = quantile(facts.ttft_ms, SHARE)
    for symptom, total_ms in groups.items():
        if not whole_ms:
            continue
        share = total_ms / whole_ms
        evidence = f"{share:.0%} of the time to first token (p90 {worst_ms:.1f} ms), {facts.middle} {total_ms / facts.requests:.1f} ms"
        if symptom == "kv_load" and facts.load_s:
            evidence += f"; {facts.load_bytes / facts.load_s / 1e6:.0f} MB/s"
        bound = _bound(facts, "prefill") if symptom == "prefill" else ""
        yield _finding(symptom, worst_ms * share / targets.ttft_ms, evidence + _roofline(facts, symptom), bound)


def _decode(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if facts.itl_ms:
        worst_ms = quantile(facts.itl_ms, SHARE)
        evidence = f"p90 of a request's mean gap {worst_ms:.1f} ms{_roofline(facts, 'decode')}"
        yield _finding("decode", worst_ms / targets.itl_ms, evidence, _bound(facts, "decode"))


def _stalls(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if not facts.stall_ms or not facts.itl_ms:
        return
    worst_ms, usual_ms = max(facts.stall_ms), quantile(facts.itl_ms, 0.5)
    if facts.interrupted and worst_ms > STALL_FACTOR * usual_ms:
        evidence = f"{facts.interrupted} of {facts.requests} requests interrupted; longest gap {worst_ms:.0f} ms, usual {usual_ms:.1f} ms"
        yield _finding("preemption", worst_ms / targets.itl_ms, evidence)


def _bound(facts: Facts, name: str) -> str:
    """What bound most of the time of these spans; empty when no step said so."""
    seconds = facts.bounds_s.get(name, {})
    return max(seconds, key=lambda bound: seconds[bound]) if seconds else ""


def _roofline(facts: Facts, symptom: str) -> str:
    pairs: Sequence[tuple[float, float]] = facts.shares.get(symptom, ())
    if not pairs:
        return ""
    memory, compute = (quantile([pair[at] for pair in pairs], 0.5) for at in (0, 1))
    return f"; steps at {memory:.0%} of peak bytes/s, {compute:.0%} of peak FLOP/s"


def _finding(symptom: str, score: float, evidence: str, bound: str = "") -> Finding:
    advice = SYMPTOMS[symptom]
    return Finding(symptom, advice.phase, bound or advice.bound, score, evidence, advice.compare, advice.cost)
