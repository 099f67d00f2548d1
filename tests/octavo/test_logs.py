"""Structured logs: one JSON object per line off a terminal, with what `extra` holds; text on a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
from octavo.rpc.logs import start_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, log_format: str = "auto") -> list[str]:
    monkeypatch.setattr(sys, "stderr", stream)
    log = start_logging("gateway", log_format, "info")  # type: ignore[arg-type]
    try:
        log.info("request %s ended", "r1", extra={"request_id": "r1", "trace_id": "ab" * 16})
        log.debug("not shown")
        return stream.getvalue().splitlines()
    finally:
        logging.getLogger("octavo").handlers.clear()


@pytest.mark.parametrize(("stream", "log_format"), [(io.StringIO(), "auto"), (Terminal(), "json")])
def test_json_has_the_ids_as_fields(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, log_format: str) -> None:
    (line,) = lines(monkeypatch, stream, log_format)
    said = json.loads(line)
    assert (said["service"], said["level"], said["message"]) == ("gateway", "info", "request r1 ended")
    assert (said["request_id"], said["trace_id"]) == ("r1", "ab" * 16)
    assert said["ts"].endswith("Z")


def test_a_terminal_gets_text(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines(monkeypatch, Terminal())
    assert "gateway INFO request r1 ended" in line and f"trace_id={'ab' * 16}" in line


def test_the_modules_of_the_service_are_heard_at_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    start_logging("kvstore", "json", "info")
    try:
        logging.getLogger("octavo_kvstore.store").info("a word of a module")
        logging.getLogger("octavo_kvstore.store").debug("not shown")
        (line,) = stream.getvalue().splitlines()
        assert json.loads(line)["message"] == "a word of a module"
    finally:
        for name in ("octavo", "octavo_kvstore"):
            logging.getLogger(name).handlers.clear()
