"""Structured logs: JSON lines when not on a terminal, short text on one; never prompt text."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts, level, service, message, and whatever `extra` holds (request_id, trace_id)."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "message": record.getMessage(),
        }
        line.update({key: value for key, value in record.__dict__.items() if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`12:30:01 gateway INFO message key=value`."""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s {service} %(levelname)s %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(f"{key}={value}" for key, value in record.__dict__.items() if key not in _STANDARD)
        return super().format(record) + (f"  {extra}" if extra else "")


def start_logging(service: str, log_format: Literal["auto", "text", "json"], level: str) -> logging.Logger:
    """Configures the `octavo` logger and that of the service's package to stderr; returns the service's child of the first."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if as_json else TextFormatter(service))
    for name in ("octavo", f"octavo_{service}"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
    logging.getLogger("octavo").propagate = False
    return logging.getLogger(f"octavo.{service}")
