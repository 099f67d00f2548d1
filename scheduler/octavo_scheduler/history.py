"""Output lengths, learned: what memory must be reserved for (a high quantile) and what time must be counted for (the mean).

Kept per tenant and prompt-length class, per tenant, and for all; a prediction takes the narrowest with enough to go by.
The quantile is a Frugal stream (Ma et al. 2014) with a relative step, the mean an exponential one.
"""

from __future__ import annotations

from collections import OrderedDict

_QUANTILE = 0.8
_STEP = 0.05
_MEMORY = 0.05
_ENOUGH = 8
_MAX_KEYS = 8192

Key = tuple[str, int]


class _Lengths:
    """Estimates over one stream of output lengths, tokens."""

    __slots__ = ("mean", "quantile", "seen")

    def __init__(self, tokens: float) -> None:
        self.quantile = self.mean = tokens
        self.seen = 0

    def observe(self, tokens: int) -> None:
        self.seen += 1
        if self.seen == 1:  # better than any default
            self.quantile = self.mean = float(tokens)
            return
        if tokens > self.quantile:
            self.raise_quantile()
        else:
            self._lower_quantile()
        self.mean += max(_MEMORY, 1 / self.seen) * (tokens - self.mean)

    def raise_quantile(self) -> None:
        self.quantile += max(1.0, _STEP * self.quantile) * _QUANTILE

    def _lower_quantile(self) -> None:
        self.quantile = max(1.0, self.quantile - max(1.0, _STEP * self.quantile) * (1 - _QUANTILE))


def length_class(prompt_tokens: int) -> int:
    """Prompts of about the same length: each class spans a factor of four."""
    return prompt_tokens.bit_length() // 2


class OutputHistory:
    """Predicts output tokens. Bounded in tenants; a tenant without history is predicted from the others'."""

    __slots__ = ("_all", "_by_key", "_default", "version")

    def __init__(self, default_tokens: int) -> None:
        self.version = 0
        """Counts what was learned: a prediction holds as long as it stands."""
        self._default = default_tokens
        self._all = _Lengths(float(default_tokens))
        self._by_key: OrderedDict[Key, _Lengths] = OrderedDict()

    def predict(self, tenant: str, max_tokens: int, prompt_tokens: int = 0) -> int:
        """Output tokens that admission reserves room for; never above max_tokens."""
        return max(1, min(max_tokens, round(self._narrowest(tenant, prompt_tokens).quantile)))

    def expect(self, tenant: str, max_tokens: int, prompt_tokens: int = 0) -> float:
        """Mean output tokens, for work and time; never above max_tokens."""
        return max(1.0, min(float(max_tokens), self._narrowest(tenant, prompt_tokens).mean))

    def lengths(self, tenant: str, max_tokens: int, prompt_tokens: int = 0) -> tuple[int, float]:
        """(predict, expect) of the same request."""
        known = self._narrowest(tenant, prompt_tokens)
        return (
            max(1, min(max_tokens, round(known.quantile))),
            max(1.0, min(float(max_tokens), known.mean)),
        )

    def count_on(self, tenant: str, max_tokens: int, prompt_tokens: int = 0) -> float:
        """Output tokens to hold against a deadline: the mean, and as long as nothing is known the one that is certain."""
        return self.expect(tenant, max_tokens, prompt_tokens) if self._all.seen >= _ENOUGH else 1.0

    def observe(self, tenant: str, output_tokens: int, prompt_tokens: int = 0) -> None:
        """One finished choice."""
        self.version += 1
        self._all.observe(output_tokens)
        for key in ((tenant, -1), (tenant, length_class(prompt_tokens))):
            self._of(key).observe(output_tokens)

    def outgrown(self, tenant: str, prompt_tokens: int = 0) -> None:
        """A running choice has passed what was predicted for it: the prediction rises before the choice has ended."""
        self.version += 1
        for key in ((tenant, -1), (tenant, length_class(prompt_tokens))):
            self._of(key).raise_quantile()

    def _of(self, key: Key) -> _Lengths:
        lengths = self._by_key.pop(key, None)
        if lengths is None:
            lengths = _Lengths(self._all.quantile if self._all.seen >= _ENOUGH else float(self._default))
        self._by_key[key] = lengths
        if len(self._by_key) > _MAX_KEYS:
            self._by_key.popitem(last=False)
        return lengths

    def _narrowest(self, tenant: str, prompt_tokens: int) -> _Lengths:
        by_key = self._by_key
        lengths = by_key.get((tenant, prompt_tokens.bit_length() // 2))  # length_class, in line
        if lengths is not None and lengths.seen >= _ENOUGH:
            return lengths
        lengths = by_key.get((tenant, -1))
        if lengths is not None and lengths.seen >= _ENOUGH:
            return lengths
        return self._all if lengths is None or self._all.seen >= _ENOUGH else lengths
