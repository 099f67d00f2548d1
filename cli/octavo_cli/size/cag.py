"""Keeping a whole corpus cached (CAG, Chan et al. 2024) against retrieving chunks of it (RAG): price per request, and time.

Managed: tokens at a price per million. Self-hosted: milliseconds of this deployment's own rates. Both say after how many
uses the one-time build has paid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo_cli.size.shape import BadSize

MOST_TOKENS = 10**9
MOST_DIGITS = 10
MOST = 1e12


@dataclass(frozen=True, slots=True)
class Plan:
    """One question over a corpus. Tokens; prices per million tokens (cp: fresh, cc: cached), per request, or per build."""

    context: int
    chunks: int
    """Tokens of all retrieved chunks together."""
    question: int
    system: int
    """Instructions in front, cached in both ways."""
    cp: float
    cc: float
    retrieval: float
    build: float
    reuse: int

    @property
    def rag_uncached(self) -> int:
        """Tokens that RAG prefills per request."""
        return self.chunks + self.question

    @property
    def cag_uncached(self) -> int:
        """Tokens that CAG prefills per request."""
        return self.question

    @property
    def rag_equivalents(self) -> float:
        """RAG's tokens per request, a cached one counted at cc / cp."""
        return self.system * self.cached_share + self.rag_uncached

    @property
    def cag_equivalents(self) -> float:
        """CAG's."""
        return (self.context + self.system) * self.cached_share + self.cag_uncached

    @property
    def cached_share(self) -> float:
        """Price of a cached token over that of a fresh one."""
        return self.cc / self.cp

    @property
    def rag_price(self) -> float:
        """Per request: (system cc + (chunks + question) cp) / 1e6 + retrieval."""
        return (self.system * self.cc + self.rag_uncached * self.cp) / 1e6 + self.retrieval

    @property
    def cag_price(self) -> float:
        """Per request: ((context + system) cc + question cp) / 1e6 + build / reuse."""
        return self.cag_price_used + self.build / self.reuse

    @property
    def cag_price_used(self) -> float:
        """Without the build."""
        return ((self.context + self.system) * self.cc + self.cag_uncached * self.cp) / 1e6

    @property
    def break_even(self) -> float:
        """Uses from which CAG is the cheaper one; inf: never."""
        return break_even(self.build, self.rag_price - self.cag_price_used)


@dataclass(frozen=True, slots=True)
class Rates:
    """What a deployment measured: a step takes fixed_us + prefill_token_us a token + context_token_us a token of context."""

    fixed_us: float
    prefill_token_us: float
    context_token_us: float
    step_tokens: int
    token_bytes: int
    pool_bytes: int
    load_bytes_per_s: float
    load_fixed_us: float = 0.0
    source: str = ""

    def prefill_ms(self, tokens: int, before: int = 0) -> float:
        """`tokens` behind `before` that are cached: every step reads the context up to its end."""
        steps = max(1, -(-tokens // self.step_tokens))
        context = sum(before + min(tokens, (step + 1) * self.step_tokens) for step in range(steps))
        return (steps * self.fixed_us + tokens * self.prefill_token_us + context * self.context_token_us) / 1000

    def load_ms(self, tokens: int) -> float:
        """Those tokens' blocks from the tier below the pool."""
        return self.load_fixed_us / 1000 + tokens * self.token_bytes / self.load_bytes_per_s * 1000


@dataclass(frozen=True, slots=True)
class SelfHosted:
    """Milliseconds of a worker per request."""

    build_ms: float
    """Once: the prefill of the corpus."""
    storage_ms: float
    """The pool that it holds, for as long as it is kept, at the pool's scarcity, over all uses."""
    transfer_ms: float
    """From the tier below, when it does not stay in the pool."""
    suffix_ms: float
    rag_retrieval_ms: float
    rag_prefill_ms: float
    reuse: int

    @property
    def cag_ms(self) -> float:
        """Everything, the build shared by all uses."""
        return self.build_ms / self.reuse + self.cag_used_ms

    @property
    def cag_used_ms(self) -> float:
        """Without the build."""
        return self.storage_ms + self.transfer_ms + self.suffix_ms

    @property
    def rag_ms(self) -> float:
        """Retrieval and prefill."""
        return self.rag_retrieval_ms + self.rag_prefill_ms

    @property
    def break_even(self) -> float:
        """Uses from which CAG is the faster one; inf: never."""
        return break_even(self.build_ms, self.rag_ms - self.cag_used_ms)


def break_even(once: float, saved_each: float) -> float:
    """Uses after which what is saved each time has paid what is spent once; inf: nothing is saved."""
    if saved_each <= 0:
        return math.inf
    return max(1.0, math.ceil(once / saved_each))


def self_hosted(
    plan: Plan, rates: Rates, *, retrieval_ms: float, hours: float, scarcity: float, loaded: bool
) -> SelfHosted:
    """This deployment's own account. `scarcity` 0 to 1: how much of the pool's time others would have used."""
    share = min(1.0, (plan.context + plan.system) * rates.token_bytes / rates.pool_bytes)
    return SelfHosted(
        build_ms=rates.prefill_ms(plan.context + plan.system),
        storage_ms=share * hours * 3.6e6 * scarcity / plan.reuse,
        transfer_ms=rates.load_ms(plan.context + plan.system) if loaded else 0.0,
        suffix_ms=rates.prefill_ms(plan.question, plan.context + plan.system),
        rag_retrieval_ms=retrieval_ms,
        rag_prefill_ms=rates.prefill_ms(plan.rag_uncached, plan.system),
        reuse=plan.reuse,
    )


def chunk_tokens(text: str) -> int:
    """Tokens of `10x500`, or of one number. Raises BadSize."""
    count, times, size = text.partition("x")
    if len(text) > 2 * MOST_DIGITS or not (count.isdecimal() and (size.isdecimal() if times else True)):
        raise BadSize(f"--chunks: {text!r} must be COUNTxTOKENS, as 10x500", field="chunks")
    return int(count) * int(size or 1)


def usable_number(name: str, value: float) -> float:
    """`value`, when it is a number that can be reckoned with. Raises BadSize naming the option."""
    if not abs(value) <= MOST:  # NaN neither
        raise BadSize(f"--{name}: {value:g} must be a number of at most {MOST:g}", field=name)
    return value


def check(plan: Plan) -> Plan:
    """The plan, when it can be reckoned with. Raises BadSize naming the option."""
    for name in ("context", "chunks", "question", "system", "reuse"):
        if getattr(plan, name) > MOST_TOKENS:
            raise BadSize(f"--{name}: {getattr(plan, name)} is too large; give at most {MOST_TOKENS}", field=name)
    for name in ("cp", "cc", "retrieval", "build"):
        usable_number(name, getattr(plan, name))
    for name in ("context", "question"):
        if getattr(plan, name) < 1:
            raise BadSize(f"--{name}: {getattr(plan, name)} must be at least 1 token", field=name)
    for name in ("system", "retrieval", "build", "cc"):
        if getattr(plan, name) < 0:
            raise BadSize(f"--{name}: {getattr(plan, name)} is negative; give 0 or more", field=name)
    if plan.cp <= 0:
        raise BadSize(f"--cp: {plan.cp:g} must be above 0, per million tokens", field="cp")
    if plan.reuse < 1:
        raise BadSize(f"--reuse: {plan.reuse} must be at least 1", field="reuse")
    return plan
