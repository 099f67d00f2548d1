"""Reads what a service wrote to its log: new records for the console, and the one line that says why it died."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_SEVERE = ("error", "critical")
_ENDED = "ended with exit code "
LAST_WORDS = ("cannot start: ", _ENDED)
"""How the lines begin that a service logs at its end; `reason_of_death` is made of them."""
_LEFT = f"{_ENDED}0: left in order"
"""Last words of a worker that `octavo drain` sent away."""
STATES = ("starting", "serving", "draining", "not_serving")
_STATE = "state "
"""How the line begins in which a service says that its state is another."""
SETTINGS_WORDS = ("setting ", "settings at their default: ")
"""How the lines begin in which a service lists its settings; they name every field, and none is progress."""


@dataclass(frozen=True, slots=True)
class Record:
    """One log line: level is empty for a line that is not one of ours (a traceback, a library's print)."""

    level: str
    message: str


class ServiceLog:
    """A log file that another process appends to; remembers how far it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def mark_end(self) -> None:
        """Skips what is there now: a restarted service's log begins here."""
        self._offset = self.path.stat().st_size if self.path.exists() else 0
        self._rest = b""

    def new_records(self) -> list[Record]:
        """The whole lines written since the last call that could read the file."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                content = stream.read()
        except OSError:
            return []
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [parse_record(line.decode(errors="replace")) for line in lines if line.strip()]


def parse_record(line: str) -> Record:
    """A Record from a JSON or text log line, or from any other line."""
    try:
        content = json.loads(line)
        return Record(str(content["level"]), str(content["message"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    parts = line.split(" ", 3)
    if len(parts) == 4 and parts[2] in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        return Record(parts[2].lower(), parts[3])
    return Record("", line)


def logged_state(record: Record) -> tuple[str, str] | None:
    """The state that a service says it took, and why (mostly empty); None: the line says something else."""
    word, _, why = record.message.removeprefix(_STATE).partition(": ")
    told = record.level == "info" and record.message.startswith(_STATE) and word in STATES
    return (word, why) if told else None


def left_in_order(records: list[Record], code: int) -> bool:
    """Whether a process with these last records was told to leave for good, and did."""
    return code == 0 and any(record.message.startswith(_LEFT) for record in records)


def reason_of_death(records: list[Record], code: int) -> str:
    """One line that says why a process with these last records and this exit code (negative: a signal) ended."""
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    errors = [record.message for record in records if record.level in _SEVERE]
    plain = [record.message.strip() for record in records if not record.level]
    said = errors[-1] if errors else plain[-1] if plain else ""
    if said.startswith(_ENDED):
        said = said.removeprefix(_ENDED).partition(": ")[2].removeprefix("cannot start: ")
    said = " ".join(said.split())
    return f"{said} ({how})" if said else how
