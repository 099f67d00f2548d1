"""Which form a transfer takes: the one whose encode + transfer + decode is shortest, as measured on this machine.

Raw wins unless a form is predicted to be clearly faster, so a codec on a fast link costs a probe now and then and
nothing else. Whoever moves payloads tells the speed of its link at each choice: the level follows the link.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from octavo_kvstore.codecs.forms import FORMS, RAW, Form, ladder
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.values import to_float32

GAIN = 0.9
"""A form must take less than this share of raw's time: the prediction is not that exact, and a lossy block is worth less."""
PROBE_EVERY = 512
"""Choices between two measurements of the forms that are not in use."""
_EMA = 0.2


@dataclass(frozen=True, slots=True)
class FormCost:
    """Running means of one form, per raw byte."""

    ratio: float
    """Coded bytes per raw byte."""
    encode_s: float
    decode_s: float
    error: float = 0.0
    """Of what comes back: root of the mean square, as a share of that of the values."""


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """Sums since start. What was saved is the transfer time that the bytes left out would have taken."""

    blocks: int = 0
    """Blocks written in another form than raw."""
    raw_bytes: int = 0
    coded_bytes: int = 0
    encode_s: float = 0.0
    """Probes included."""
    decode_s: float = 0.0
    saved_s: float = 0.0

    @property
    def net_s(self) -> float:
        """What compression was worth so far."""
        return self.saved_s - self.encode_s - self.decode_s


def predicted_s(cost: FormCost, raw_bytes: int, link_bytes_per_s: float) -> float:
    """Encode + transfer + decode of a payload of `raw_bytes`."""
    return raw_bytes * (cost.encode_s + cost.decode_s + cost.ratio / link_bytes_per_s)


class Chooser:
    """Measures forms and chooses among those of one `cache.codec`. Thread-safe."""

    def __init__(
        self, codec: str, clock_s: Callable[[], float] = time.perf_counter, max_error: float = float("inf")
    ) -> None:
        """`max_error`: a form that is measured to lose more of this deployment's blocks is not used."""
        self.codec = codec
        self.max_error = max_error
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._costs: dict[int, FormCost] = {}
        self._figures = CodecFigures()
        self._choices = 0
        self._probes = 0
        self._refused: dict[str, bool] = {}

    def figures(self) -> CodecFigures:
        """A snapshot."""
        return self._figures

    def refused(self) -> list[str]:
        """Forms of this codec that lose more than `max_error`."""
        return sorted(name for name, refused in self._refused.items() if refused)

    def costs(self) -> dict[str, FormCost]:
        """A snapshot: name of the form -> what was measured of it."""
        return {FORMS[number].name: cost for number, cost in sorted(self._costs.items())}

    def encode(
        self, payload: bytes, shape: PayloadShape | None, *, exact: bool, link_bytes_per_s: float
    ) -> tuple[Form, bytes]:
        """(form, coded bytes) for one payload; raw when nothing is predicted to be faster, or its length is not the shape's.

        `link_bytes_per_s` 0: not measured yet, which is raw too.
        """
        forms = ladder(self.codec, shape, exact=exact)
        if not forms or shape is None or len(payload) != shape.payload_bytes or link_bytes_per_s <= 0:
            return RAW, payload
        for form in self._due(forms):
            self._probe(form, payload, shape)
        form = self._best(forms, len(payload), link_bytes_per_s)
        if form is RAW:
            return RAW, payload
        coded = self._timed_encode(form, payload, shape)
        if coded is None or len(coded) >= len(payload):
            return RAW, payload
        with self._lock:
            self._add(
                blocks=1,
                raw_bytes=len(payload),
                coded_bytes=len(coded),
                saved_s=(len(payload) - len(coded)) / link_bytes_per_s,
            )
        return form, coded

    def decode(self, form: Form, coded: bytes, shape: PayloadShape) -> bytes:
        """The payload. Raises ValueError when the bytes are none of this form and shape."""
        if form is RAW:
            return coded
        began_s = self._clock_s()
        payload = form.decode(coded, shape)
        spent_s = self._clock_s() - began_s
        with self._lock:
            self._add(decode_s=spent_s)
            self._learn(form, len(payload), decode_s=spent_s / len(payload))
        return payload

    def _best(self, forms: tuple[Form, ...], raw_bytes: int, link_bytes_per_s: float) -> Form:
        best, best_s = RAW, GAIN * raw_bytes / link_bytes_per_s
        for form in forms:
            cost = self._costs.get(form.number)
            if cost is not None and cost.error > self.max_error:
                continue
            if cost is not None and (form_s := predicted_s(cost, raw_bytes, link_bytes_per_s)) < best_s:
                best, best_s = form, form_s
        return best

    def _due(self, forms: tuple[Form, ...]) -> list[Form]:
        """Forms to measure now: all at first, later one at a time."""
        with self._lock:
            unknown = [form for form in forms if form.number not in self._costs]
            self._choices += 1
            if unknown or self._choices % PROBE_EVERY:
                return unknown
            self._probes += 1
            return [forms[self._probes % len(forms)]]

    def _probe(self, form: Form, payload: bytes, shape: PayloadShape) -> None:
        for warm in (False, True):  # the first run pays for tables and fresh memory
            coded = self._timed_encode(form, payload, shape, learn=warm)
            if coded is None:
                return
            began_s = self._clock_s()
            decoded = form.decode(coded, shape)
            spent_s = self._clock_s() - began_s
            error = relative_error(payload, decoded, shape) if warm and form.lossy else 0.0
            with self._lock:
                self._add(decode_s=spent_s)
                if warm:
                    self._learn(form, len(payload), decode_s=spent_s / len(payload), error=error)
                    self._refused[form.name] = self._costs[form.number].error > self.max_error

    def _timed_encode(self, form: Form, payload: bytes, shape: PayloadShape, *, learn: bool = True) -> bytes | None:
        began_s = self._clock_s()
        coded = form.encode(payload, shape)
        spent_s = self._clock_s() - began_s
        with self._lock:
            self._add(encode_s=spent_s)
            if coded is not None and learn:
                size = len(payload)
                self._learn(form, size, ratio=len(coded) / size, encode_s=spent_s / size)
        return coded

    # under _lock

    def _add(self, **more: float) -> None:
        figures = self._figures
        self._figures = replace(figures, **{name: getattr(figures, name) + value for name, value in more.items()})

    def _learn(self, form: Form, raw_bytes: int, **seen: float) -> None:
        cost = self._costs.get(form.number)
        if cost is None:
            self._costs[form.number] = replace(FormCost(1.0, 0.0, 0.0), **seen)
            return
        # a mean that is still 0 has not been measured
        fresh = {
            name: value if not (held := getattr(cost, name)) else held + _EMA * (value - held)
            for name, value in seen.items()
        }
        self._costs[form.number] = replace(cost, **fresh)


def relative_error(payload: bytes, decoded: bytes, shape: PayloadShape) -> float:
    """Root mean square of the difference over that of the values; 0 for a payload of zeros that came back so."""
    values = to_float32(payload, shape)
    lost = float(np.square(values - to_float32(decoded, shape)).mean())
    return math.sqrt(lost / float(np.square(values).mean())) if lost else 0.0


class LinkSpeed:
    """Running mean of a link's bytes per second; 0 until something was moved. Thread-safe enough: one float."""

    def __init__(self) -> None:
        self.bytes_per_s = 0.0

    def observe(self, size_bytes: int, seconds: float) -> None:
        """Learns from one transfer; an empty or timeless one says nothing."""
        if size_bytes > 0 and seconds > 0:
            seen = size_bytes / seconds
            self.bytes_per_s = seen if not self.bytes_per_s else self.bytes_per_s + _EMA * (seen - self.bytes_per_s)
