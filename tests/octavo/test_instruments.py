"""One table per service: names are those of the table, kinds and labels are built from it."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.rpc.instruments import Instrument, Instruments, QuickHistogram, family, length_class

TABLE = (
    Instrument("x_requests", "counter", "Requests.", ("outcome",)),
    Instrument("x_live", "gauge", "Live."),
    Instrument("x_seconds", "histogram", "Time.", (), (0.1, 1)),
)


def test_instruments_are_those_of_the_table() -> None:
    registry = prometheus_client.CollectorRegistry()
    made = Instruments(registry, TABLE)
    made.counter("x_requests").labels("ok").inc()
    made.gauge("x_live").set(3)
    made.histogram("x_seconds").observe(0.5)
    assert registry.get_sample_value("x_requests_total", {"outcome": "ok"}) == 1
    assert registry.get_sample_value("x_seconds_bucket", {"le": "1.0"}) == 1
    assert [item.shown for item in TABLE] == ["x_requests_total", "x_live", "x_seconds"]
    with pytest.raises(KeyError):
        made.counter("x_unknown")


def test_a_family_has_the_tables_name_and_labels() -> None:
    shown = family(TABLE[0])
    shown.add_metric(["ok"], 2)
    assert [(sample.name, sample.labels, sample.value) for sample in shown.samples] == [
        ("x_requests_total", {"outcome": "ok"}, 2)
    ]


@pytest.mark.parametrize(("tokens", "name"), [(0, "128"), (128, "128"), (129, "1k"), (8192, "8k"), (8193, "long")])
def test_length_classes(tokens: int, name: str) -> None:
    assert length_class(tokens) == name


@settings(deadline=None, max_examples=100)
@given(values=st.lists(st.tuples(st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0, 1.5]), st.integers(1, 4)), max_size=12))
def test_a_quick_histogram_counts_as_the_library_s_does(values: list[tuple[float, int]]) -> None:
    ours, theirs = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    quick, slow = QuickHistogram(TABLE[2]), Instruments(theirs, TABLE).histogram("x_seconds")
    ours.register(quick)
    for value, times in values:
        quick.observe(value, times)
        for _ in range(times):
            slow.observe(value)
    for name, labels in (
        ("bucket", {"le": "0.1"}),
        ("bucket", {"le": "1.0"}),
        ("bucket", {"le": "+Inf"}),
        ("count", {}),
    ):
        sample = f"x_seconds_{name}"
        assert ours.get_sample_value(sample, labels) == theirs.get_sample_value(sample, labels) is not None
    assert ours.get_sample_value("x_seconds_sum") == pytest.approx(theirs.get_sample_value("x_seconds_sum") or 0.0)
    with pytest.raises(ValueError, match="Duplicated"):
        Instruments(ours, TABLE)
