"""What `octavo up` shows: plain lines anywhere, a progress bar for the weights on a terminal."""

from __future__ import annotations

import re

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from octavo_cli.service_log import LAST_WORDS, SETTINGS_WORDS, Record
from octavo_cli.state import ServiceState

_PERCENT = re.compile(r"(?<!\d)(\d{1,15}(?:\.\d{1,15})?)\s*%")
_OF = re.compile(r"(?<!\d)(\d{1,15})\s*(?:/|of)\s*(\d{1,15})(?!\d)")
_SHOWN = re.compile(r"load|KV pool|warm|calibrat|kernel", re.IGNORECASE)
READY_LINE = "octavo is ready"


class LastingConsole(Console):
    """A console whose program goes on when its reader leaves; rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        """Writes no more."""
        self.quiet = True


class ConsoleWatcher:
    """Writes the cluster's events to a rich console, one line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def moved(self, key: str, taken: str, address: str) -> None:
        """Says that a default address is another one this time."""
        self._line(f"{key}: {taken} is taken, {address} is used instead")

    def record(self, service: str, record: Record) -> None:
        """A worker's load progress as a bar on a terminal, else as lines; warnings and errors of anybody."""
        if record.message.startswith(LAST_WORDS):
            return  # the reason comes with the death
        if record.level in ("warning", "error", "critical"):
            self._line(f"{service}: {record.message}")
        elif service.startswith("gpuworker") and _SHOWN.search(record.message) and _is_progress(record):
            self._advance(service, record.message)

    def changed(self, before: ServiceState, after: ServiceState, seconds: float) -> None:
        """A ready line when a service begins to serve; its reason when it has one and does not."""
        if after.state == "serving":
            self._end_bar(after.name)
            self._line(f"{after.name:<12} ready  {after.address}  pid {after.process.pid}  {seconds:.1f} s")
        elif after.why and after.kind == "gpuworker" and share_done(after.why) is not None:
            self._advance(after.name, after.why)
        elif before.state == "serving":
            self._line(f"{after.name:<12} {after.state}{f': {after.why}' if after.why else ''}")

    def died(self, service: str, reason: str, restart_in_s: float) -> None:
        """Says who died, why, and that it comes back."""
        self._line(f"{service:<12} died: {reason}; starting it again in {restart_in_s:.1f} s")

    def trouble(self, service: str, why: str) -> None:
        """Says what kept the supervisor from seeing how a service is."""
        self._line(f"{service:<12} cannot be followed just now: {why}; looking again")

    def ready(self, urls: dict[str, str], seconds: float) -> None:
        """The final line with the URLs."""
        self.close()
        listed = "  ".join(f"{name} {url}" for name, url in urls.items())
        if "http" in urls:
            self._line(f"{'page':<12} ready  {urls['http']}/  chat and the live view, for a browser")
        self._line(f"{READY_LINE} in {seconds:.1f} s: {listed}")

    def draining(self) -> None:
        """Says that the cluster stops."""
        self.close()
        self._line("draining; Ctrl-C again stops at once")

    def gate(self, state: str, said: str) -> None:
        """A line per check of the release gate, and its verdict."""
        self._line(f"{'gate':<12} {said}" if state == "running" else f"{'gate':<12} {state}: {said}")

    def close(self) -> None:
        """Takes the progress bar off the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._bars = None, {}

    def _line(self, text: str) -> None:
        console = self._progress.console if self._progress else self._console
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _advance(self, service: str, message: str) -> None:
        share = share_done(message)
        if share is None or not self._console.is_terminal:
            self._line(f"{service}: {message}")
            return
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
        if service not in self._bars:
            self._bars[service] = self._progress.add_task(service, total=1.0)
        text = f"{service}: {message}"
        self._progress.update(self._bars[service], completed=share, description=text, refresh=True)

    def _end_bar(self, service: str) -> None:
        if self._progress is not None and service in self._bars:
            self._progress.remove_task(self._bars.pop(service))


def _is_progress(record: Record) -> bool:
    if record.message.startswith(SETTINGS_WORDS):
        return False
    # a line without a level may be part of a traceback: only one that counts something is progress
    return record.level == "info" or (not record.level and share_done(record.message) is not None)


def share_done(message: str) -> float | None:
    """How much of the work a progress message reports as done, in [0, 1]; None when it reports none."""
    if match := _PERCENT.search(message):
        return min(1.0, float(match.group(1)) / 100.0)
    if (match := _OF.search(message)) and int(match.group(2)) > 0:
        return min(1.0, int(match.group(1)) / int(match.group(2)))
    return None
