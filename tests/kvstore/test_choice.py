"""The choice of a form: raw on a fast link, the codec on a slow one, the level by the link; everything is counted."""

from __future__ import annotations

import pytest
from octavo_kvstore.codecs.choice import Chooser, FormCost, LinkSpeed, predicted_s
from octavo_kvstore.codecs.forms import EXACT, RAW, ZSTD6, ZSTD8
from octavo_kvstore.codecs.samples import sample_payload
from octavo_kvstore.codecs.shape import PayloadShape

SHAPE = PayloadShape(4, 2, 3, 16, 64, "bfloat16")
FAST, SLOW = 1e12, 1e6


class Clock:
    """Each look costs a millisecond, so every encode and decode takes exactly one."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def test_a_fast_link_gets_raw_and_a_slow_one_the_codec() -> None:
    chooser, payload = Chooser("zstd"), sample_payload(SHAPE)
    assert chooser.encode(payload, SHAPE, exact=False, link_bytes_per_s=FAST) == (RAW, payload)
    form, coded = chooser.encode(payload, SHAPE, exact=False, link_bytes_per_s=SLOW)
    assert form.lossy and len(coded) < len(payload) / 2
    assert len(chooser.decode(form, coded, SHAPE)) == len(payload)


def test_the_level_follows_the_link() -> None:
    """With an encoder that costs more for fewer bytes, each link speed has another best level."""
    chooser, payload = Chooser("zstd"), sample_payload(SHAPE)
    chooser.encode(payload, SHAPE, exact=False, link_bytes_per_s=SLOW)
    chooser._costs = {
        ZSTD8.number: FormCost(0.5, 1e-9, 0.0),
        ZSTD6.number: FormCost(0.25, 10e-9, 0.0),
        EXACT.number: FormCost(0.9, 1e-9, 0.0),
        9: FormCost(0.9, 1.0, 1.0),
    }
    chosen = [chooser._best((ZSTD8, ZSTD6, EXACT), len(payload), speed).name for speed in (1e10, 1e8, 1e6)]
    assert chosen == ["raw", "zstd8", "zstd6"]


def test_predictions_are_encode_transfer_decode() -> None:
    assert predicted_s(FormCost(0.5, 1e-9, 2e-9), 1_000_000, 1e6) == pytest.approx(0.001 + 0.002 + 0.5)


def test_raw_wins_unless_a_form_is_clearly_faster() -> None:
    chooser = Chooser("int8")
    chooser._costs = {1: FormCost(0.95, 0.0, 0.0)}
    assert chooser._best(tuple(f for f in (ZSTD8, EXACT)), 1000, SLOW) is RAW
    chooser._costs = {ZSTD8.number: FormCost(0.95, 0.0, 0.0)}
    assert chooser._best((ZSTD8,), 1000, SLOW) is RAW, "5% is within what the prediction may be wrong by"


@pytest.mark.parametrize(
    ("codec", "shape", "exact", "speed"),
    [
        ("none", SHAPE, False, SLOW),
        ("zstd", None, False, SLOW),
        ("zstd", SHAPE, False, 0.0),
        ("zstd", PayloadShape(4, 2, 3, 8, 64, "bfloat16"), False, SLOW),
    ],
)
def test_what_is_not_known_or_not_wanted_stays_raw(codec: str, shape: PayloadShape, exact: bool, speed: float) -> None:
    payload = sample_payload(SHAPE)
    chooser = Chooser(codec)
    assert chooser.encode(payload, shape, exact=exact, link_bytes_per_s=speed) == (RAW, payload)
    assert chooser.figures().encode_s == 0


@pytest.mark.parametrize("codec", ["int8", "fp8", "zstd"])
def test_where_exactness_is_asked_for_nothing_lossy_is_chosen(codec: str) -> None:
    payload = sample_payload(SHAPE)
    chooser = Chooser(codec)
    form, coded = chooser.encode(payload, SHAPE, exact=True, link_bytes_per_s=SLOW)
    assert not form.lossy and chooser.decode(form, coded, SHAPE) == payload


def test_a_payload_that_does_not_shrink_stays_raw() -> None:
    import numpy as np

    shape = PayloadShape(1, 1, 1, 64, 64, "int8")
    noise = np.random.default_rng(0).bytes(shape.payload_bytes)
    assert Chooser("zstd").encode(noise, shape, exact=False, link_bytes_per_s=SLOW) == (RAW, noise)


def test_the_figures_add_up() -> None:
    chooser, payload = Chooser("int8", Clock()), sample_payload(SHAPE)
    form, coded = chooser.encode(payload, SHAPE, exact=False, link_bytes_per_s=SLOW)
    chooser.decode(form, coded, SHAPE)
    figures = chooser.figures()
    assert (figures.blocks, figures.raw_bytes, figures.coded_bytes) == (1, len(payload), len(coded))
    # two forms probed twice each way, then one encode and one decode: a millisecond each
    assert figures.encode_s == pytest.approx(0.005) and figures.decode_s == pytest.approx(0.005)
    assert figures.saved_s == pytest.approx((len(payload) - len(coded)) / SLOW)
    assert figures.net_s == pytest.approx(figures.saved_s - 0.01)
    assert set(chooser.costs()) == {"int8", "zstd-exact"}


def test_link_speed_is_a_running_mean_of_what_was_seen() -> None:
    link = LinkSpeed()
    link.observe(0, 1.0)
    link.observe(100, 0.0)
    assert link.bytes_per_s == 0
    link.observe(100, 1.0)
    assert link.bytes_per_s == 100
    for _ in range(50):
        link.observe(300, 1.0)
    assert link.bytes_per_s == pytest.approx(300, rel=0.01)


def test_a_form_that_loses_too_much_is_refused_and_counted() -> None:
    payload = sample_payload(SHAPE)
    chooser = Chooser("zstd", max_error=0.02)
    form, _coded = chooser.encode(payload, SHAPE, exact=False, link_bytes_per_s=SLOW)
    errors = {name: cost.error for name, cost in chooser.costs().items()}
    assert errors["zstd8"] < errors["zstd7"] < errors["zstd6"] and errors["zstd-exact"] == 0
    assert chooser.refused() == sorted(name for name, error in errors.items() if error > 0.02) != []
    assert errors[form.name] <= 0.02
    anything = Chooser("zstd", max_error=1.0)
    loosest, _coded = anything.encode(payload, SHAPE, exact=False, link_bytes_per_s=SLOW)
    assert loosest is ZSTD6 and anything.refused() == []


def test_where_all_lossy_forms_lose_too_much_the_exact_one_is_left() -> None:
    chooser = Chooser("int8", max_error=0.0)
    form, coded = chooser.encode(sample_payload(SHAPE), SHAPE, exact=False, link_bytes_per_s=SLOW)
    assert form is EXACT and chooser.decode(form, coded, SHAPE) == sample_payload(SHAPE)
