"""A closed gate refuses everybody but its own channel, and opens once."""

from __future__ import annotations

import pytest
from octavo.errors import Unavailable
from octavo_gateway.release_gate import WAITING, Gate


def test_a_closed_gate_refuses_with_its_reason() -> None:
    gate = Gate()
    with pytest.raises(Unavailable, match="its checks have not passed yet; try again") as refused:
        gate.check()
    assert refused.value.reason == "rejected-not-ready" and refused.value.retry_after_s > 0
    gate.decide(False, "parity: token 3 is 9")
    with pytest.raises(Unavailable, match="release gate: parity: token 3 is 9"):
        gate.check()
    assert gate.why != WAITING


def test_it_opens_once_and_tells() -> None:
    gate, told = Gate(), []
    gate.on_change.append(lambda: told.append((gate.open, gate.why)))
    gate.decide(False, "")
    gate.decide(True, "well")
    gate.decide(False, "a late no changes nothing")
    gate.check()
    assert told == [(False, "release gate: the checks failed"), (True, ""), (True, "")]
