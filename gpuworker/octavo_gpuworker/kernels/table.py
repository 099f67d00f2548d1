"""The table of operations: which implementations each has, which one runs here and why not another, and how often it ran."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

log = logging.getLogger(__name__)

PREFERENCE: Final = ("triton", "native", "onednn", "torch")
"""Order in which `auto` looks: the GPU kernel, our CPU library, torch's oneDNN with packed weights, the oracle."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an operation."""

    name: str
    function: Callable[..., Any]
    unavailable: Callable[[torch.device, torch.dtype], str]
    """An empty string where it can run, else the reason why not."""
    prepare: Callable[[Tensor], Tensor] | None = None
    """Turns a weight, once at load, into the form that `function` takes; None: as it is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation selected for one operation, and (name, reason) of each that was passed over."""

    operation: str
    chosen: str
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {reason}" for name, reason in self.passed_over)
        return f"{self.operation}: {self.chosen}" + (f" ({others})" if others else "")


def everywhere(device: torch.device, dtype: torch.dtype) -> str:
    """`unavailable` of an implementation that runs on any device in any float dtype."""
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
    operation: str, rows: tuple[Implementation, ...], prefer: str, device: torch.device, dtype: torch.dtype
) -> tuple[Implementation, Choice]:
    """The first usable implementation in order of preference; a named `prefer` first, where the operation has it.

    "torch" gives the oracle everywhere. An operation without a row of the named backend falls through to the others,
    and its line says so. ValueError when `prefer` is no backend's name, or a row of it cannot run on `device`.
    """
    if prefer not in ("auto", *PREFERENCE):
        raise ValueError(f"kernels is {prefer!r}; expected auto, {', '.join(PREFERENCE)}")
    by_name = {row.name: row for row in rows}
    reasons = {name: "not written for this operation" for name in PREFERENCE}
    reasons |= {row.name: row.unavailable(device, dtype) for row in rows}
    if prefer in by_name and reasons[prefer]:
        raise ValueError(
            f"kernels is {prefer!r}, but {operation} cannot use it: {reasons[prefer]}; set kernels to auto or torch"
        )
    order = (prefer, *(name for name in PREFERENCE if name != prefer)) if prefer in by_name else PREFERENCE
    for name in order:
        if not reasons[name]:
            passed = tuple(
                (other, reasons[other] or f"{prefer} was asked for") for other in PREFERENCE[: PREFERENCE.index(name)]
            )
            return by_name[name], Choice(operation, name, passed)
    raise ValueError(f"no implementation of {operation} can run on {device}: {reasons}")


class KernelTable:
    """The selected operations, called by attribute: `table.rms_norm(...)`. One instance per decoder."""

    __slots__ = (
        "_counters",
        "_prepare",
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

    def __init__(
        self,
        operations: Mapping[str, tuple[Implementation, ...]],
        device: torch.device,
        dtype: torch.dtype,
        prefer: str,
    ) -> None:
        self.choices: list[Choice] = []
        self._counters: dict[tuple[str, str], CallCounter] = {}
        self._prepare: dict[str, Callable[[Tensor], Tensor] | None] = {}
        if prefer in PREFERENCE and not any(row.name == prefer for rows in operations.values() for row in rows):
            raise ValueError(
                f"kernels is {prefer!r}, but no operation has such an implementation yet; set kernels to auto"
            )
        for operation, rows in operations.items():
            row, choice = choose(operation, rows, prefer, device, dtype)
            counter = CallCounter(row.function)
            setattr(self, operation, counter)
            self._counters[operation, row.name] = counter
            self._prepare[operation] = row.prepare
            self.choices.append(choice)
            log.info("kernel %s", choice)

    def prepare(self, operation: str, weight: Tensor) -> Tensor:
        """The weight in the form that the chosen implementation of `operation` takes."""
        prepare = self._prepare[operation]
        return weight if prepare is None else prepare(weight)

    @property
    def kernel_calls(self) -> dict[tuple[str, str], int]:
        """Calls so far per (operation, implementation)."""
        return {key: counter.calls for key, counter in self._counters.items()}

    def describe(self) -> list[str]:
        """One line per operation: what was chosen and why others were not."""
        return [str(choice) for choice in self.choices]
