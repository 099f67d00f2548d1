"""What a simulated worker is made of: its cost model, its KV pool and its links, given or fitted to a live worker.

The given models come from a roofline (Williams et al. 2009): a decode step reads all weights once, a prefill token
costs two operations per parameter, a token of context is read once per step by each sequence that attends to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo_scheduler.events import Calibration

BLOCK_TOKENS = 16


class BadPlan(ValueError):
    """Input of the simulator that cannot be used; the message names the field and the fix."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Hardware:
    """One worker. Durations in microseconds, sizes in tokens, blocks or bytes as named."""

    name: str
    fixed_us: float
    prefill_token_us: float
    decode_seq_us: float
    context_token_us: float
    num_blocks: int
    block_bytes: int
    block_tokens: int = BLOCK_TOKENS
    max_num_seqs: int = 256
    max_model_len: int = 131_072
    gap_us: float = 0.0
    """Between the end of a step and the start of the next: what the worker's report of a step does not hold."""
    link_us: int = 200
    """One way between worker and scheduler."""
    front_us: int = 1000
    """From the client's call to the core: gateway, tokenizer, transport."""
    back_us: int = 500
    """From the core to the client."""
    host_blocks: int = 0
    """Blocks that the host's kvstore holds; 0: no kvstore."""
    tier_fixed_us: float = 1000.0
    tier_bytes_per_us: float = 5000.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "name":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or value != value or value < 0:
                raise BadPlan(f"hardware.{item.name}", f"{value!r} must be a number of at least 0")
        for name in ("fixed_us", "tier_bytes_per_us", "block_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) <= 0:
                raise BadPlan(f"hardware.{name}", f"{getattr(self, name)} must be above 0")
        if self.num_blocks < 2:
            raise BadPlan("hardware.num_blocks", f"{self.num_blocks} leaves no block beside the null block; give 2")

    @property
    def calibration(self) -> Calibration:
        """What the worker's Hello says of its step time."""
        return Calibration(self.fixed_us, self.prefill_token_us, self.decode_seq_us, self.context_token_us)

    def step_us(self, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> float:
        """Time of one step; the same four features as the core's own StepCosts, so that the core can learn it."""
        return (
            self.fixed_us
            + self.prefill_token_us * prefill_tokens
            + self.decode_seq_us * decode_seqs
            + self.context_token_us * context_tokens
        )


@dataclass(frozen=True, slots=True)
class Model:
    """What the roofline needs of a model in 16 bits."""

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


LLAMA_8B = Model(8.03e9, 32, 8, 128)
LLAMA_70B = Model(70.6e9, 80, 8, 128)

H200_BYTES, H200_BYTES_PER_US, H200_OPERATIONS_PER_US = 141e9, 4.8e6, 989e6
"""NVIDIA's data sheet: 141 GB, 4.8 TB/s, 989 TFLOP/s dense in bf16."""
BANDWIDTH_SHARE, COMPUTE_SHARE, MEMORY_SHARE = 0.8, 0.55, 0.9
"""What good kernels reach of it, and what of the memory is used."""
LAUNCH_US, ALLREDUCE_US, SAMPLE_SEQ_US, WORKSPACE_BYTES = 800.0, 12.0, 6.0, 4e9
"""Host and launch time of a step, one small all-reduce over NVLink, sampling per sequence, activations per GPU."""


def roofline(name: str, model: Model, gpus: int) -> Hardware:
    """A worker of `gpus` H200 under tensor parallelism: weights, KV and operations are split, each layer reduces twice."""
    weights = 2 * model.parameters
    reduce_us = 2 * model.layers * ALLREDUCE_US if gpus > 1 else 0.0
    bandwidth = gpus * H200_BYTES_PER_US * BANDWIDTH_SHARE
    pool_bytes = gpus * (H200_BYTES * MEMORY_SHARE - WORKSPACE_BYTES) - weights
    block_bytes = model.kv_token_bytes * BLOCK_TOKENS
    return Hardware(
        name,
        fixed_us=round(weights / bandwidth + reduce_us + LAUNCH_US, 1),
        prefill_token_us=round(2 * model.parameters / (gpus * H200_OPERATIONS_PER_US * COMPUTE_SHARE), 2),
        decode_seq_us=SAMPLE_SEQ_US,
        context_token_us=round(model.kv_token_bytes / bandwidth, 4),
        num_blocks=int(pool_bytes / block_bytes),
        block_bytes=block_bytes,
    )


def given_models() -> dict[str, Hardware]:
    """The cost models that need no measurement, by name."""
    models = (
        roofline("h200-8b", LLAMA_8B, 1),
        roofline("h200-70b-tp4", LLAMA_70B, 4),
        # fitted to one worker with SmolLM2-135M in bfloat16 on 2 cores of an AMD EPYC (bench/LOG.md)
        Hardware(
            "this-cpu",
            fixed_us=20_600.0,
            prefill_token_us=780.0,
            decode_seq_us=1320.0,
            context_token_us=1.7,
            num_blocks=1456,
            block_bytes=368_640,
            max_model_len=8192,
            gap_us=200.0,
            front_us=4000,
            back_us=1500,
        ),
    )
    return {item.name: item for item in models}


def hardware_from(content: Any) -> Hardware:
    """A given model by its name, or one of one's own as an object with Hardware's fields. Raises BadPlan."""
    known = given_models()
    if isinstance(content, str):
        if content not in known:
            raise BadPlan("hardware", f"{content!r} is unknown; use one of {', '.join(known)}, or give an object")
        return known[content]
    if not isinstance(content, Mapping):
        raise BadPlan("hardware", f"{type(content).__name__} must be a name or an object")
    names = [item.name for item in fields(Hardware)]
    for name in content:
        if name not in names:
            raise BadPlan(f"hardware.{name}", f"is no field; the fields are {', '.join(names)}")
    try:
        return Hardware(**content)
    except TypeError as error:
        raise BadPlan("hardware", str(error).partition("__init__() ")[2]) from error


def hardware_to(hardware: Hardware) -> dict[str, Any]:
    """The object that `hardware_from` reads."""
    return asdict(hardware)
