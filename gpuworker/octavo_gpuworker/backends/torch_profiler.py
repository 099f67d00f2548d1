"""TorchProfiler: torch.profiler around the next steps of a TorchBackend, with the table's operations named in the trace."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.kernels.table import CallCounter
from octavo_gpuworker.kernels.traffic import traffic_bytes
from octavo_gpuworker.profile import ProfileBusy, ProfileRow, StepProfile

PREFIX: Final = "octavo::"
"""Begins the names of operations in a trace."""


class TorchProfiler:
    """`request` from any thread; `begin_step` and `end_step` from the step thread alone, which torch.profiler records."""

    def __init__(self, kernels: KernelTable, device: torch.device) -> None:
        self._kernels, self._device = kernels, device
        self._lock = threading.Lock()
        self._wanted: Future[StepProfile] | None = None
        self._steps = self._left = 0
        self._running: profile | None = None
        self._bytes: Counter[str] = Counter()

    def request(self, steps: int) -> Future[StepProfile]:
        """See Profiler."""
        with self._lock:
            if self._wanted is not None or self._running is not None:
                raise ProfileBusy("another profile is being recorded; try again when it has ended")
            self._wanted, self._steps = Future(), steps
            return self._wanted

    def cancel(self, wanted: Future[StepProfile]) -> None:
        """See Profiler."""
        with self._lock:
            wanted.cancel()
            if self._wanted is wanted:
                self._wanted = None

    def begin_step(self) -> None:
        """Starts recording if a profile is wanted."""
        if self._wanted is None or self._running is not None:
            return
        with self._lock:
            if self._wanted is None:
                return
            self._left = self._steps
        self._bytes.clear()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._running = profile(activities=activities)
        self._running.__enter__()  # type: ignore[no-untyped-call]
        self._kernels.observe(self._observed)

    def end_step(self) -> None:
        """Counts a step; after the last one, or when the profile was given up, stops and answers."""
        if self._running is None:
            return
        self._left -= 1
        if self._left > 0 and self._wanted is not None:
            return
        self._kernels.observe(None)
        recorded, self._running = self._running, None
        recorded.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is not None and wanted.set_running_or_notify_cancel():
            # writing the trace takes longer than a step, and steps must go on
            work = partial(self._answer, wanted, recorded, self._steps, dict(self._bytes))
            threading.Thread(target=work, name="profile", daemon=True).start()

    def _answer(self, wanted: Future[StepProfile], recorded: profile, steps: int, sizes: dict[str, int]) -> None:
        try:
            wanted.set_result(StepProfile(steps, self._rows(recorded, sizes), _trace(recorded)))
        except Exception as error:  # noqa: BLE001 - whoever waits is told whatever went wrong
            wanted.set_exception(error)

    def _observed(self, called: CallCounter, arguments: tuple[Any, ...]) -> Any:
        with record_function(PREFIX + called.label):
            result = called.function(*arguments)
        self._bytes[called.label] += traffic_bytes(called.operation, arguments, result)
        return result

    def _rows(self, recorded: profile, sizes: dict[str, int]) -> tuple[ProfileRow, ...]:
        on_gpu = self._device.type == "cuda"
        rows = []
        for event in recorded.key_averages():
            if event.key.startswith(PREFIX):
                name = event.key.removeprefix(PREFIX)
                time_us = event.device_time_total if on_gpu else event.cpu_time_total
                if str(event.device_type).endswith("CPU"):  # a GPU trace repeats the range on the device's line
                    rows.append(ProfileRow("operation", name, event.count, float(time_us), sizes.get(name, 0)))
                continue
            is_kernel = str(event.device_type).endswith("CUDA") if on_gpu else event.self_cpu_time_total > 0
            if is_kernel:
                time_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
                rows.append(ProfileRow("kernel", event.key, event.count, float(time_us)))
        return tuple(sorted(rows, key=lambda row: -row.time_us))


def _trace(recorded: profile) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        return path.read_bytes()
