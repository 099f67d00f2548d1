"""Reads a gateway's live view over HTTP: one moment, or moments as they come (server-sent events)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

from octavo.errors import OctavoError, Overloaded, Unauthenticated, Unavailable

from octavo_cli.exits import NoCluster

TIMEOUT_S = 10.0
"""The feed speaks at least every second or so: silence for this long is a dead gateway."""


def moment(url: str, api_key: str = "") -> dict[str, Any]:
    """One moment. Raises NoCluster when nothing answers, Unauthenticated, Unavailable."""
    with _open(f"{url}/live", api_key) as answer:
        return _read(answer.read(), url)


def moments(url: str, api_key: str = "") -> Iterator[dict[str, Any]]:
    """Moments until the gateway stops; raises as `moment`, and NoCluster when the stream breaks."""
    try:
        with _open(f"{url}/live/events", api_key) as answer:
            for line in answer:
                if line.startswith(b"data: ") and line[6:].strip() != b"{}":
                    yield _read(line[6:], url)
    except (OSError, HTTPException) as error:
        raise NoCluster(f"the live view of {url} ended: {error}") from error


def _read(text: bytes, url: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or "model" not in content:
        raise NoCluster(f"{url} answers, but not as an Octavo gateway; give its HTTP address with --url")
    return content


def _open(url: str, api_key: str) -> Any:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise _said(error, url) from error
    except (OSError, ValueError, HTTPException) as error:
        raise NoCluster(f"{url} does not answer ({error}); `octavo status` says what runs") from error


def _said(error: urllib.error.HTTPError, url: str) -> OctavoError:
    """The gateway's own words for a status."""
    try:
        message = str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return NoCluster(f"{url} answers {error.code}: it is no Octavo gateway; give its HTTP address with --url")
    if error.code == 401:
        return Unauthenticated(message)
    return Overloaded(message) if error.code == 429 else Unavailable(message)
