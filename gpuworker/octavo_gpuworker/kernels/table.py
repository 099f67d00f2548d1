"""The table of operations: which implementations each has, which one runs here and why not another, and how often it ran."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from torch import Tensor

from octavo_gpuworker.kernels.needs import KernelNeeds
from octavo_gpuworker.kernels.sampling_ops import SampleOutputs

log = logging.getLogger(__name__)

PREFERENCE: Final = ("triton", "native", "onednn", "torch")
"""Order of looking: the GPU kernel, our CPU library, torch's oneDNN with packed weights, the oracle."""
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
    prepare: Callable[[Tensor], Tensor] | None = None
    """Turns a weight, once at load, into the form that `function` takes; None: as it is."""
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

    __slots__ = ("calls", "function", "implementation", "observer", "operation")

    def __init__(self, operation: str, implementation: str, function: Callable[..., Any]) -> None:
        self.operation, self.implementation, self.function = operation, implementation, function
        self.calls = 0
        self.observer: Callable[[CallCounter, tuple[Any, ...]], Any] | None = None
        """Calls `function` in our place, to see it at work; None: nobody looks."""

    @property
    def label(self) -> str:
        """operation/implementation."""
        return f"{self.operation}/{self.implementation}"

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.observer is not None:
            return self.observer(self, args)
        return self.function(*args)


def choose(
    operation: str, rows: tuple[Implementation, ...], prefer: str, needs: KernelNeeds
) -> tuple[Implementation, Choice]:
    """The implementation of `operation` under the setting `prefer`.

    auto: the first usable in order of PREFERENCE. A backend's name: that one first, where the operation has it; "triton" also
    where it would give way. strict: as auto, but nothing may fall back from Triton.
    ValueError: `prefer` is unknown or cannot run on this machine, or strict meets a fallback.
    """
    if prefer not in SETTINGS:
        raise ValueError(f"kernels is {prefer!r}; expected {', '.join(SETTINGS)}")
    by_name = {row.name: row for row in rows}
    named = "triton" if prefer == "strict" else prefer
    machine = {name: row.unavailable(needs) for name, row in by_name.items()}
    if machine.get(named):
        raise ValueError(
            f"kernels is {prefer!r}, but {operation} cannot use it: {machine[named]}; set kernels to auto or torch"
        )
    reasons = dict.fromkeys(PREFERENCE, "not written for this operation")
    reasons |= {name: machine[name] or row.refuses(needs) for name, row in by_name.items()}
    falls = named == "triton" or ("triton" in by_name and not machine["triton"] and prefer == "auto")
    fallback = reasons["triton"] if falls else ""
    if fallback and prefer == "strict":
        raise ValueError(
            f"kernels is 'strict', but {operation} would fall back: {fallback}; set kernels to auto or change the model's setting"
        )
    reasons |= {n: row.gives_way for n, row in by_name.items() if row.gives_way and not reasons[n] and prefer != n}
    order = (named, *(n for n in PREFERENCE if n != named)) if prefer in by_name else PREFERENCE
    for name in order:
        if not reasons[name]:
            earlier = PREFERENCE[: PREFERENCE.index(name)]
            passed = tuple((other, reasons[other] or f"{prefer} was asked for") for other in earlier)
            return by_name[name], Choice(operation, name, passed, fallback)
    raise ValueError(f"no implementation of {operation} can run on {needs.device}: {reasons}")


class KernelTable:
    """The selected operations, called by attribute: `table.rms_norm(...)`. One instance per decoder."""

    __slots__ = (
        "_counters",
        "_prepare",
        "add_rms_norm",
        "choices",
        "copy_blocks",
        "gather_blocks",
        "gelu_mul",
        "linear",
        "mla_decode",
        "mla_prefill",
        "moe",
        "needs",
        "paged_attention",
        "quant_linear",
        "rms_norm",
        "sample",
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
    sample: Callable[..., SampleOutputs]
    quant_linear: Callable[..., Tensor]
    moe: Callable[..., Tensor]
    mla_decode: Callable[..., Tensor]
    mla_prefill: Callable[..., None]

    def __init__(self, operations: Mapping[str, tuple[Implementation, ...]], needs: KernelNeeds, prefer: str) -> None:
        self.needs = needs
        self.choices: list[Choice] = []
        self._counters: dict[tuple[str, str], CallCounter] = {}
        self._prepare: dict[str, Callable[[Tensor], Tensor] | None] = {}
        if prefer in PREFERENCE and not any(row.name == prefer for rows in operations.values() for row in rows):
            raise ValueError(
                f"kernels is {prefer!r}, but no operation has such an implementation yet; set kernels to auto"
            )
        for operation, rows in operations.items():
            row, choice = choose(operation, rows, prefer, self.needs)
            counter = CallCounter(operation, row.name, row.load())
            setattr(self, operation, counter)
            self._counters[operation, row.name] = counter
            self._prepare[operation] = row.prepare
            self.choices.append(choice)
            log.log(logging.WARNING if choice.fallback else logging.INFO, "kernel %s", choice)

    def prepare(self, operation: str, weight: Tensor) -> Tensor:
        """The weight in the form that the chosen implementation of `operation` takes."""
        prepare = self._prepare[operation]
        return weight if prepare is None else prepare(weight)

    def observe(self, observer: Callable[[CallCounter, tuple[Any, ...]], Any] | None) -> None:
        """Lets `observer(counter, arguments)` make every call from now on; None ends that. For the thread that steps."""
        for counter in self._counters.values():
            counter.observer = observer

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
