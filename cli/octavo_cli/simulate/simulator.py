"""The simulator as a process of its own (`python -m octavo_scheduler.simulate`), as every service is one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import InternalError
from octavo.rpc.settings import Settings, to_flags

from octavo_cli.bench.work import BadPlan
from octavo_cli.inputs import reading_fault

MODULE = "octavo_scheduler.simulate"
USAGE = 2
SECTIONS = ("scheduler", "cache")
"""What of the settings the core's policy is made of."""


def policy_flags(settings: Settings) -> list[str]:
    """The flags that give the simulator the policy of these settings, wherever they came from."""
    given = {
        item.key: item.value
        for item in settings.items()
        if item.source != "default" and item.key.partition(".")[0] in SECTIONS
    }
    return to_flags(given)


def ask(task: dict[str, Any], lines: Iterable[str], flags: Sequence[str] = ()) -> dict[str, Any]:
    """The simulator's answer to a task and its input lines. Raises BadPlan with its message, InternalError if it broke."""
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    told = "".join(f"{line.rstrip()}\n" for line in (json.dumps(task), *lines))
    answer, errors = process.communicate(told)
    if process.returncode == USAGE:
        raise BadPlan(errors.strip(), field=errors.partition(":")[0])
    if process.returncode:
        raise InternalError(f"the simulator ended with {process.returncode}: {errors.strip()[-500:]}")
    content: dict[str, Any] = json.loads(answer)
    return content


def hardware_named(word: str) -> Any:
    """The plan's `hardware` for --hardware: a given model's name, or what a file says (its object, or an event log).

    Raises BadPlan.
    """
    path = Path(word)
    if not path.suffix and "/" not in word:
        return word
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"--hardware: {word} cannot be read: {reading_fault(error)}; name a given model, a JSON file or an event log"
        raise BadPlan(message, field="hardware") from error
    lines = text.splitlines()
    if lines and lines[0].startswith('{"octavo_event_log"'):
        return ask({"calibrate": path.name}, lines)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPlan(f"--hardware: {word} is neither JSON nor an event log: {error}", field="hardware") from error
