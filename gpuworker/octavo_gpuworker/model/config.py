"""ModelConfig: the flags that drive the one decoder, whatever file they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; numbers as in Hugging Face's rope_parameters."""

    kind: Literal["linear", "llama3", "yarn", "factors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """kind "yarn": rotations within the trained context above which a wave is kept, and below which it is slowed."""
    amplitude: float = 1.0
    """kind "yarn": what cosine and sine are multiplied by."""
    factors: tuple[float, ...] = ()
    """kind "factors": one divisor per frequency, as a GGUF's rope_freqs.weight holds them."""


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """A mixture of experts in place of the feed-forward (Mixtral, arXiv 2401.04088; DeepSeek-V2, arXiv 2405.04434)."""

    count: int
    per_token: int
    ffn: int
    """Inner size of one expert."""
    renormalize: bool
    """The chosen experts' shares are made to add up to 1."""
    scale: float = 1.0
    """Of the experts' sum."""
    shared_ffn: int = 0
    """Inner size of the experts that every token passes; 0: there are none."""
    first_layer: int = 0
    """Layers before this one have the dense feed-forward."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count or self.ffn < 1:
            raise ValueError(f"{self.per_token} of {self.count} experts with inner size {self.ffn} cannot be")


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): what the cache holds per token, and the heads over it."""

    rank: int
    """Width of the latent."""
    nope: int
    """Width of a head's key part without rotation."""
    rope: int
    """Width of the rotated key part, which all heads share."""
    value: int
    """Width of a head's value."""
    q_rank: int = 0
    """Width of the queries' own latent; 0: one matrix makes them."""

    def __post_init__(self) -> None:
        if min(self.rank, self.nope, self.rope, self.value) < 1 or self.rope % 2:
            raise ValueError(f"a latent attention of {self} cannot be: sizes are positive, rope is even")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and flags of one decoder-only model; lengths in tokens, sizes in elements."""

    architecture: str
    """llama, mistral, qwen2, qwen3, mixtral, gemma2 or deepseek_v2: for people and the fingerprint; the decoder reads only the flags below."""
    layers: int
    d_model: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    max_position: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    """Qwen2, and Llama with attention_bias."""
    o_bias: bool = False
    qk_norm: bool = False
    """Qwen3: RMS norm of each query and key head before the rotation."""
    sliding_window: int | None = None
    """A query at position p sees keys in (p - window, p]."""
    full_layers: tuple[int, ...] = ()
    """Layers that see everything in spite of `sliding_window` (Gemma 2: every second)."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    query_scale: float = 0.0
    """Of attention scores; 0: head_dim^-0.5."""
    attention_soft_cap: float = 0.0
    """Attention scores become cap * tanh(score / cap); 0: they do not."""
    logit_soft_cap: float = 0.0
    """Same for the logits."""
    embedding_scale: float = 1.0
    norm_offset: bool = False
    """Gemma: the files hold norm weights minus 1."""
    post_norms: bool = False
    """Gemma 2: attention's and feed-forward's results pass a norm of their own before they join the residual."""
    experts: ExpertConfig | None = None
    latent: LatentConfig | None = None

    def __post_init__(self) -> None:
        # ValueError: whoever read the numbers says which file they came from.
        for name in ("layers", "d_model", "q_heads", "kv_heads", "head_dim", "ffn", "vocab_size", "max_position"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive integer")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads are no multiple of {self.kv_heads} KV heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, rotary embedding needs an even one")
        if self.experts is not None and self.activation != "silu":
            raise ValueError(f"activation is {self.activation} beside experts, whose kernels have silu only")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}, expected a positive integer or none")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    @property
    def qkv_rows(self) -> int:
        """Output rows of the fused query-key-value projection."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by before the softmax."""
        return self.query_scale or self.head_dim**-0.5

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return self.head_dim if self.latent is None else self.latent.rope

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """(halves, heads, width) of what the cache holds per token and layer: keys and values per head, or one latent."""
        if self.latent is None:
            return 2, self.kv_heads, self.head_dim
        return 1, 1, self.latent.rank + self.latent.rope
