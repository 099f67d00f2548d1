"""The head of a coded payload, 48 bytes, then its body.

offset  bytes  field
     0      4  magic "OCTC"
     4      1  version
     5      1  number of the form
     6      1  flags: 1 encrypted, 2 lossy before it was coded
     7      1  zero
     8      8  length of the payload when decoded, u64 little-endian
    16      8  xxh3-64 of the payload that was coded; it is checked again unless the form is lossy
    24     12  shape (codecs/shape.py); zeros: not known, the form is raw
    36     12  nonce of AES-GCM; zeros: not encrypted
    48         body; encrypted: ciphertext and 16 bytes of tag, authenticated together with the key and this head
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from octavo_kvstore.codecs.forms import FORMS, Form
from octavo_kvstore.codecs.shape import PACKED_BYTES, PayloadShape, unpack_shape

HEAD_BYTES = 48
NONCE_BYTES = 12
_MAGIC, _VERSION = b"OCTC", 1
_ENCRYPTED, _LOSSY = 1, 2
_FIELDS = struct.Struct("<4sBBBxQQ12s12s")
_NO_SHAPE, _NO_NONCE = bytes(PACKED_BYTES), bytes(NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a coded payload."""

    form: Form
    length: int
    checksum: int
    shape: PayloadShape | None
    was_lossy: bool
    """The payload had already gone through a lossy form."""
    nonce: bytes = b""
    """12 bytes; empty: not encrypted."""

    @property
    def lossy(self) -> bool:
        """Whether what is decoded is only close to what a worker computed."""
        return self.form.lossy or self.was_lossy

    def pack(self) -> bytes:
        """HEAD_BYTES bytes."""
        flags = (_ENCRYPTED if self.nonce else 0) | (_LOSSY if self.was_lossy else 0)
        return _FIELDS.pack(
            _MAGIC,
            _VERSION,
            self.form.number,
            flags,
            self.length,
            self.checksum,
            self.shape.pack() if self.shape else _NO_SHAPE,
            self.nonce or _NO_NONCE,
        )


def unpack_head(record: bytes) -> Head:
    """The head of a record. Raises ValueError when it is short, foreign, or of a form or version that is not known."""
    if len(record) < HEAD_BYTES:
        raise ValueError(f"envelope: {len(record)} bytes, its head alone has {HEAD_BYTES}")
    magic, version, number, flags, length, checksum, shape, nonce = _FIELDS.unpack_from(record)
    form = FORMS.get(number)
    if magic != _MAGIC or version != _VERSION or form is None or flags & ~(_ENCRYPTED | _LOSSY):
        raise ValueError("envelope: it is not one of this version")
    known = None if shape == _NO_SHAPE else unpack_shape(shape)
    return Head(form, length, checksum, known, bool(flags & _LOSSY), nonce if flags & _ENCRYPTED else b"")
