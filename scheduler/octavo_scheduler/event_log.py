"""The log of a core: everything that went in, and the orders that came out, so that a run can be replayed exactly.

One JSON value per line. The first is {"octavo_event_log": 1, "now_us", "policy"}; then ["event", event, orders],
["collect", gateway] and ["drain"] in the order in which the core was given them. An event or order is
{"": type, field: value}; bytes are {"b": hex}, token ids {"u": hex of little-endian u32}, tuples {"t": [...]}.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TextIO, TypeVar

from octavo_scheduler import events, orders
from octavo_scheduler.core import Core
from octavo_scheduler.events import Event
from octavo_scheduler.orders import Effects
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads import rule

FORMAT = "octavo_event_log"
VERSION = 1

RECORDS: dict[str, type] = {
    kind.__name__: kind
    for module in (events, orders, rule)
    for kind in vars(module).values()
    if isinstance(kind, type) and is_dataclass(kind)
}


class BadLog(ValueError):
    """A log that cannot be read; the message names the line."""


def to_plain(value: Any) -> Any:
    """`value` as what JSON can hold; fields that have their default are left out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, array):
        packed = array("I", value)
        if sys.byteorder != "little":
            packed.byteswap()
        return {"u": packed.tobytes().hex()}
    if isinstance(value, tuple):
        return {"t": [to_plain(item) for item in value]}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    plain: dict[str, Any] = {"": type(value).__name__}
    for item in fields(value):
        held = getattr(value, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if default is MISSING or held != default:
            plain[item.name] = to_plain(held)
    return plain


def from_plain(plain: Any) -> Any:
    """The reverse of `to_plain`. Raises BadLog on a type that this version does not know."""
    if isinstance(plain, list):
        return [from_plain(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if "b" in plain:
        return bytes.fromhex(plain["b"])
    if "u" in plain:
        tokens = array("I", bytes.fromhex(plain["u"]))
        if sys.byteorder != "little":
            tokens.byteswap()
        return tokens
    if "t" in plain:
        return tuple(from_plain(item) for item in plain["t"])
    kind = RECORDS.get(plain.get("", ""))
    if kind is None:
        raise BadLog(f"{plain.get('')!r} is no event or order of this version")
    try:
        return kind(**{name: from_plain(value) for name, value in plain.items() if name})
    except TypeError as error:
        raise BadLog(f"{plain['']}: {error}") from error


def orders_text(effects: Effects) -> str:
    """The orders of one event as canonical text: equal texts are equal bytes on the workers' streams."""
    return json.dumps([[epoch, to_plain(batch)] for epoch, batch in effects.orders], separators=(",", ":"))


class EventLog:
    """Writes the log of one core to an open text file, which the caller closes.

    A file that can no longer be written (a full disk) ends the log, never the core: `on_broken` is told why, once.
    """

    def __init__(
        self, out: TextIO, policy: Policy, now_us: int, on_broken: Callable[[str], None] = lambda why: None
    ) -> None:
        self._out: TextIO | None = out
        self._on_broken = on_broken
        self._write(json.dumps({FORMAT: VERSION, "now_us": now_us, "policy": asdict(policy)}))

    def _write(self, line: str) -> None:
        if self._out is None:
            return
        try:
            self._out.write(line + "\n")
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        self._out = None
        self._on_broken(str(error))

    def flush(self) -> None:
        """Everything so far is with the system."""
        if self._out is None:
            return
        try:
            self._out.flush()
        except OSError as error:
            self._end(error)

    def before(self, event: Event) -> str:
        """The event as text; take it before the core handles it, for the core keeps parts of what it is given."""
        return json.dumps(to_plain(event), separators=(",", ":"))

    def after(self, event_text: str, effects: Effects) -> None:
        """The event was handled."""
        self._write(f'["event",{event_text},{orders_text(effects)}]')

    def collected(self, gateway: int) -> None:
        """The gateway was given what it was owed."""
        self._write(f'["collect",{gateway}]')

    def drained(self) -> None:
        """The core refuses new requests from here on."""
        self._write('["drain"]')


@dataclass(slots=True)
class Replay:
    """What a replay came to."""

    events: int = 0
    orders: int = 0
    difference: str = ""
    """The first event whose orders differ, with both; empty: all are byte-equal."""
    cut: bool = False
    """The last line is half a line: the scheduler was killed while it wrote, and all before it was replayed."""


def read_log(lines: Iterable[str]) -> Iterator[Any]:
    """The header as an object, then one list per line; None for a last line that was cut off. Raises BadLog naming the line."""
    number, cut = 0, ""
    for number, line in enumerate(lines, start=1):
        if cut:
            raise BadLog(cut)
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            cut = f"line {number}: is not JSON: {error}"
            if number == 1 or isinstance(error, RecursionError):
                raise BadLog(cut) from error
            continue
        if number == 1:
            if not isinstance(content, dict) or content.get(FORMAT) != VERSION:
                raise BadLog(
                    f'line 1: must be {{"{FORMAT}": {VERSION}, ...}}; give a file that scheduler.event_log wrote'
                )
        elif not isinstance(content, list) or not content:
            raise BadLog(f"line {number}: must be a list that begins with event, collect or drain")
        yield content
    if cut:
        yield None
    if not number:
        raise BadLog("line 1: the log is empty")


def _core_of(header: Mapping[str, Any]) -> Core:
    policy, now_us = header.get("policy"), header.get("now_us")
    if not isinstance(policy, Mapping) or type(now_us) is not int:
        raise BadLog(
            "line 1: policy must be an object and now_us a whole number; give a file that scheduler.event_log wrote"
        )
    try:
        return Core(Policy(**policy), now_us)
    except TypeError as error:
        raise BadLog(f"line 1: policy is of another version: {error}") from error


T = TypeVar("T")


def _given(number: int, to_core: Callable[[], T]) -> T:
    """What the core makes of one entry. BadLog naming the event when its fields are not what an event has."""
    try:
        return to_core()
    except BadLog:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise BadLog(
            f"event {number}: cannot be handled as it stands ({type(error).__name__}: {error}); "
            "the log is damaged, or of another version"
        ) from error


def _handle(core: Core, event: Any) -> Effects:
    return core.handle(from_plain(event))


def replay(lines: Iterable[str], watch: Callable[[Core], None] = lambda core: None) -> Replay:
    """Feeds a new core what the log says and compares every order. `watch` is given the core before its first event. Raises BadLog."""
    log = read_log(lines)
    header = next(log)
    core = _core_of(header)
    watch(core)
    result = Replay()
    for entry in log:
        if entry is None:
            result.cut = True
            return result
        if entry[0] == "event" and (len(entry) != 3 or not isinstance(entry[1], dict)):
            raise BadLog(f'event {result.events + 1}: must be ["event", event, orders]')
        if entry[0] == "event":
            effects = _given(result.events + 1, partial(_handle, core, entry[1]))
            result.events += 1
            result.orders += sum(len(batch) for _epoch, batch in effects.orders)
            logged = json.dumps(entry[2], separators=(",", ":"))
            if (given := orders_text(effects)) != logged:
                result.difference = f"event {result.events} ({entry[1]['']}): logged {logged}, replayed {given}"
                return result
        elif entry[0] == "collect":
            _given(result.events, partial(core.collect, entry[1]))
        elif entry[0] == "drain":
            core.drain()
        else:
            raise BadLog(f"{entry[0]!r} is neither event, collect nor drain")
    return result
