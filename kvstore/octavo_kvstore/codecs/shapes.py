"""ShapeTable: what each layout fingerprint means to a codec, as workers have told it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from octavo_kvstore.codecs.shape import PayloadShape

MAX_LAYOUTS = 256


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker said about its layout."""

    shape: PayloadShape
    exact: bool
    """Its blocks must come back bit by bit (`engine.deterministic`)."""


class ShapeTable:
    """Layout fingerprint -> shape. Thread-safe. A layout that is not known is kept as it is, never coded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[bytes, Told] = {}

    def tell(self, layout: bytes, shape: PayloadShape, *, exact: bool) -> None:
        """Learns a layout; once exact it stays so. The oldest is forgotten beyond MAX_LAYOUTS."""
        known = self._told.get(layout)
        if known is not None and known.shape == shape and known.exact >= exact:
            return
        with self._lock:
            while known is None and len(self._told) >= MAX_LAYOUTS:
                self._told.pop(next(iter(self._told)))
            self._told[layout] = Told(shape, exact or (known is not None and known.exact))

    def get(self, layout: bytes) -> Told | None:
        """What is known of a layout."""
        return self._told.get(layout)
