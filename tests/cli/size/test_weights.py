"""Weights by format against worked numbers, and against what the loader and the packer really make."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from octavo_cli.size.report import both
from octavo_cli.size.shape import BadSize, ModelShape, shape_from
from octavo_cli.size.weights import plain_bytes, step_buffers, weight_size

Make = Callable[..., ModelShape]


@pytest.mark.parametrize(("bits", "gb"), [(32, 28.0), (16, 14.0), (8, 7.0), (4, 3.5)])
def test_seven_billion_parameters(bits: int, gb: float) -> None:
    assert plain_bytes(7_000_000_000, bits) == gb * 1e9


def test_fourteen_gb_are_13_04_gib() -> None:
    assert both(14_000_000_000) == "14.00 GB = 13.04 GiB"
    assert both(131_072) == "0.12 MiB"
    assert both(120) == "120 B"


def test_scales_come_on_top_of_the_codes(make_shape: Make) -> None:
    shape = make_shape()
    matrices = sum(item.elements for item in shape.matrices if item.kind in ("matrix", "head"))
    rest = shape.parameters - matrices
    int8, int4, fp8 = (weight_size(shape, form) for form in ("int8", "int4", "fp8"))
    assert int8.codes == matrices + 2 * rest and fp8.codes == int8.codes
    assert int4.codes == matrices // 2 + 2 * rest and int4.scales == matrices // 128 * 2
    rows = sum(item.rows * item.count for item in shape.matrices if item.kind in ("matrix", "head"))
    assert (int8.scales, fp8.scales) == (2 * rows, 4 * rows)
    assert weight_size(shape, "bf16").total == 2 * shape.parameters
    assert weight_size(shape, "f32").total == 4 * shape.parameters


def test_a_tied_head_is_the_embedding_until_it_is_quantized(make_shape: Make) -> None:
    shape = make_shape()
    tied = ModelShape(
        **{name: getattr(shape, name) for name in shape.__slots__ if name != "matrices"},
        matrices=tuple(
            item if item.kind != "head" else type(item)(item.name, item.rows, item.depth, 1, "tied_head")
            for item in shape.matrices
        ),
    )
    head = shape.matrices[-1].elements
    assert weight_size(tied, "bf16").total == weight_size(shape, "bf16").total - 2 * head
    assert weight_size(tied, "int8").total == weight_size(shape, "int8").total


def test_int4_on_a_width_without_whole_groups_is_refused(make_shape: Make) -> None:
    shape = make_shape(q_heads=3, kv_heads=1, head_dim=50)
    with pytest.raises(BadSize, match=r"multiples of 32; qkv has 150"):
        weight_size(shape, "int4")
    with pytest.raises(BadSize, match=r"int3.*bf16"):
        weight_size(shape, "int3")


@pytest.mark.parametrize("form", ["int8", "int4", "w8a8", "fp8"])
def test_it_is_what_quantizing_makes(make_shape: Make, form: str) -> None:
    torch = pytest.importorskip("torch")
    from octavo_gpuworker.model.weight_format import quantized

    size = weight_size(
        make_shape(matrices=[{"name": "o", "rows": 96, "depth": 160, "count": 2, "kind": "matrix"}], vectors=0), form
    )
    made = quantized(torch.randn(96, 160), form)  # type: ignore[arg-type]
    assert size.codes == 2 * made.data.numel() * made.data.element_size()
    assert size.scales == 2 * made.scales.numel() * made.scales.element_size()
    assert made.offsets is None and size.zeros == 0


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_it_is_what_the_native_kernels_pack(form: str, tied: bool) -> None:
    pytest.importorskip("torch")
    from octavo_gpuworker.model.config import ModelConfig
    from octavo_gpuworker.native.library import NativeUnavailable, load_library
    from octavo_gpuworker.native.packer import entries_of
    from octavo_gpuworker.shape import shape_of

    try:
        library = load_library()
    except NativeUnavailable as error:
        pytest.skip(str(error))
    config = ModelConfig("qwen3", 3, 96, 6, 2, 48, 160, 211, 512, 1e-5, 1e4, tied_embeddings=tied, qk_norm=True)
    entries = entries_of(config, form, library)
    assert weight_size(shape_from(shape_of(config, "x", 0)), f"native-{form}").total == sum(entries.values())


def test_buffers_grow_with_the_step_and_shrink_with_ranks(make_shape: Make) -> None:
    shape = make_shape()
    one, two = (step_buffers(shape, 512, 8, 8192, 16, tp=tp) for tp in (1, 2))
    assert one.logits == 8 * shape.vocab * 4
    assert one.activations == 512 * (2 * 4096 + 2 * 14336 + 4096) * 2 > two.activations
    assert one.inputs == 8 * 512 * 4 + 3 * 512 * 4
