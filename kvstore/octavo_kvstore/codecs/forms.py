"""The table of forms in which a payload may travel or lie, and which of them each `cache.codec` may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from octavo_kvstore.codecs.channels import decode_fp8, decode_int8, encode_fp8, encode_int8
from octavo_kvstore.codecs.entropy import decode_delta, decode_exact, encode_delta, encode_exact
from octavo_kvstore.codecs.shape import PayloadShape


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a payload. `number` is what lies on disk: never reused."""

    number: int
    name: str
    lossy: bool
    encode: Callable[[bytes, PayloadShape], bytes | None]
    """None: this payload cannot be written so (a value that is not finite)."""
    decode: Callable[[bytes, PayloadShape], bytes]
    """Raises ValueError on bytes that are not a coded payload of the shape."""


RAW = Form(0, "raw", False, lambda payload, shape: payload, lambda coded, shape: coded)
INT8 = Form(1, "int8", True, encode_int8, decode_int8)
FP8 = Form(2, "fp8", True, encode_fp8, decode_fp8)
EXACT = Form(3, "zstd-exact", False, partial(encode_exact, zstd_level=1), decode_exact)
ZSTD8 = Form(8, "zstd8", True, partial(encode_delta, bits=8, zstd_level=1), decode_delta)
ZSTD7 = Form(9, "zstd7", True, partial(encode_delta, bits=7, zstd_level=1), decode_delta)
ZSTD6 = Form(10, "zstd6", True, partial(encode_delta, bits=6, zstd_level=1), decode_delta)

FORMS = {form.number: form for form in (RAW, INT8, FP8, EXACT, ZSTD8, ZSTD7, ZSTD6)}
BY_NAME = {form.name: form for form in FORMS.values()}
LADDERS: dict[str, tuple[Form, ...]] = {
    "none": (),
    "int8": (INT8, EXACT),
    "fp8": (FP8, EXACT),
    "zstd": (ZSTD8, ZSTD7, ZSTD6, EXACT),
}
"""`cache.codec` -> the forms to choose from beside raw; those of zstd are its levels, finest first."""


def ladder(codec: str, shape: PayloadShape | None, *, exact: bool) -> tuple[Form, ...]:
    """What may be used for payloads of `shape`: nothing without a shape, nothing lossy where exactness is asked for.

    A pool that holds one byte per value is not quantized a second time.
    """
    if shape is None:
        return ()
    plain = exact or shape.is_quantized
    return tuple(form for form in LADDERS[codec] if not (plain and form.lossy))
