"""Codecs: what comes back is what went in, bit by bit or as closely as the form promises; damage is an error, never bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_kvstore.codecs.forms import BY_NAME, EXACT, FORMS, FP8, INT8, LADDERS, RAW, ZSTD6, ZSTD8, Form, ladder
from octavo_kvstore.codecs.samples import sample_payload
from octavo_kvstore.codecs.shape import PayloadShape, unpack_shape
from octavo_kvstore.codecs.shapes import MAX_LAYOUTS, ShapeTable
from octavo_kvstore.codecs.values import float32_to_bfloat16, float32_to_fp8, fp8_values, from_float32, to_float32

SHAPE = PayloadShape(4, 2, 3, 16, 64, "bfloat16")
LOSSY = [form for form in FORMS.values() if form.lossy]


def worst_error(form: Form, payload: bytes, shape: PayloadShape) -> float:
    """Largest error as a share of the largest value of the same layer, half and head."""
    coded = form.encode(payload, shape)
    assert coded is not None
    before, after = to_float32(payload, shape), to_float32(form.decode(coded, shape), shape)
    scale = np.abs(before).max(axis=(3, 4), keepdims=True)
    return float((np.abs(after - before) / np.maximum(scale, 1e-30)).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("form", LOSSY, ids=lambda form: form.name)
def test_a_lossy_form_is_as_close_as_its_step(form: Form, dtype: str) -> None:
    shape = PayloadShape(4, 2, 3, 16, 64, dtype)
    payload = sample_payload(shape)
    step = {"int8": 1 / 127, "fp8": 1 / 8, "zstd8": 1 / 127, "zstd7": 1 / 63, "zstd6": 1 / 31}[form.name]
    assert worst_error(form, payload, shape) <= 0.52 * step + 0.004  # half a step, and the element type's own rounding


def test_sizes_are_what_the_forms_promise() -> None:
    payload = sample_payload(SHAPE)
    sizes = {form.name: len(form.encode(payload, SHAPE) or b"") for form in FORMS.values()}
    assert sizes["raw"] == SHAPE.payload_bytes
    channels = 4 * 2 * 3 * 64
    assert sizes["int8"] == sizes["fp8"] == channels * (16 + 2)
    assert sizes["zstd6"] < sizes["zstd7"] < sizes["zstd8"] < sizes["int8"] < sizes["zstd-exact"] < sizes["raw"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8", "fp8"])
@given(seed=st.integers(0, 2**32), tokens=st.sampled_from([1, 8, 16, 32]))
@settings(max_examples=10, deadline=None)
def test_the_exact_form_gives_every_bit_back(dtype: str, seed: int, tokens: int) -> None:
    shape = PayloadShape(2, 1, 1, tokens, 24, dtype)
    payload = np.random.default_rng(seed).bytes(shape.payload_bytes)  # NaN and infinity among them
    assert EXACT.decode(EXACT.encode(payload, shape) or b"", shape) == payload


@pytest.mark.parametrize("form", LOSSY, ids=lambda form: form.name)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_payload_with_a_value_that_is_not_finite_is_not_coded(form: Form, bad: float) -> None:
    values = to_float32(sample_payload(SHAPE), SHAPE)
    values[1, 0, 2, 5, 7] = bad
    assert (
        form.encode(
            from_float32(values.copy(), PayloadShape(*SHAPE.dims, "float32")), PayloadShape(*SHAPE.dims, "float32")
        )
        is None
    )


@pytest.mark.parametrize("form", LOSSY, ids=lambda form: form.name)
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 3e37])
def test_zeros_and_extreme_scales(form: Form, scale: float) -> None:
    shape = PayloadShape(2, 2, 1, 8, 16, "float32")
    values = np.random.default_rng(0).standard_normal(shape.dims).clip(-3, 3).astype(np.float32) * np.float32(scale)
    payload = from_float32(values.copy(), shape)
    after = to_float32(form.decode(form.encode(payload, shape) or b"", shape), shape)
    assert np.isfinite(after).all()
    assert np.abs(after - values).max() <= max(0.1 * np.abs(values).max(), 1e-29)


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form is not RAW], ids=lambda form: form.name)
def test_damaged_bytes_are_an_error_or_a_payload_of_the_right_length(form: Form) -> None:
    coded = form.encode(sample_payload(SHAPE), SHAPE) or b""
    for wrong in (b"", coded[:10], coded[:-1], coded + b"x", coded[: len(coded) // 2]):
        try:
            assert len(form.decode(wrong, SHAPE)) == SHAPE.payload_bytes
        except ValueError as error:
            assert str(error).startswith("coded: ")
    with pytest.raises(ValueError, match="coded: "):
        form.decode(coded[:10], SHAPE)


def test_a_frame_that_claims_gigabytes_is_refused_before_it_is_unpacked() -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 2**20))
    with pytest.raises(ValueError, match="another number of bytes"):
        EXACT.decode(bomb, SHAPE)


def test_fp8_is_e4m3() -> None:
    """Against the definition: every byte's value encodes to that byte, and ties go to even."""
    values = fp8_values()
    assert values[0x7E] == 448 and values[0x38] == 1.0 and values[0x01] == np.float32(2.0**-9)
    finite = [code for code in range(256) if code & 0x7F != 0x7F and code != 0x80]
    assert float32_to_fp8(values[finite]).tolist() == finite
    middles = np.array([1.0625, 1.1875, 448.0, 17.0], np.float32)
    assert fp8_values()[float32_to_fp8(middles)].tolist() == [1.0, 1.25, 448.0, 16.0]


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.3], np.float32)
    assert float32_to_bfloat16(values.copy()).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020, 0x4053]


def test_what_each_setting_may_use() -> None:
    assert ladder("none", SHAPE, exact=False) == ()
    assert ladder("zstd", None, exact=False) == (), "a layout nobody has explained is left as it is"
    assert ladder("int8", SHAPE, exact=False) == (INT8, EXACT)
    assert ladder("fp8", SHAPE, exact=False)[0] is FP8
    assert ladder("zstd", SHAPE, exact=False)[0] is ZSTD8 and ZSTD6 in ladder("zstd", SHAPE, exact=False)
    for codec in LADDERS:
        assert not any(form.lossy for form in ladder(codec, SHAPE, exact=True))
        quantized = PayloadShape(*SHAPE.dims, "int8")
        assert not any(form.lossy for form in ladder(codec, quantized, exact=False)), "never quantized twice"
    assert len(BY_NAME) == len(FORMS)


@pytest.mark.parametrize(
    ("field", "value"), [("layers", 0), ("width", 70_000), ("tokens", -1), ("dtype", "float64"), ("heads", 0)]
)
def test_a_shape_that_cannot_be_names_its_field(field: str, value: object) -> None:
    fields = {"layers": 1, "halves": 2, "heads": 1, "tokens": 16, "width": 64, "dtype": "bfloat16", field: value}
    with pytest.raises(ValueError, match=f"shape.{field}"):
        PayloadShape(**fields)  # type: ignore[arg-type]


def test_a_shape_survives_packing() -> None:
    for dtype in ("bfloat16", "float16", "float32", "int8", "fp8"):
        shape = PayloadShape(30, 2, 3, 16, 64, dtype)
        assert unpack_shape(shape.pack()) == shape
    assert PayloadShape(30, 2, 3, 16, 64, "bfloat16").payload_bytes == 368_640
    assert PayloadShape(30, 2, 3, 16, 64, "int8").payload_bytes == 30 * 2 * 3 * 16 * (64 + 4)
    for bad in (b"", bytes(12), SHAPE.pack()[:-2] + b"\xff\x00"):
        with pytest.raises(ValueError, match="shape"):
            unpack_shape(bad)


def test_the_table_of_layouts_is_bounded_and_exact_stays_exact() -> None:
    table = ShapeTable()
    table.tell(b"a", SHAPE, exact=True)
    table.tell(b"a", SHAPE, exact=False)
    told = table.get(b"a")
    assert told is not None and told.exact
    for number in range(MAX_LAYOUTS + 5):
        table.tell(number.to_bytes(32, "little"), SHAPE, exact=False)
    assert table.get(b"a") is None and table.get(b"unknown") is None
    assert table.get((MAX_LAYOUTS + 4).to_bytes(32, "little")) is not None
