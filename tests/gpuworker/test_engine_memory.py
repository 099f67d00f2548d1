"""Steps whose allocation fails: tried again, smaller, and told to the scheduler; only what never fits has failed."""

from __future__ import annotations

from typing import Any

from tests.gpuworker.conftest import prompt_of


class Hungry:
    """A decoder that finds no memory at every `every`-th call."""

    def __init__(self, decoder: Any, every: int) -> None:
        self.inner, self.config, self.device = decoder, decoder.config, decoder.device
        self.every, self.calls = every, 0

    def forward(self, inputs: Any, pool: Any) -> Any:
        self.calls += 1
        if self.calls % self.every == 0:
            raise MemoryError("no")
        return self.inner.forward(inputs, pool)


def test_every_50th_allocation_fails_and_no_stream_does(make_rig: Any, decoder: Any) -> None:
    model = Hungry(decoder, 50)
    rig = make_rig(model=model)
    for seq in range(1, 5):
        rig.admit(seq, prompt_of(5, seq), max_new=60)
    rig.run()
    assert model.calls > 50 and sum(report.failed_allocations for report in rig.reports) == model.calls // 50
    assert rig.reasons == dict.fromkeys(range(1, 5), "length")
    assert all(len(rig.tokens[seq]) == 60 for seq in range(1, 5))


def test_a_step_that_never_fits_fails_its_sequence_alone(make_rig: Any, decoder: Any) -> None:
    rig = make_rig(model=Hungry(decoder, 1))
    rig.admit(1, prompt_of(5))
    for _ in range(80):
        rig.step()
    (finish,) = [finish for report in rig.reports for finish in report.finishes]
    assert finish.reason == "failed" and "out of memory in a step of one token" in finish.message
