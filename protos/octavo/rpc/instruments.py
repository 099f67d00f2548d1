"""Prometheus instruments from one table per service: names, help and labels stand there once, and the docs are made of it.

A service's `instruments.py` holds its TABLE and imports nothing else of the service, so that scripts/docs can read it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Kind = Literal["counter", "gauge", "histogram"]

TTFT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
TOKEN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
DURATION_BUCKETS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Seconds. The lists of the GenAI server metrics (OpenTelemetry semantic conventions), with buckets below 10 ms added."""
SHORT_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LENGTH_BUCKETS: Final = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Tokens."""
RATIO_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)

LENGTH_CLASSES: Final = ((128, "128"), (1024, "1k"), (8192, "8k"))
"""(tokens at most, name): the classes of prompts and outputs by length; what is longer is `long`."""


def length_class(tokens: int) -> str:
    """The class of a length in tokens: 128, 1k, 8k, or long."""
    return next((name for most, name in LENGTH_CLASSES if tokens <= most), "long")


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. `name` is without the `_total` that Prometheus adds to counters."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """The name as a query writes it; a histogram has `_bucket`, `_sum` and `_count` behind it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


class Instruments:
    """The instruments of one table on one registry. Names that the table lacks raise KeyError: there is no second list."""

    def __init__(
        self, registry: CollectorRegistry, table: Iterable[Instrument], *, leave_out: Iterable[str] = ()
    ) -> None:
        """`leave_out`: names that a collector yields at scrape time instead (see `family`)."""
        skipped = frozenset(leave_out)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for item in table:
            if item.name in skipped:
                continue
            if item.kind == "counter":
                self._counters[item.name] = Counter(item.name, item.help, item.labels, registry=registry)
            elif item.kind == "gauge":
                self._gauges[item.name] = Gauge(item.name, item.help, item.labels, registry=registry)
            else:
                self._histograms[item.name] = Histogram(
                    item.name, item.help, item.labels, registry=registry, buckets=item.buckets or DURATION_BUCKETS
                )

    def counter(self, name: str) -> Counter:
        return self._counters[name]

    def gauge(self, name: str) -> Gauge:
        return self._gauges[name]

    def histogram(self, name: str) -> Histogram:
        return self._histograms[name]


def family(item: Instrument) -> GaugeMetricFamily | CounterMetricFamily:
    """An empty metric family of a scrape-time collector; fill it with `add_metric(label values, value)`."""
    kind = CounterMetricFamily if item.kind == "counter" else GaugeMetricFamily
    return kind(item.name, item.help, labels=item.labels)


class Booking(Collector):
    """Yields nothing: registered before the instruments, it is asked first at a scrape, and has them brought up to date."""

    def __init__(self, book: Callable[[], object]) -> None:
        self._book = book

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        self._book()
        return ()


class QuickHistogram(Collector):
    """A histogram without labels for what is observed with every token: an observation is two additions, and a scrape does the rest.

    One thread observes; a scrape from another one may miss the observation under way.
    """

    def __init__(self, item: Instrument) -> None:
        self._item = item
        self._bounds = item.buckets or DURATION_BUCKETS
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`value`, so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def describe(self) -> Iterable[Metric]:
        yield HistogramMetricFamily(self._item.name, self._item.help)

    def collect(self) -> Iterable[Metric]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        rows = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._item.name, self._item.help, buckets=rows, sum_value=self._sum)
