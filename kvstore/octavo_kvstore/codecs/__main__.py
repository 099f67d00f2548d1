"""python -m octavo_kvstore.codecs FORM LAYERS HALVES HEADS TOKENS WIDTH DTYPE: sends payloads through a form, for benchmarks.

Each payload of that shape on standard input comes back on standard output as the form gives it back; at the end one
JSON object on standard error: {"ratio", "encode_bytes_per_s", "decode_bytes_per_s", "payloads"}.
"""

from __future__ import annotations

import json
import sys
import time

from octavo_kvstore.codecs.forms import BY_NAME, RAW, Form
from octavo_kvstore.codecs.shape import PayloadShape


class Passage:
    """Payloads through one form, with the time and the bytes that it took."""

    def __init__(self, form: Form, shape: PayloadShape) -> None:
        self._form = form
        self._shape = shape
        self._payloads = self._coded_bytes = 0
        self._encode_s = self._decode_s = 0.0

    def through(self, payload: bytes) -> bytes:
        """What comes out of the decoder; the payload itself where the form does not take it."""
        began_s = time.perf_counter()
        coded = self._form.encode(payload, self._shape)
        encoded_s = time.perf_counter()
        self._encode_s += encoded_s - began_s
        self._payloads += 1
        if coded is None:
            self._coded_bytes += len(payload)
            return payload
        self._coded_bytes += len(coded)
        decoded = self._form.decode(coded, self._shape)
        self._decode_s += time.perf_counter() - encoded_s
        return decoded

    def figures(self) -> dict[str, float]:
        """Ratio and speeds, in raw bytes per second."""
        size = self._payloads * self._shape.payload_bytes
        return {
            "payloads": self._payloads,
            "ratio": size / self._coded_bytes if self._coded_bytes else 0.0,
            "encode_bytes_per_s": size / self._encode_s if self._encode_s else 0.0,
            "decode_bytes_per_s": size / self._decode_s if self._decode_s else 0.0,
        }


def main(arguments: list[str]) -> int:
    """Exit code 2 with one line for arguments that cannot be used."""
    try:
        name, *dims, dtype = arguments
        layers, halves, heads, tokens, width = map(int, dims)
        passage = Passage(BY_NAME[name], shape := PayloadShape(layers, halves, heads, tokens, width, dtype))
    except (ValueError, KeyError) as error:
        print(f"octavo codecs: {error}; give FORM LAYERS HALVES HEADS TOKENS WIDTH DTYPE", file=sys.stderr)
        print(f"forms: {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    if shape.is_quantized and BY_NAME[name].lossy and BY_NAME[name] is not RAW:
        print(f"octavo codecs: {dtype} payloads are not quantized a second time", file=sys.stderr)
        return 2
    while payload := sys.stdin.buffer.read(shape.payload_bytes):
        sys.stdout.buffer.write(passage.through(payload))
        sys.stdout.buffer.flush()
    print(json.dumps(passage.figures()), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
