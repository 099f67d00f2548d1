"""Bytes of the weights by format: codes, scales, zero points, and what packing adds; activations and buffers of a step."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_cli.size.shape import BadSize, Matrix, ModelShape

FORMATS = ("f32", "bf16", "int8", "int4", "w8a8", "fp8", "native-bf16", "native-int8", "native-int4")
"""As `engine.weights` names them (f32: `engine.dtype float32`); native-: as the native kernels pack them."""
CODE_BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4, "w8a8": 8, "fp8": 8}
GROUPS = (128, 64, 32)
"""Group sizes of int4, the widest that divides the inner axis is taken."""
PANEL = 32
"""Columns and depth that the native layout rounds up to."""


@dataclass(frozen=True, slots=True)
class WeightSize:
    """Bytes of all weights in one format."""

    format: str
    codes: int
    """The elements themselves, and whatever stays floating."""
    scales: int
    zeros: int
    """Zero points (offsets)."""
    packing: int
    """Rounding up to whole panels."""

    @property
    def total(self) -> int:
        """What lies in memory."""
        return self.codes + self.scales + self.zeros + self.packing


def plain_bytes(parameters: int, bits: int) -> int:
    """Bytes of bare parameters: 7e9 take 28.0, 14.0, 7.0 and 3.5 GB at 32, 16, 8 and 4 bits."""
    return -(-parameters * bits // 8)


def weight_size(shape: ModelShape, form: str) -> WeightSize:
    """All weights in `form`. Raises BadSize for a form that the model cannot have."""
    if form not in FORMATS:
        raise BadSize(f"--weights: {form!r} is unknown; use {', '.join(FORMATS)}", field="weights")
    if form.startswith("native-"):
        return _native(shape, form)
    floating = 4 if form == "f32" else 2
    codes, scales, zeros = shape.vectors * floating, 0, 0
    for item in shape.matrices:
        quantized = item.kind in ("matrix", "head", "tied_head") and CODE_BITS[form] < 16
        if item.kind == "tied_head" and not quantized:
            continue  # it is the embedding
        if not quantized:
            codes += item.elements * floating
            continue
        codes += item.elements * CODE_BITS[form] // 8
        scales += _scales(item, form)
    return WeightSize(form, codes, scales, zeros, 0)


def _scales(item: Matrix, form: str) -> int:
    if form == "int8":
        return item.rows * item.count * 2  # float16 per row
    if form == "int4":
        group = next((size for size in GROUPS if item.depth % size == 0), 0)
        if not group:
            raise BadSize(f"--weights: int4 wants inner sizes that are multiples of 32; {item.name} has {item.depth}")
        return item.elements // group * 2  # float16 per group, symmetric: no zero point
    return item.rows * item.count * 4  # float32 per row beside quantized activations


def _native(shape: ModelShape, form: str) -> WeightSize:
    """Panels of 32 columns; int8 has a float16 scale per 32 elements, int4 an offset too, and it keeps the head in int8."""
    if shape.latent or any(item.name == "router" for item in shape.matrices):
        raise BadSize(f"--weights: the native kernels take no {shape.architecture}; use bf16", field="weights")
    kind = form.removeprefix("native-")
    codes = scales = zeros = packing = 0
    codes += shape.vectors * 4
    for item in shape.matrices:
        if item.kind == "embedding":
            codes += 0 if _tied(shape) else item.elements * 2
            continue
        own = "int8" if kind == "int4" and item.kind in ("head", "tied_head") else kind
        rows, depth = _native_rows(shape, item), _up(item.depth)
        bits = {"bf16": 16, "int8": 8, "int4": 4}[own]
        bare = item.elements * bits // 8
        codes += bare
        packing += rows * depth * item.count * bits // 8 - bare
        if own == "int8":
            scales += rows * depth * item.count // 32 * 2
        elif own == "int4":
            scales += rows * depth * item.count // 32 * 2
            zeros += rows * depth * item.count // 32 * 2
    return WeightSize(form, codes, scales, zeros, packing)


def _native_rows(shape: ModelShape, item: Matrix) -> int:
    if item.name == "qkv":  # every head begins on a panel of its own
        return (shape.q_heads + 2 * shape.kv_heads) * _up(shape.head_dim)
    if item.name == "gate_up":
        return 2 * _up(item.rows // 2)
    return _up(item.rows)


def _tied(shape: ModelShape) -> bool:
    return any(item.kind == "tied_head" for item in shape.matrices)


def _up(size: int) -> int:
    return -(-size // PANEL) * PANEL


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Bytes of one step's activations, at their largest, and of what it reads and writes beside them."""

    activations: int
    logits: int
    inputs: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.activations + self.logits + self.inputs


def step_buffers(
    shape: ModelShape, tokens: int, sequences: int, context: int, block_tokens: int, dtype_bytes: int = 2, tp: int = 1
) -> StepBuffers:
    """A step of `tokens` tokens over `sequences` sequences: residual, normed input, the widest product in and out, logits."""
    widest = max(
        (item.rows + item.depth for item in shape.matrices if item.kind in ("matrix", "plain")), default=shape.d_model
    )
    activations = tokens * (2 * shape.d_model + -(-widest // tp)) * dtype_bytes
    logits = sequences * shape.vocab * 4
    table = sequences * -(-context // block_tokens) * 4
    return StepBuffers(activations, logits, table + 3 * tokens * 4)
