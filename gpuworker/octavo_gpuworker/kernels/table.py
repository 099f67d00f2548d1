"""The table of operations: which implementations each has, which one runs here and why not another, and how often it ran."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

log = logging.getLogger(__name__)

PREFERENCE: Final = ("triton", "native", "torch")
"""Order in which `auto` looks: the GPU kernel, the CPU library, the oracle."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an operation. `unavailable(device)` is an empty string where it can run, else the reason why not."""

    name: str
    function: Callable[..., Any]
    unavailable: Callable[[torch.device], str]


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation selected for one operation, and (name, reason) of each that was passed over."""

    operation: str
    chosen: str
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {reason}" for name, reason in self.passed_over)
        return f"{self.operation}: {self.chosen}" + (f" ({others})" if others else "")


def everywhere(device: torch.device) -> str:
    """`unavailable` of an implementation that runs on any device."""
    return ""


class CallCounter:
    """Counts calls of one implementation; a plain integer, since one thread steps the model."""

    __slots__ = ("calls", "function")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


def choose(
    operation: str, rows: tuple[Implementation, ...], prefer: str, device: torch.device
) -> tuple[Implementation, Choice]:
    """The first usable implementation of `operation` in order of preference, or exactly `prefer`.

    ValueError when `prefer` is no backend's name, or names one that this operation lacks or that cannot run on `device`.
    """
    if prefer not in ("auto", *PREFERENCE):
        raise ValueError(f"kernels is {prefer!r}; expected auto, {', '.join(PREFERENCE)}")
    by_name = {row.name: row for row in rows}
    reasons: dict[str, str] = {}
    for name in PREFERENCE:
        row = by_name.get(name)
        reasons[name] = "not written for this operation" if row is None else row.unavailable(device)
    wanted = PREFERENCE if prefer == "auto" else (prefer,)
    for name in wanted:
        if not reasons[name]:
            passed = tuple(
                (other, reasons[other] or f"{prefer} was asked for") for other in PREFERENCE if other != name
            )
            if prefer == "auto":
                passed = passed[: PREFERENCE.index(name)]
            return by_name[name], Choice(operation, name, passed)
    raise ValueError(
        f"kernels is {prefer!r}, but {operation} cannot use it: {reasons[prefer]}; set kernels to auto or torch"
    )


class KernelTable:
    """The selected operations, called by attribute: `table.rms_norm(...)`. One instance per decoder."""

    __slots__ = (
        "_counters",
        "add_rms_norm",
        "choices",
        "gelu_mul",
        "linear",
        "paged_attention",
        "rms_norm",
        "silu_mul",
        "store_kv",
    )

    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    store_kv: Callable[..., Tensor]
    paged_attention: Callable[..., Tensor]
    silu_mul: Callable[..., Tensor]
    gelu_mul: Callable[..., Tensor]
    linear: Callable[..., Tensor]

    def __init__(self, operations: Mapping[str, tuple[Implementation, ...]], device: torch.device, prefer: str) -> None:
        self.choices: list[Choice] = []
        self._counters: dict[tuple[str, str], CallCounter] = {}
        for operation, rows in operations.items():
            row, choice = choose(operation, rows, prefer, device)
            counter = CallCounter(row.function)
            setattr(self, operation, counter)
            self._counters[operation, row.name] = counter
            self.choices.append(choice)
            log.info("kernel %s", choice)

    @property
    def kernel_calls(self) -> dict[tuple[str, str], int]:
        """Calls so far per (operation, implementation)."""
        return {key: counter.calls for key, counter in self._counters.items()}

    def describe(self) -> list[str]:
        """One line per operation: what was chosen and why others were not."""
        return [str(choice) for choice in self.choices]
