"""Rows of the engine one step ahead of the device: decode steps through launch and result, against one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from gpu_model_rows import Again, no_hidden_waits, step_config, step_cost, step_decoder
from gpu_row import Row, Setting
from octavo.step import StepBudget
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.batch import StepBatch
from octavo_gpuworker.device_sampler import draw_on_device, sampler_of
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.graphs import CudaCapture, GraphedForward
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import AdmitOrder, Sampling
from octavo_gpuworker.pipeline import PipelinedEngine
from torch import Tensor

CONTEXT, STEPS = 512, 16


class Guarded(TorchBackend):
    """A launch that waits for the device anywhere is an error, on a GPU."""

    setting: Setting

    def launch(self, batch: StepBatch, before: Any = None) -> Any:
        with no_hidden_waits(self.setting):
            return super().launch(batch, before)


def engine_rows(setting: Setting) -> Iterator[Row]:
    """STEPS greedy decode steps of a batch, admission included; the tokens of both engines are the same bits."""
    config = step_config(setting)
    decoder = step_decoder(setting, config, "triton" if setting.dry else "strict")
    batch, context, steps = setting.size(32, 2), setting.size(CONTEXT, 12), setting.size(STEPS, 3)
    blocks = -(-(context + steps) // 16)
    pool = KvPool(config, batch * blocks + 1, 16, setting.dtype, setting.device)
    pool.tensor.normal_()
    capture = Again() if setting.dry else CudaCapture(setting.device)
    graphs = GraphedForward(decoder, pool, capture, max_model_len=context + steps, batch_buckets=(batch,))
    graphs.warm_up(batch)
    draw = partial(draw_on_device, decoder.kernels.sample)
    ahead = Guarded(decoder, pool, graphs=graphs, draw=draw)
    ahead.setting = setting
    plain = TorchBackend(decoder, pool, graphs=graphs, sampler=sampler_of(decoder.kernels))

    def run(kind: type[Engine], backend: TorchBackend) -> Tensor:
        engine = kind(backend, budget=StepBudget(batch, batch, batch), start_transfer=lambda order: None)
        for seq in range(batch):
            table = list(range(1 + seq * blocks, 1 + (seq + 1) * blocks))
            prompt = [(seq + at) % config.vocab_size for at in range(context)]
            engine.post(
                AdmitOrder(
                    seq + 1, seq, prompt, context, context - 1, table, Sampling(temperature=0.0), 0, context + steps
                )
            )
        tokens = torch.zeros(batch, steps)
        counts = [0] * batch
        while engine.busy or not any(counts):
            engine.run_once()
            for report in engine.take_reports(force=True):
                for slot, new in zip(report.slots, report.tokens, strict=True):
                    for token in new:
                        tokens[slot, counts[slot]] = token
                        counts[slot] += 1
        return tokens

    total = step_cost(setting, config, batch, context)
    for _ in range(steps - 1):
        total += step_cost(setting, config, batch, context)
    one_after_the_other: Callable[[], object] = partial(run, Engine, plain)
    yield Row(
        f"engine_{steps}_steps_8b/b{batch}",
        partial(run, PipelinedEngine, ahead),
        partial(run, Engine, plain),
        1e-9,
        total,
        {"one_by_one": one_after_the_other},
    )
