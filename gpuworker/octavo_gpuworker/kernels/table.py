"""The table of operations: which implementations each has, which one runs here and why not another, and how often it ran."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.needs import KernelNeeds

log = logging.getLogger(__name__)

PREFERENCE: Final = ("triton", "native", "torch")
"""Order in which an implementation is looked for: the GPU kernel, the CPU library, the oracle."""
SETTINGS: Final = ("auto", *PREFERENCE, "strict")
"""Values of engine.kernels."""


def everywhere(needs: KernelNeeds) -> str:
    """A requirement that any machine and any model meets."""
    return ""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an operation."""

    name: str
    function: Callable[..., Any] | str
    """The function, or "module:name", imported when it is chosen."""
    unavailable: Callable[[KernelNeeds], str] = everywhere
    """Why this machine cannot run it; empty where it can."""
    refuses: Callable[[KernelNeeds], str] = everywhere
    """Why it does not take this model's shapes or dtypes; empty where it does."""
    gives_way: str = ""
    """Why the next one is preferred although this one could run, until a measurement says otherwise; empty: it is not."""

    def load(self) -> Callable[..., Any]:
        """The function, imported if need be."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.function.partition(":")
        loaded: Callable[..., Any] = getattr(import_module(module), name)
        return loaded


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation selected for one operation, and (name, reason) of each that was passed over."""

    operation: str
    chosen: str
    passed_over: tuple[tuple[str, str], ...]
    fallback: str = ""
    """Why the one that was asked for, or that this machine is for, did not take the model; empty: this is no fallback."""

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {reason}" for name, reason in self.passed_over)
        kind = "fallback; " if self.fallback else ""
        return f"{self.operation}: {self.chosen}" + (f" ({kind}{others})" if others else "")


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
    operation: str, rows: tuple[Implementation, ...], prefer: str, needs: KernelNeeds
) -> tuple[Implementation, Choice]:
    """The implementation of `operation` under the setting `prefer`.

    auto: the first usable in PREFERENCE. torch, native: exactly that. triton: Triton, also where it would give way, else a
    fallback. strict: as auto, but a fallback from Triton is refused.
    ValueError: `prefer` is unknown, or cannot be honoured on this machine, or strict meets a fallback.
    """
    if prefer not in SETTINGS:
        raise ValueError(f"kernels is {prefer!r}; expected {', '.join(SETTINGS)}")
    by_name = {row.name: row for row in rows}
    asks_triton = prefer in ("triton", "strict")
    reasons: dict[str, str] = {}
    fallback = ""
    for name in PREFERENCE:
        row = by_name.get(name)
        machine = row.unavailable(needs) if row is not None else ""
        shape = "not written for this operation" if row is None else machine or row.refuses(needs)
        yields = row.gives_way if row is not None and prefer != name else ""
        reasons[name] = shape or yields
        if name == "triton" and shape:
            if asks_triton and machine:
                raise ValueError(
                    f"kernels is {prefer!r}, but {operation} cannot use Triton: {machine}; set kernels to auto or torch"
                )
            if asks_triton or (row is not None and not machine):
                fallback = shape
    if prefer == "strict" and fallback:
        raise ValueError(
            f"kernels is 'strict', but {operation} would fall back: {fallback}; set kernels to auto or triton, or change the model's setting"
        )
    wanted = (prefer,) if prefer in ("native", "torch") else PREFERENCE
    for name in wanted:
        if not reasons[name]:
            passed = tuple(
                (other, reasons[other] or f"{prefer} was asked for") for other in PREFERENCE if other != name
            )
            if len(wanted) > 1:
                passed = passed[: PREFERENCE.index(name)]
            return by_name[name], Choice(operation, name, passed, fallback if len(wanted) > 1 else "")
    raise ValueError(
        f"kernels is {prefer!r}, but {operation} cannot use it: {reasons[wanted[0]]}; set kernels to auto or torch"
    )


class KernelTable:
    """The selected operations, called by attribute: `table.rms_norm(...)`. One instance per decoder."""

    __slots__ = (
        "_counters",
        "add_rms_norm",
        "choices",
        "copy_blocks",
        "gather_blocks",
        "gelu_mul",
        "linear",
        "needs",
        "paged_attention",
        "rms_norm",
        "scatter_blocks",
        "silu_mul",
        "soft_cap",
        "store_kv",
    )

    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    store_kv: Callable[..., Tensor]
    paged_attention: Callable[..., Tensor]
    silu_mul: Callable[..., Tensor]
    gelu_mul: Callable[..., Tensor]
    soft_cap: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    gather_blocks: Callable[..., None]
    scatter_blocks: Callable[..., None]
    copy_blocks: Callable[..., None]

    def __init__(
        self, operations: Mapping[str, tuple[Implementation, ...]], needs: KernelNeeds | torch.device, prefer: str
    ) -> None:
        self.needs = KernelNeeds(needs) if isinstance(needs, torch.device) else needs
        self.choices: list[Choice] = []
        self._counters: dict[tuple[str, str], CallCounter] = {}
        for operation, rows in operations.items():
            row, choice = choose(operation, rows, prefer, self.needs)
            counter = CallCounter(row.load())
            setattr(self, operation, counter)
            self._counters[operation, row.name] = counter
            self.choices.append(choice)
            log.log(logging.WARNING if choice.fallback else logging.INFO, "kernel %s", choice)

    @property
    def kernel_calls(self) -> dict[tuple[str, str], int]:
        """Calls so far per (operation, implementation)."""
        return {key: counter.calls for key, counter in self._counters.items()}

    @property
    def kernel_calls_by_reason(self) -> dict[tuple[str, str, str], int]:
        """Calls so far per (operation, implementation, reason): the labels of kernel_calls_total; "chosen" or the fallback's."""
        rows = {choice.operation: choice.fallback or "chosen" for choice in self.choices}
        return {(op, name, rows[op]): counter.calls for (op, name), counter in self._counters.items()}

    def describe(self) -> list[str]:
        """One line per operation: what was chosen and why others were not."""
        return [str(choice) for choice in self.choices]
