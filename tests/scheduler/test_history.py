"""Predicted output lengths: by tenant and prompt length, corrected by what ends and by what outgrows them."""

from __future__ import annotations

import pytest
from octavo_scheduler.history import OutputHistory, length_class


def test_classes_of_one_tenant_are_predicted_apart() -> None:
    history = OutputHistory(256)
    for number in range(300):
        history.observe("t", 20 + number % 10, prompt_tokens=50)
        history.observe("t", 400 + number % 100, prompt_tokens=4000)
    assert 20 <= history.predict("t", 9999, 50) <= 45 and 400 <= history.predict("t", 9999, 4000) <= 520
    assert history.expect("t", 9999, 50) == pytest.approx(25, rel=0.1)
    assert history.expect("t", 9999, 4000) == pytest.approx(450, rel=0.1)
    assert history.expect("t", 100, 4000) == 100.0


def test_a_new_tenant_is_predicted_from_the_others_and_a_new_cell_from_the_default() -> None:
    history = OutputHistory(256)
    assert history.predict("t", 9999, 50) == 256 and history.count_on("t", 9999, 50) == 1.0
    for _ in range(100):
        history.observe("old", 16, prompt_tokens=50)
    assert history.predict("new", 9999, 50) <= 40 and history.count_on("new", 9999, 50) == pytest.approx(16, rel=0.3)


def test_what_outgrows_its_prediction_raises_it_before_it_has_ended() -> None:
    history = OutputHistory(10)
    for _ in range(50):
        history.observe("t", 10, prompt_tokens=50)
    before = history.predict("t", 9999, 50)
    for _ in range(20):
        history.outgrown("t", 50)
    assert history.predict("t", 9999, 50) > before + 10


def test_a_class_spans_a_factor_of_four() -> None:
    assert length_class(512) == length_class(1023) and length_class(512) != length_class(128)
